package desired

import (
	"cmp"
	"fmt"
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
		return storeServers(t, mc, own, Current{}, o)
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
// for OpenShift, would change more. Servers need not be replaced: the digest in the template stays.
func TestMemoryInPlace(t *testing.T) {
	t.Parallel()
	apply := func(mc *v1alpha1.Memcached, own *stored, o Options) *stored {
		o.DefaultImage, o.AgentImage = "memcached:1", "operator:1"
		return storeServers(t, mc, own, Current{}, o)
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
		own := apply(mc, nil, Options{CanResize: true})
		digest := own.digest()
		mc.Spec.Memory = "1536Mi"
		if tt.change != nil {
			tt.change(mc, own)
		}
		after := apply(mc, own, Options{CanResize: !tt.noResize, OpenShift: true})
		replace := after.Template.Spec.SecurityContext.RunAsUser == nil
		if replace != tt.replace || tt.spec == "" && replace == (after.digest() == digest) {
			t.Errorf("%s: the template is built anew: %t, its digest %s becomes %s", name, replace, digest, after.digest())
		}
		memory := resources(mc).Limits.Memory()
		if c := after.container(); c.Image != "memcached:1" || c.Args[3] != "1536" ||
			!c.Resources.Limits.Memory().Equal(*memory) {
			t.Errorf("%s: got the arguments %q and the limits %v", name, c.Args, c.Resources.Limits)
		}
		if replace {
			continue
		}
		for _, memory := range []string{"1536Mi", "2Gi", "2048Mi", "1Gi"} {
			mc.Spec.Memory = memory
			if after = apply(mc, after, Options{CanResize: true, OpenShift: true}); after.digest() != digest {
				t.Errorf("%s, then %s: servers are replaced", name, memory)
			}
		}
	}
}
