package desired

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/internal/testing/manifest"
	"github.com/example/memcached-operator/internal/testing/specs"
)

// TestInputs holds the digests of inputs. An operator in which one differs replaces every server at its next upgrade.
func TestInputs(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]string{
		"{}":                                "e08c0a7c62bbc014",
		"{size: 5, pod: {}, extraArgs: []}": "e08c0a7c62bbc014",
		"{pod: {labels: {}, tolerations: [], resources: {}, affinity: {}}}": "e08c0a7c62bbc014",
		"{rollout: {minReadySeconds: 5}}":                                   "e08c0a7c62bbc014",
		"{disruptionBudget: {maxUnavailable: 2}":                            "e08c0a7c62bbc014",
		"{memory: 128Mi}":                                                   "",
		"{agent: {resources: {limits: {cpu: 1}}}}":                          "e08c0a7c62bbc014", // there is no agent
		"{disruptionBudget: {minAvailable: 75%}":                            "e08c0a7c62bbc014",
		"{service: {labels: {team: shop}}}":                                 "e08c0a7c62bbc014",
		"{pod: {containerSecurityContext: {}}}":                             "e08c0a7c62bbc014",
		"{pod: {schedulerName: binpacking}}":                                "",
		"{metrics: {}}":                                                     "302ae1b01fab5136",
		"{metrics: {}, agent: {resources: {limits: {}}}}":                   "302ae1b01fab5136",
		"{metrics: {}, agent: {resources: {limits: {cpu: 1}}}}":             "",
	} {
		if strings.Count(spec, "{") > strings.Count(spec, "}") {
			spec += "}"
		}
		mc := manifest.Parse(t, manifest.Named("m", spec))
		got := Resolve(mc, Current{}, Options{DefaultImage: "docker.io/library/memcached:default"}).record.Inputs
		if want != "" && got != want || want == "" && got == "e08c0a7c62bbc014" {
			t.Errorf("%s has the digest %s, want %s", spec, got, want)
		}
	}
}

// TestDigestFollowsTemplate: specs whose templates differ have digests that differ. A field that the digest leaves out
// would never reach a cache that runs. Only the way in which a server stops follows the proxy without a digest: a
// change of the proxy replaces no server.
func TestDigestFollowsTemplate(t *testing.T) {
	t.Parallel()
	type result struct{ spec, template string }
	byDigest := map[string]result{}
	for _, spec := range append(specs.Generate(300), specs.Accepted...) {
		mc := manifest.Parse(t, manifest.Named("m", spec))
		in := Resolve(mc, Current{}, Options{DefaultImage: "memcached:1"})
		template, err := json.Marshal(in.record.Template)
		if err != nil {
			t.Fatal(err)
		}
		// An empty affinity, as charts render, says nothing.
		now := result{spec, strings.Replace(string(template), `"affinity":{},`, "", 1)}
		digest := fmt.Sprint(in.record.Inputs, MovesWhenReplaced(mc), mc.Spec.Workload) // which is immutable
		if other, ok := byDigest[digest]; ok && other.template != now.template {
			t.Errorf("one digest for two templates, of %s and of %s", other.spec, spec)
		}
		byDigest[digest] = now
	}
	if len(byDigest) < 100 {
		t.Errorf("only %d inputs were tried", len(byDigest))
	}
}

// TestTemplateStays: another builder, here that for OpenShift, changes the template of no server until its user changes
// something that replaces the servers.
func TestTemplateStays(t *testing.T) {
	t.Parallel()
	mc := manifest.Parse(t, manifest.Named("m", "{size: 3}"))
	old, newer := Options{DefaultImage: "memcached:1"}, Options{DefaultImage: "memcached:2", OpenShift: true}
	before := storeServers(t, mc, nil, Current{}, old)
	user := func(w *stored) *int64 { return w.Template.Spec.SecurityContext.RunAsUser }

	if after := storeServers(t, mc, before, Current{}, newer); !before.sameTemplate(after) {
		t.Error("another builder changes the template")
	}
	mc.Spec.Size, mc.Generation = new(int32), 2
	resized := storeServers(t, mc, before, Current{}, newer)
	if !before.sameTemplate(resized) || before.Replicas == resized.Replicas {
		t.Error("a change of size changes the template")
	}
	mc.Spec.Memory = "128Mi"
	changed := storeServers(t, mc, resized, Current{}, newer)
	if before.sameTemplate(changed) || user(changed) != nil {
		t.Error("a change of memory does not bring the template of today's builder")
	}
	if changed.container().Image != "memcached:1" {
		t.Errorf("a change of memory changes the image to %s", changed.container().Image)
	}
	mc.Annotations = map[string]string{v1alpha1.RestartedAtAnnotation: "now"}
	restarted := storeServers(t, mc, changed, Current{}, newer)
	if restarted.container().Image != "memcached:2" {
		t.Errorf("a restart leaves the image at %s", restarted.container().Image)
	}
	again := storeServers(t, mc, restarted, Current{}, Options{DefaultImage: "memcached:3"})
	if !again.sameTemplate(restarted) {
		t.Error("the restart is done twice")
	}
	mc.Annotations = nil
	if again := storeServers(t, mc, restarted, Current{}, newer); !restarted.sameTemplate(again) {
		t.Error("a restart that was done is undone with its annotation")
	}
}

// TestTemplateIsReverted: somebody else's change of the template is reverted, with the previous image.
func TestTemplateIsReverted(t *testing.T) {
	t.Parallel()
	mc := manifest.Parse(t, manifest.Named("m", "{size: 3}"))
	before := storeServers(t, mc, nil, Current{}, Options{DefaultImage: "memcached:1"})
	drifted := storeServers(t, mc, before, Current{}, Options{})
	drifted.container().Image = "other"
	if !storeServers(t, mc, drifted, Current{}, Options{DefaultImage: "memcached:2"}).sameTemplate(before) {
		t.Error("the image stays changed")
	}
}

// TestLostRecord: removing the record changes no image, and is noticed.
func TestLostRecord(t *testing.T) {
	t.Parallel()
	mc := manifest.Parse(t, manifest.Named("m", "{size: 3, metrics: {}}"))
	before := storeServers(t, mc, nil, Current{}, Options{DefaultImage: "memcached:1", AgentImage: "operator:1"})
	before.SetAnnotations(nil)
	o := Options{DefaultImage: "memcached:2", AgentImage: "operator:1"}
	after := storeServers(t, mc, before, Current{}, o)
	if !after.sameTemplate(before) || after.record().Image != "memcached:1" {
		t.Errorf("a lost record replaces the servers: %+v", after.record())
	}
	if got := after.record().Outdated(o); !slices.Equal(got, []string{"image"}) {
		t.Errorf("got outdated %q after the record was lost, want the image", got)
	}
}

// TestEmptyWorkload: a template of which no pod exists is replaced. It may be one that the cluster refuses, as where
// OpenShift was not recognized at first.
func TestEmptyWorkload(t *testing.T) {
	t.Parallel()
	mc := manifest.Parse(t, manifest.Named("m", "{size: 3}"))
	before := storeServers(t, mc, nil, Current{}, Options{DefaultImage: "memcached:1"})
	o := Options{DefaultImage: "memcached:1", OpenShift: true}
	before.Object.(*appsv1.Deployment).Status.Replicas = 0
	if after := storeServers(t, mc, before, Current{}, o); after.sameTemplate(before) {
		t.Error("the template stays though it has no pod")
	}
}

// TestImageIsTakenOut: without spec.image, the image that was recorded at the creation stays. Where spec.image was
// removed, the operator's default of today replaces the image, once.
func TestImageIsTakenOut(t *testing.T) {
	t.Parallel()
	mc := manifest.Parse(t, manifest.Named("m", "{size: 3}"))
	image, o := "memcached:1", Options{DefaultImage: "memcached:1"}
	var own *stored
	for i, step := range []struct{ spec, defaultImage, want string }{
		{"", "memcached:1", "memcached:1"},
		{"", "memcached:2", "memcached:1"},
		{"own:1", "memcached:2", "own:1"},
		{"own:2", "memcached:2", "own:2"},
		{"", "memcached:3", "memcached:3"},
		{"", "memcached:4", "memcached:3"},
	} {
		mc.Spec.Image, o.DefaultImage = step.spec, step.defaultImage
		if own = storeServers(t, mc, own, Current{}, o); own.container().Image != step.want {
			t.Errorf("step %d: got image %s after %s, want %s", i, own.container().Image, image, step.want)
		}
		image = step.want
	}
}

// FuzzRecord: whatever somebody writes into the record and into the memory of the template, servers get the memory of
// the spec, and after two reconciles nothing changes any more.
func FuzzRecord(f *testing.F) {
	mc := manifest.Parse(f, manifest.Named("m", "{workload: StatefulSet, metrics: {}}"))
	o := Options{DefaultImage: "memcached:1", AgentImage: "operator:1", CanResize: true}
	first := storeServers(f, mc, nil, Current{}, o)
	const key = v1alpha1.TemplateRecordAnnotation
	current := first.GetAnnotations()[key]
	replaceIn := func(record, field, value string) string {
		return regexp.MustCompile(`"`+field+`":"[^"]*"`).ReplaceAllString(record, `"`+field+`":`+value)
	}
	for _, memory := range []string{"64", "", "x", "-m", "-1", "9223372036854775808"} {
		f.Add(current, memory)
	}
	for _, record := range []string{"", "{}", "null", "[]", current[:len(current)-1], `{"inputs":"x"}`, `{"template":{}}`,
		`{"template":{"spec":{"containers":[{}]}}}`,
		replaceIn(current, "inputs", `""`),
		replaceIn(current, "image", `"memcached:2"`),
		replaceIn(current, "image", `"","requestedImage":"memcached:3"`),
		replaceIn(current, "agent", `"","restartedAt":"now"`),
		replaceIn(current, "agent", `"operator:2","secrets":{"tls":{"name":"s","notAfter":"2026-01-02T03:04:05+01:00"}}`),
		// This time is written as one that cannot be read.
		replaceIn(current, "agent", `"operator:2","secrets":{"tls":{"name":"s","notAfter":"9999-12-31T23:59:59-01:00"}}`),
		replaceIn(current, "agent", `"","secrets":{"tls":{"name":"s","authorities":[`+
			`{"id":"x","notAfter":"2026-01-02T03:04:05Z"}]}}`),
	} {
		f.Add(record, "64")
	}
	mc.Spec.Memory, mc.Generation = "128Mi", 2
	f.Fuzz(func(t *testing.T, record, memory string) {
		own := storeServers(t, manifest.Parse(t, manifest.Named("m", "{workload: StatefulSet, metrics: {}}")), nil,
			Current{}, o)
		own.container().Args[3] = memory
		own.SetAnnotations(map[string]string{key: record})
		own.record().Outdated(o)
		apply := func(own *stored) *stored { return storeServers(t, mc, own, Current{}, o) }
		after := apply(own)
		after = apply(after)
		again := apply(after)
		if got := again.container().Args; !slices.Equal(got, arguments(mc)) {
			t.Errorf("the arguments are %q", got)
		}
		if r := again.record(); r.Template == nil || r.Inputs != digestOfInputs(mc, r) {
			t.Errorf("the record is %v", again.GetAnnotations())
		}
		if !again.sameTemplate(after) || !maps.Equal(again.GetAnnotations(), after.GetAnnotations()) {
			t.Errorf("%v becomes %v", after.GetAnnotations(), again.GetAnnotations())
		}
	})
}

// TestPodAnnotations: the annotations that the user gives to pods are not in the record, which they would make too
// large. They stay in the template while all else stays, also while a Secret is missing.
func TestPodAnnotations(t *testing.T) {
	t.Parallel()
	mc := manifest.Parse(t, manifest.Named("m", "{size: 3, pod: {annotations: {a: b}}}"))
	before := storeServers(t, mc, nil, Current{}, Options{DefaultImage: "memcached:1"})
	if record := before.GetAnnotations()[v1alpha1.TemplateRecordAnnotation]; strings.Contains(record, `"a":"b"`) {
		t.Errorf("the record has the annotation: %s", record)
	}
	newer := Options{DefaultImage: "memcached:1", OpenShift: true}
	if after := storeServers(t, mc, before, Current{}, newer); !after.sameTemplate(before) {
		t.Errorf("another builder changes the template with annotations to %v", after.Template.Annotations)
	}
	mc.Spec.Pod.Annotations["a"] = "c"
	if after := storeServers(t, mc, before, Current{Freeze: true}, newer); !after.sameTemplate(before) {
		t.Errorf("a frozen template gets the annotations %v", after.Template.Annotations)
	}
	if after := storeServers(t, mc, before, Current{}, newer); after.Template.Annotations["a"] != "c" {
		t.Errorf("a change of annotations leaves %v", after.Template.Annotations)
	}
}
