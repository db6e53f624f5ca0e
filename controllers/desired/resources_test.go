package desired

import (
	"fmt"
	"testing"

	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/internal/testing/manifest"
)

// TestContainerMemory holds the formula of docs/explanation/memory.md.
func TestContainerMemory(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]string{
		"{}":                                  "159Mi",
		"{memory: 16Mi}":                      "103Mi",
		"{tls: {secretName: s}}":              "183Mi",
		"{memory: 1Gi}":                       "1279Mi",
		"{memory: 2Gi, maxConnections: 4096}": "2534Mi",
		"{memory: 64Gi, maxConnections: 10000, threads: 8}": "76734Mi",
	} {
		got := containerMemory(manifest.Parse(t,
			manifest.Named("m", spec)))
		if got.String() != want {
			t.Errorf("%s needs %s, want %s", spec, got.String(), want)
		}
	}
}

// FuzzContainerMemory: a container has room for what the validation of spec.pod.resources asks for, in whole MiB, and
// no less where the spec has more of anything.
func FuzzContainerMemory(f *testing.F) {
	mc := manifest.Parse(f, manifest.Named("m", "{}"))
	memory := func(megabytes int64, connections, threads int32, tls bool) int64 {
		mc := mc.DeepCopy()
		mc.Spec.Memory, mc.Spec.MaxConnections, mc.Spec.Threads = fmt.Sprintf("%dMi", megabytes), connections, threads
		if tls {
			mc.Spec.TLS = &v1alpha1.TLSSpec{}
		}
		q := containerMemory(mc)
		return q.Value()
	}
	f.Add(int64(16), int32(1), int32(1), false)
	f.Add(int64(64), int32(1024), int32(4), true)
	f.Add(int64(4<<20-1), int32(1e6), int32(64), true)
	f.Fuzz(func(t *testing.T, megabytes int64, connections, threads int32, tls bool) {
		if megabytes < 16 || megabytes > 4<<20 || connections < 1 || connections > 1e6 || threads < 1 || threads > 64 {
			t.Skip("the API server refuses it")
		}
		got := memory(megabytes, connections, threads, tls)
		if got < megabytes*mebi+base+int64(threads)*perThread || got%mebi != 0 {
			t.Errorf("got %d bytes", got)
		}
		for _, more := range []int64{memory(megabytes+1, connections, threads, tls), memory(megabytes, connections+1,
			threads, tls),
			memory(megabytes, connections, threads+1, tls), memory(megabytes, connections, threads, true)} {
			if more < got {
				t.Errorf("got %d bytes, and %d bytes for more", got, more)
			}
		}
	})
}

// TestResources: what the user gives wins, and never makes a request exceed its limit.
func TestResources(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string][4]string{ // cpu request, cpu limit, memory request, memory limit
		"{}":                         {"50m", "0", "159Mi", "159Mi"},
		"{limits: {cpu: 20m}}":       {"20m", "20m", "159Mi", "159Mi"},
		"{limits: {memory: 100Mi}}":  {"50m", "0", "100Mi", "100Mi"},
		"{requests: {memory: 1Gi}}":  {"50m", "0", "1Gi", "1Gi"},
		"{requests: {memory: 70Mi}}": {"50m", "0", "70Mi", "159Mi"},
		"{requests: {cpu: 1.0005}, limits: {memory: 1G}}": {"1001m", "0", "159Mi", "1G"},
	} {
		r := resources(manifest.Parse(t,
			manifest.Named("m", "{pod: {resources: "+spec+"}}")))
		requests, limits := *r.Requests, *r.Limits
		got := [4]string{requests.Cpu().String(), limits.Cpu().String(), requests.Memory().String(), limits.Memory().String()}
		if got != want {
			t.Errorf("%s gives %v, want %v", spec, got, want)
		}
	}
}

// TestSidecarResources: agents and proxies can have a CPU limit, and keep their defaults for all that is not given.
func TestSidecarResources(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string][4]string{ // cpu request, cpu limit, memory request, memory limit
		"agent: {}": {"5m", "0", "16Mi", "64Mi"},
		"agent: {resources: {limits: {cpu: 100m}}}":               {"5m", "100m", "16Mi", "64Mi"},
		"agent: {resources: {limits: {cpu: 2m, memory: 96Mi}}}":   {"2m", "2m", "16Mi", "96Mi"},
		"agent: {resources: {requests: {cpu: 1, memory: 128Mi}}}": {"1", "0", "128Mi", "128Mi"},
		"proxy: {}": {"50m", "0", "128Mi", "128Mi"},
		"proxy: {resources: {limits: {cpu: 20m}}}":                 {"20m", "20m", "128Mi", "128Mi"},
		"proxy: {memory: 1Gi, resources: {requests: {cpu: 100m}}}": {"100m", "0", "1Gi", "1Gi"},
	} {
		mc := manifest.Parse(t, manifest.Named("m", "{workload: StatefulSet, metrics: {}, "+spec+"}"))
		var r *corev1ac.ResourceRequirementsApplyConfiguration
		if mc.Spec.Proxy != nil {
			r = proxyDeployment(mc, Inputs{}).Spec.Template.Spec.Containers[0].Resources
		} else {
			r = agentResources(mc, names.Servers)
		}
		requests, limits := *r.Requests, *r.Limits
		got := [4]string{requests.Cpu().String(), limits.Cpu().String(), requests.Memory().String(), limits.Memory().String()}
		if got != want {
			t.Errorf("%s gives %v, want %v", spec, got, want)
		}
	}
}

// TestProxyAgentResources: the agent of a proxy has room for the largest item above the limit that the user gives.
func TestProxyAgentResources(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string][3]string{ // memory request, memory limit, GOMEMLIMIT
		"proxy: {}": {"16Mi", "65Mi", "55MiB"},
		"maxItemSize: 64Mi, memory: 128Mi, proxy: {memory: 512Mi}":                  {"16Mi", "128Mi", "108MiB"},
		"maxItemSize: 8Mi, proxy: {}, agent: {resources: {limits: {memory: 64Mi}}}": {"16Mi", "72Mi", "61MiB"},
		"maxItemSize: 8Mi, proxy: {}, agent: {resources: {limits: {memory: 96Mi}, " +
			"requests: {memory: 96Mi}}}": {"96Mi", "104Mi", "88MiB"},
		"maxItemSize: 8Mi, proxy: {}, agent: {resources: {requests: {memory: 128Mi}}}": {"128Mi", "136Mi", "115MiB"},
	} {
		mc := manifest.Parse(t, manifest.Named("m", "{workload: StatefulSet, "+spec+"}"))
		c := proxyDeployment(mc, Inputs{}).Spec.Template.Spec.InitContainers[0]
		requests, limits := *c.Resources.Requests, *c.Resources.Limits
		if got := [3]string{requests.Memory().String(), limits.Memory().String(), *c.Env[1].Value}; got != want {
			t.Errorf("%s gives %v, want %v", spec, got, want)
		}
	}
}

// TestImagePullSecrets: the operator's pull secrets are for pods whose Memcached names none.
func TestImagePullSecrets(t *testing.T) {
	t.Parallel()
	in := Inputs{options: Options{ImagePullSecrets: []string{"mirror"}}}
	for pod, want := range map[string]string{"{}": "mirror", "{imagePullSecrets: [{name: own}]}": "own"} {
		mc := manifest.Parse(t, manifest.Named("m", "{workload: StatefulSet, proxy: {}, pod: "+pod+"}"))
		for component, template := range map[string]*corev1ac.PodTemplateSpecApplyConfiguration{
			"server": podTemplate(mc, Record{}, in.options), "proxy": proxyDeployment(mc, in).Spec.Template} {
			if got := template.Spec.ImagePullSecrets; len(got) != 1 || *got[0].Name != want {
				t.Errorf("pod %s: each %s has the pull secrets %v, want %s", pod, component, got, want)
			}
		}
	}
}
