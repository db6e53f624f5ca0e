package desired

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

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
		"{metrics: {}, agent: {logLevel: info}}":                            "302ae1b01fab5136",
		"{metrics: {}, agent: {logLevel: debug}}":                           "",
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
		template, err := json.Marshal(in.template)
		if err != nil {
			t.Fatal(err)
		}
		// An empty affinity, as charts render, says nothing.
		now := result{spec, strings.Replace(string(template), `"affinity":{},`, "", 1)}
		digest := fmt.Sprint(in.record.Inputs, DrainsServers(mc))
		if other, ok := byDigest[digest]; ok && other.template != now.template {
			t.Errorf("one digest for two templates, of %s and of %s", other.spec, spec)
		}
		byDigest[digest] = now
	}
	if len(byDigest) < 100 {
		t.Errorf("only %d inputs were tried", len(byDigest))
	}
}

// deployed returns the Deployment of mc that an operator with these options applies over own, whose servers were ready.
func deployed(t *testing.T, mc *v1alpha1.Memcached, own *appsv1ac.DeploymentApplyConfiguration,
	o Options) *appsv1ac.DeploymentApplyConfiguration {
	t.Helper()
	return deployedOver(t, mc, Current{Workload: read(own), HasReady: true}, o)
}

func deployedOver(t *testing.T, mc *v1alpha1.Memcached, current Current,
	o Options) *appsv1ac.DeploymentApplyConfiguration {
	t.Helper()
	b, err := json.Marshal(deployment(mc, Resolve(mc, current, o)))
	if err != nil {
		t.Fatal(err)
	}
	d := &appsv1ac.DeploymentApplyConfiguration{}
	if err := json.Unmarshal(b, d); err != nil {
		t.Fatal(err)
	}
	return d
}

func read(d *appsv1ac.DeploymentApplyConfiguration) *Workload {
	if d == nil {
		return nil
	}
	return ReadWorkload(d)
}

// matchesRecord reports whether the record of a workload is that of its template.
func matchesRecord(d *appsv1ac.DeploymentApplyConfiguration) bool {
	r, _ := readRecord(read(d))
	return r.Template == Digest(read(d).Template)
}

func sameTemplate(a, b *appsv1ac.DeploymentApplyConfiguration) bool {
	return read(a).SameTemplate(read(b))
}

// TestTemplateStays: another builder, here that for OpenShift, changes the template of no server until its user changes
// something that replaces the servers.
func TestTemplateStays(t *testing.T) {
	t.Parallel()
	mc := manifest.Parse(t, manifest.Named("m", "{size: 3}"))
	old, newer := Options{DefaultImage: "memcached:1"}, Options{DefaultImage: "memcached:2", OpenShift: true}
	before := deployed(t, mc, nil, old)
	image := func(d *appsv1ac.DeploymentApplyConfiguration) string {
		return *d.Spec.Template.Spec.Containers[0].Image
	}
	user := func(d *appsv1ac.DeploymentApplyConfiguration) *int64 {
		return d.Spec.Template.Spec.SecurityContext.RunAsUser
	}

	if after := deployed(t, mc, before, newer); !sameTemplate(before, after) {
		t.Error("another builder changes the template")
	}
	mc.Spec.Size, mc.Generation = new(int32), 2
	resized := deployed(t, mc, before, newer)
	if !sameTemplate(before, resized) || read(before).SameSize(read(resized)) {
		t.Error("a change of size changes the template")
	}
	mc.Spec.Memory = "128Mi"
	changed := deployed(t, mc, resized, newer)
	if sameTemplate(before, changed) || user(changed) != nil {
		t.Error("a change of memory does not bring the template of today's builder")
	}
	if image(changed) != "memcached:1" {
		t.Errorf("a change of memory changes the image to %s", image(changed))
	}
	mc.Annotations = map[string]string{v1alpha1.RestartedAtAnnotation: "now"}
	restarted := deployed(t, mc, changed, newer)
	if image(restarted) != "memcached:2" {
		t.Errorf("a restart leaves the image at %s", image(restarted))
	}
	if again := deployed(t, mc, restarted, Options{DefaultImage: "memcached:3"}); !sameTemplate(restarted, again) {
		t.Error("the restart is done twice")
	}
	mc.Annotations = nil
	if again := deployed(t, mc, restarted, newer); !sameTemplate(restarted, again) {
		t.Error("a restart that was done is undone with its annotation")
	}
}

// TestTemplateIsReverted: somebody else's change of the template is reverted, with the previous image.
func TestTemplateIsReverted(t *testing.T) {
	t.Parallel()
	mc := manifest.Parse(t, manifest.Named("m", "{size: 3}"))
	before := deployed(t, mc, nil, Options{DefaultImage: "memcached:1"})
	for name, change := range map[string]func(*corev1ac.ContainerApplyConfiguration){
		"a value":                  func(c *corev1ac.ContainerApplyConfiguration) { c.WithImage("other") },
		"a field that others took": func(c *corev1ac.ContainerApplyConfiguration) { c.Image = nil },
	} {
		drifted := deployed(t, mc, before, Options{})
		change(&drifted.Spec.Template.Spec.Containers[0])
		if after := deployed(t, mc, drifted, Options{DefaultImage: "memcached:2"}); !sameTemplate(before, after) {
			t.Errorf("%s stays changed", name)
		}
	}
}

// TestLostRecord: removing the record after an upgrade of the operator replaces no server, and removing it together
// with a change of the template does not hide that change.
func TestLostRecord(t *testing.T) {
	t.Parallel()
	mc := manifest.Parse(t, manifest.Named("m", "{size: 3, metrics: {}}"))
	before := deployed(t, mc, nil, Options{DefaultImage: "memcached:1", AgentImage: "operator:1"})
	before.Annotations = nil
	o := Options{DefaultImage: "memcached:2", AgentImage: "operator:2", OpenShift: true} // another builder
	after := deployed(t, mc, before, o)
	if !sameTemplate(before, after) || !matchesRecord(after) {
		t.Error("a lost record replaces the servers")
	}
	if got := Outdated(after.Annotations, o); !slices.Equal(got, []string{"image", "agentImage"}) {
		t.Errorf("got outdated %q after the record was lost, want both images", got)
	}
	mc.Spec.Memory, mc.Generation = "128Mi", 2
	if sameTemplate(before, deployed(t, mc, before, o)) {
		t.Error("a change of the spec is lost with the record")
	}
	mc.Spec.Memory, mc.Generation = "64Mi", 1
	before.Spec.Template.Spec.Containers[0].Image = nil // somebody else set another one
	if image := deployed(t, mc, before, o).Spec.Template.Spec.Containers[0].Image; image == nil {
		t.Error("the image of somebody else stays")
	}
}

// TestEmptyWorkload: a template of which no pod exists is replaced. It may be one that the cluster refuses, as where
// OpenShift was not recognized at first.
func TestEmptyWorkload(t *testing.T) {
	t.Parallel()
	mc := manifest.Parse(t, manifest.Named("m", "{size: 3}"))
	before := deployed(t, mc, nil, Options{DefaultImage: "memcached:1"})
	o := Options{DefaultImage: "memcached:1", OpenShift: true}
	if after := deployedOver(t, mc, Current{Workload: read(before), Empty: true}, o); sameTemplate(before, after) {
		t.Error("the template stays though it has no pod")
	}
}

// TestImageThatNeverRan: removing spec.image replaces an image with which no server is ready by the default.
func TestImageThatNeverRan(t *testing.T) {
	t.Parallel()
	mc := manifest.Parse(t, manifest.Named("m", "{size: 3}"))
	o := Options{DefaultImage: "memcached:1"}
	image := func(d *appsv1ac.DeploymentApplyConfiguration) string {
		return *d.Spec.Template.Spec.Containers[0].Image
	}
	first := deployed(t, mc, nil, o)
	o.DefaultImage = "memcached:2"
	mc.Spec.Image = "bad:1"
	bad := deployed(t, mc, first, o)
	mc.Spec.Image = "bad:2"
	bad = deployedOver(t, mc, Current{Workload: read(bad)}, o)
	mc.Spec.Image = ""
	back := deployedOver(t, mc, Current{Workload: read(bad)}, o)
	if image(bad) != "bad:2" || image(back) != "memcached:2" {
		t.Errorf("the image is %s, then %s", image(bad), image(back))
	}
	if again := deployedOver(t, mc, Current{Workload: read(back)}, o); !sameTemplate(back, again) {
		t.Errorf("then the image is %s", image(again))
	}
	if ran := deployed(t, mc, bad, o); image(ran) != "bad:2" {
		t.Errorf("an image with which a server is ready is replaced by %s", image(ran))
	}
}

// FuzzRecord: whatever somebody writes into the record and into the memory of the template, servers get the memory of
// the spec, and after two reconciles the record is that of the template, and nothing changes any more.
func FuzzRecord(f *testing.F) {
	mc := manifest.Parse(f, manifest.Named("m", "{workload: StatefulSet, metrics: {}}"))
	o := Options{DefaultImage: "memcached:1", AgentImage: "operator:1", CanResize: true}
	apply := func(mc *v1alpha1.Memcached, own *Workload) *Workload {
		in := Resolve(mc, Current{Workload: own, Revision: "a", HasReady: true}, o)
		return ReadWorkload(convert(statefulSet(mc, in), &appsv1ac.StatefulSetApplyConfiguration{}))
	}
	first := apply(mc, nil)
	current := first.Annotations[v1alpha1.TemplateRecordAnnotation]
	replaceIn := func(record, field, value string) string {
		return regexp.MustCompile(`"`+field+`":"[^"]*"`).ReplaceAllString(record, `"`+field+`":`+value)
	}
	for _, memory := range []string{"64", "", "x", "-m", "-1", "9223372036854775808"} {
		f.Add(current, memory)
	}
	for _, record := range []string{"", "{}", "null", "[]", current[:len(current)-1], `{"inputs":"x"}`,
		replaceIn(current, "template", `"x"`), replaceIn(current, "inputs", `""`),
		replaceIn(current, "image", `"memcached:2"`),
		replaceIn(current, "image", `"","requestedImage":"memcached:3"`),
		replaceIn(current, "agent", `"","inPlace":["b","b","c"],"restartedAt":"now"`),
		replaceIn(current, "agent", `"operator:2","flushedAt":"then","flush":"2026-01-02T03:04:05+01:00"`),
		// This time is written as one that cannot be read.
		replaceIn(current, "agent", `"operator:2","flush":"9999-12-31T23:59:59-01:00"`),
		replaceIn(current, "agent", `"","secrets":{"tls":{"name":"s","authorities":[`+
			`{"id":"x","notAfter":"2026-01-02T03:04:05Z"}]}}`),
	} {
		f.Add(record, "64")
	}
	mc.Spec.Memory, mc.Generation = "128Mi", 2
	f.Fuzz(func(t *testing.T, record, memory string) {
		own := &Workload{Labels: first.Labels, Replicas: first.Replicas,
			Template: convert(first.Template, corev1ac.PodTemplateSpec())}
		own.container().Args[3] = memory
		if record == current { // somebody changed the record with the memory
			record = replaceIn(record, "template", `"`+Digest(own.Template)+`"`)
		}
		own.Annotations = map[string]string{v1alpha1.TemplateRecordAnnotation: record}
		Outdated(own.Annotations, o)
		after := apply(mc, own)
		if got := after.container().Args; !slices.Equal(got, arguments(mc)) {
			t.Errorf("the arguments are %q", got)
		}
		after = apply(mc, after)
		again := apply(mc, after)
		if r, ok := readRecord(again); !ok || r.Template != Digest(again.Template) || r.Inputs != digestOfInputs(mc, r) {
			t.Errorf("the record is %v", again.Annotations)
		}
		if !again.SameTemplate(after) || !maps.Equal(again.Annotations, after.Annotations) {
			t.Errorf("%v becomes %v", after.Annotations, again.Annotations)
		}
	})
}
