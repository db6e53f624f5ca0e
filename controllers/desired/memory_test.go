package desired

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/internal/testing/manifest"
)

// TestDrainTime: the grace period of a server with a drain follows its memory, also if only the memory changes.
func TestDrainTime(t *testing.T) {
	t.Parallel()
	const spec = "{workload: StatefulSet, metrics: {}, memory: %s, proxy: {%s}}"
	workload := func(mc *v1alpha1.Memcached, own *stored) *stored {
		o := Options{DefaultImage: "memcached:1", AgentImage: "operator:1", CanResize: true}
		return storeServers(t, mc, own, Current{Revision: "a"}, o)
	}
	for memory, want := range map[string]int64{"64Mi": 94, "1Gi": 154, "64Gi": 90 + 64*64} {
		mc := manifest.Parse(t, manifest.Named("m", fmt.Sprintf(spec, memory, "")))
		if got := *workload(mc, nil).Template.Spec.TerminationGracePeriodSeconds; got != want {
			t.Errorf("with %s: got %d s, want %d s", memory, got, want)
		}
	}
	for proxy, want := range map[string]int64{"": 218, "moveItems: OnResize": 30} {
		mc := manifest.Parse(t, manifest.Named("m", fmt.Sprintf(spec, "1Gi", proxy)))
		own := workload(mc, nil)
		mc.Spec.Memory = "2Gi"
		if got := *workload(mc, own).Template.Spec.TerminationGracePeriodSeconds; got != want {
			t.Errorf("after a change in place, with proxy {%s}: got %d s, want %d s", proxy, got, want)
		}
	}
}

// TestMemoryInPlace: a change of the memory alone keeps all else of the template, here although another builder, that
// for OpenShift, would change more. The record says of which revisions servers need not be replaced.
func TestMemoryInPlace(t *testing.T) {
	t.Parallel()
	apply := func(mc *v1alpha1.Memcached, own *stored, revision string, o Options) *stored {
		o.DefaultImage, o.AgentImage = "memcached:1", "operator:1"
		return storeServers(t, mc, own, Current{Revision: revision}, o)
	}
	for name, tt := range map[string]struct {
		spec     string
		change   func(mc *v1alpha1.Memcached, own *stored)
		noResize bool
		replace  bool
	}{
		"memory":          {},
		"memory and size": {change: func(mc *v1alpha1.Memcached, _ *stored) { mc.Spec.Size = new(int32) }},
		"memory and threads": {replace: true,
			change: func(mc *v1alpha1.Memcached, _ *stored) { mc.Spec.Threads = 7 }},
		"memory and a restart": {replace: true, change: func(mc *v1alpha1.Memcached, _ *stored) {
			mc.Annotations = map[string]string{v1alpha1.RestartedAtAnnotation: "now"}
		}},
		"of a Deployment":    {spec: "{metrics: {}, memory: 1Gi}", replace: true},
		"without metrics":    {spec: "{workload: StatefulSet, memory: 1Gi}"},
		"the cluster cannot": {noResize: true, replace: true},
		"somebody else's change": {
			change: func(_ *v1alpha1.Memcached, own *stored) { own.container().Image = "x" }},
	} {
		mc := manifest.Parse(t, manifest.Named("m", cmp.Or(tt.spec, "{workload: StatefulSet, metrics: {}, memory: 1Gi}")))
		own := apply(mc, nil, "", Options{CanResize: true})
		mc.Spec.Memory = "1536Mi"
		if tt.change != nil {
			tt.change(mc, own)
		}
		after := apply(mc, own, "a", Options{CanResize: !tt.noResize, OpenShift: true})
		replace, inPlace := after.Template.Spec.SecurityContext.RunAsUser == nil, after.record().InPlace
		if replace != tt.replace || replace != (len(inPlace) == 0) {
			t.Errorf("%s: the template is built anew: %t, the revisions %q need no replacement", name, replace, inPlace)
		}
		memory := resources(mc).Limits.Memory()
		if c := after.container(); c.Image != "memcached:1" || c.Args[3] != "1536" ||
			!c.Resources.Limits.Memory().Equal(*memory) {
			t.Errorf("%s: got the arguments %q and the limits %v", name, c.Args, c.Resources.Limits)
		}
		if replace {
			continue
		}
		for _, step := range []struct {
			memory, revision string
			want             []string
		}{
			{"1536Mi", "b", []string{"a"}},
			{"2Gi", "", []string{"a"}}, // has to wait
			{"2Gi", "b", []string{"b", "a"}},
			{"2048Mi", "c", []string{"c", "b", "a"}},
			{"1Gi", "d", []string{"d", "c", "b", "a"}},
		} {
			mc.Spec.Memory = step.memory
			after = apply(mc, after, step.revision, Options{CanResize: true, OpenShift: true})
			if got := after.record().InPlace; !slices.Equal(got, step.want) {
				t.Errorf("%s, then %s: the revisions %q need no replacement, want %q", name, step.memory, got, step.want)
			}
		}
	}
}
