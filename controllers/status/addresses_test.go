package status

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/internal/testing/manifest"
)

// TestAddressesOmitForeignServices: clients are not sent to a Service that somebody else created with the name of a
// child.
func TestAddressesOmitForeignServices(t *testing.T) {
	for name, c := range map[string]struct {
		spec, foreign string
		want          []string
	}{
		"Deployment":           {"{size: 2}", "", []string{"cache.default.svc:11211"}},
		"Deployment, foreign":  {"{size: 2}", "cache", nil},
		"StatefulSet, foreign": {"{size: 2, workload: StatefulSet}", "cache", nil},
		"server Services, one without an address": {"{size: 2, workload: StatefulSet, serverAddresses: ClusterIP}", "",
			[]string{"10.0.0.1:11211"}},
		"server Services, foreign": {"{size: 2, workload: StatefulSet, serverAddresses: ClusterIP}", "cache-0", nil},
		"proxy":                    {"{workload: StatefulSet, proxy: {}}", "", []string{"cache-proxy.default.svc:11211"}},
		"proxy, foreign":           {"{workload: StatefulSet, proxy: {}}", "cache-proxy", nil},
	} {
		service := func(name string) (*corev1.Service, bool) {
			if name != "cache-0" || name == c.foreign {
				return nil, name != c.foreign
			}
			s := &corev1.Service{}
			s.Spec.ClusterIP = "10.0.0.1"
			s.Spec.Ports = []corev1.ServicePort{{Name: "other", Port: 80}, {Name: "memcached", Port: 11211}}
			return s, true
		}
		if got := Addresses(manifest.Parse(t, manifest.Named("cache", c.spec)), service); !slices.Equal(got, c.want) {
			t.Errorf("%s: got addresses %q, want %q", name, got, c.want)
		}
	}
}
