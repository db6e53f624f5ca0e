package names

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// TestNeighbours: no chart selects the pods of a Memcached with the name of its release. The selectors are those of
// Services, workloads, budgets and policies of charts that have or depend on memcached.
func TestNeighbours(t *testing.T) {
	t.Parallel()
	const release, name, instance, component = "sessions", "app.kubernetes.io/name", "app.kubernetes.io/instance",
		"app.kubernetes.io/component"
	mc := &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Name: release}}
	for chart, selector := range map[string]labels.Set{
		// https://github.com/bitnami/charts/blob/main/bitnami/memcached/templates/service.yaml, and what helm create writes
		"bitnami/memcached": {name: "memcached", instance: release},
		"its PDB":           {name: "memcached", instance: release, component: "memcached"},
		"with a component":  {name: "memcached", instance: release, component: "server"},
		"all releases":      {name: "memcached"},
		"an umbrella chart": {instance: release, component: "memcached"},
		// https://github.com/helm/charts/blob/master/stable/memcached/templates/svc.yaml
		"stable/memcached": {"app": release + "-memcached"},
		"its StatefulSet":  {"app": release + "-memcached", "release": release},
		"by hand":          {"app": "memcached"},
	} {
		for _, c := range []Component{Servers, Proxies} {
			if selector.AsSelector().Matches(labels.Set(c.PodLabels(mc))) {
				t.Errorf("%s selects each %s by %s", chart, c, selector)
			}
		}
	}
	other := &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Name: "carts"}}
	selector := labels.SelectorFromSet(Servers.Selector(mc))
	if !selector.Matches(labels.Set(Servers.PodLabels(mc))) || selector.Matches(labels.Set(Proxies.PodLabels(mc))) ||
		selector.Matches(labels.Set(Servers.PodLabels(other))) {
		t.Errorf("%s selects other pods than the servers of one Memcached", selector)
	}
}

// FuzzOrdinal: a name is that of one server at most, and each server is found by its name.
func FuzzOrdinal(f *testing.F) {
	for _, server := range []string{"", "cache", "cache-0", "cache-10", "cache-01", "cache-+1", "cache--1",
		"cache-proxy-0",
		"cache-0-0", "other-0", "cache-9223372036854775808", "0"} {
		f.Add("cache", server)
	}
	f.Add("", "-0")
	f.Add("cache-0", "cache-0-1")
	f.Fuzz(func(t *testing.T, set, server string) {
		if n := Ordinal(set, server); n < -1 || n >= 0 && fmt.Sprintf("%s-%d", set, n) != server {
			t.Errorf("%q of %q has the ordinal %d", server, set, n)
		}
		if got := Ordinal(set, fmt.Sprintf("%s-%d", set, len(server))); got != len(server) {
			t.Errorf("server %d of %q has the ordinal %d", len(server), set, got)
		}
	})
}
