package desired

import (
	"testing"

	"github.com/example/memcached-operator/tests/manifest"
)

// TestContainerMemory holds the formula of docs/memory.md.
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
