package desired

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/example/memcached-operator/agent/contract"
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

// TestResources: what the user gives replaces the defaults of servers, agents and proxies. If a request is given
// without a limit, or a limit without a request, the other one follows where it must. If both are given, both stay: the
// API server refuses a request above its limit. The agent of a proxy has room for the largest item above its limit.
func TestResources(t *testing.T) {
	t.Parallel()
	server := func(pod corev1.PodSpec) corev1.Container { return pod.Containers[0] }
	agent := func(pod corev1.PodSpec) corev1.Container { return pod.InitContainers[0] }
	type table map[string][4]string // cpu request, cpu limit, memory request, memory limit
	for _, tt := range []struct {
		spec      string
		component string
		container func(corev1.PodSpec) corev1.Container
		want      table
	}{
		{"{pod: {resources: {%s}}}", "", server, table{
			"":                                     {"50m", "0", "159Mi", "159Mi"},
			"limits: {cpu: 20m}":                   {"20m", "20m", "159Mi", "159Mi"},
			"limits: {memory: 100Mi}":              {"50m", "0", "100Mi", "100Mi"},
			"requests: {memory: 1Gi}":              {"50m", "0", "1Gi", "1Gi"},
			"requests: {memory: 70Mi}":             {"50m", "0", "70Mi", "159Mi"},
			"requests: {cpu: 1.0005}":              {"1001m", "0", "159Mi", "159Mi"},
			"limits: {memory: 1G}":                 {"50m", "0", "159Mi", "1G"},
			"requests: {cpu: 2}, limits: {cpu: 1}": {"2", "1", "159Mi", "159Mi"},
		}},
		{"{metrics: {}, agent: {resources: {%s}}}", "", agent, table{
			"":                                  {"5m", "0", "16Mi", "64Mi"},
			"limits: {cpu: 100m}":               {"5m", "100m", "16Mi", "64Mi"},
			"limits: {cpu: 2m, memory: 96Mi}":   {"2m", "2m", "16Mi", "96Mi"},
			"requests: {cpu: 1, memory: 128Mi}": {"1", "0", "128Mi", "128Mi"},
		}},
		{"{workload: StatefulSet, proxy: {resources: {%s}}}", "-proxy", server, table{
			"":                      {"50m", "0", "128Mi", "128Mi"},
			"limits: {cpu: 20m}":    {"20m", "20m", "128Mi", "128Mi"},
			"requests: {cpu: 100m}": {"100m", "0", "128Mi", "128Mi"},
		}},
		{"{workload: StatefulSet, maxItemSize: 8Mi, proxy: {}, agent: {resources: {%s}}}", "-proxy", agent, table{
			"":                          {"5m", "0", "16Mi", "72Mi"},
			"limits: {memory: 96Mi}":    {"5m", "0", "16Mi", "104Mi"},
			"requests: {memory: 128Mi}": {"5m", "0", "128Mi", "136Mi"},
		}},
	} {
		for given, want := range tt.want {
			mc := manifest.Parse(t, manifest.Named("m", fmt.Sprintf(tt.spec, given)))
			for _, child := range NewPlan(mc, Resolve(mc, Current{}, Options{})).Children {
				workload, ok := child.(*appsv1ac.DeploymentApplyConfiguration)
				if !ok || *workload.Name != "m"+tt.component {
					continue
				}
				c := tt.container(store(t, workload).Template.Spec)
				r := c.Resources
				got := [4]string{r.Requests.Cpu().String(), r.Limits.Cpu().String(), r.Requests.Memory().String(),
					r.Limits.Memory().String()}
				if got != want {
					t.Errorf(tt.spec+" gives %v, want %v", given, got, want)
				}
				if limit := contract.GoMemoryLimit(r.Limits.Memory().Value()); c.Name == names.Agent && c.Env[1].Value != limit {
					t.Errorf(tt.spec+" gives GOMEMLIMIT=%s, want %s", given, c.Env[1].Value, limit)
				}
			}
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
