package steps

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
)

const (
	stored      int64 = 1700000000 // the version that clients have
	removalTime       = 150 * time.Second
)

// discoverable is a view of servers that clients discover, whose ConfigMap lists the first ones by their names since a
// long time. All were ready before.
func discoverable(listed int, servers ...*server) View {
	v := viewOf(servers...)
	v.Memcached.Namespace = "ns"
	v.Memcached.Spec.Workload, v.Memcached.Spec.ContainerPort = v1alpha1.WorkloadStatefulSet, 11211
	v.Memcached.Spec.Discovery = &v1alpha1.DiscoverySpec{RemovalDelaySeconds: ptr.To(int32(removalTime.Seconds()))}
	v.Memcached.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionDegraded,
		Reason: v1alpha1.ReasonAsExpected}}
	v.List = listOf(stored, listed)
	v.Published = v.Now.Add(-time.Hour)
	return v
}

func listOf(version int64, servers int) contract.List {
	list := contract.List{Version: version}
	for n := range servers {
		list.Nodes = append(list.Nodes, fmt.Sprintf("cache-%[1]d.cache.ns.svc|cache-%[1]d.cache.ns.svc|11211", n))
	}
	return list
}

// resized returns the view with another size than the StatefulSet has.
func (v View) resized(size int32) View {
	v.statefulSet().Spec.Replicas = ptr.To(*v.Memcached.Spec.Size)
	v.Memcached.Spec.Size = ptr.To(size)
	return v
}

// with returns the view after changes.
func (v View) with(changes ...func(*View)) View {
	v.Memcached = v.Memcached.DeepCopy()
	for _, change := range changes {
		change(&v)
	}
	return v
}

func withProxy(ready bool) func(*View) {
	return func(v *View) {
		v.Memcached.Spec.Proxy = &v1alpha1.ProxySpec{}
		pod := updated()
		if !ready {
			pod.notReady()
		}
		v.Proxies = []*corev1.Pod{&pod.Pod}
	}
}

func clusterIP(v *View) { v.Memcached.Spec.ServerAddresses = v1alpha1.AddressesClusterIP }

func installing(v *View) { v.Memcached.Status.Conditions = nil }

func noService(v *View) {
	v.Service = func(string) (*corev1.Service, bool) { return nil, v.Memcached.Spec.Proxy == nil }
}

func paused(v *View) { v.Memcached.Spec.Paused = true }

func noList(v *View) { v.List, v.Published = contract.List{}, time.Time{} }

func TestNextList(t *testing.T) {
	t.Parallel()
	const same, both = stored, "cache-0 cache-1"
	next := now.Unix()
	two := func() View { return discoverable(2, updated(), updated()) }
	for name, c := range map[string]struct {
		view       View
		version    int64
		nodes      string // names, or all after the first |
		minServers int32
	}{
		"no discovery":          {view: two().with(func(v *View) { v.Memcached.Spec.Discovery = nil })},
		"nothing changes":       {two(), same, both, 0},
		"new, not ready":        {view: discoverable(0, updated(), updated().notReady()).with(noList, installing)},
		"new, all ready":        {two().with(noList, installing), next, both, 2},
		"new, and made smaller": {view: two().with(noList, installing).resized(3)},
		"discovery added":       {two().with(noList), next, both, 2},
		"a server is lost":      {discoverable(2, updated(), updated().notReady()), same, both, 0},
		"all are lost":          {discoverable(2, missing, missing), same, both, 0},
		"added, not ready":      {discoverable(1, updated(), updated().notReady()), same, "cache-0", 0},
		"added, ready":          {discoverable(1, updated(), updated()), next, both, 2},
		"one removed":           {two().resized(1), next, "cache-0", 2},
		"one removed, just now": {discoverable(1, updated(), updated()).resized(1).with(func(v *View) {
			v.Published = v.Now
		}), same, "cache-0", 2},
		"one removed, the delay is over": {discoverable(1, updated(), updated()).resized(1), same, "cache-0", 0},
		"removed, while another one is lost": {discoverable(3, updated(), updated().notReady(), updated()).resized(2), next,
			both, 3},
		"all removed":                       {two().resized(0), next, "", 2},
		"more, after none, not ready":       {discoverable(0, updated(), missing), same, "", 0},
		"the ConfigMap is lost":             {discoverable(2, updated(), missing).with(noList), next, both, 2},
		"lost, while a server is added":     {two().resized(3).with(noList), next, both, 2},
		"an older list is restored":         {discoverable(2, annotated(stored), updated()).with(restored), next, both, 2},
		"restored and paused":               {two().with(restored, paused), stored - 1, both, 0},
		"clients have a list of the future": {discoverable(1, annotated(next+5), updated()), next + 6, both, 2},
		"the largest version": {discoverable(1, annotated(contract.MaxVersion), updated()).with(func(v *View) {
			v.List = listOf(contract.MaxVersion, 1)
		}), contract.MaxVersion, both, 2},
		"somebody lists a server beyond the size": {discoverable(9, updated(), updated().notReady()), next, both, 2},
		"addresses": {two().with(clusterIP), next, "10.0.0.1 10.0.0.1", 2},
		"addresses, one lost": {discoverable(2, updated(), updated().notReady()).with(clusterIP), next,
			"10.0.0.1 10.0.0.1", 2},
		"addresses, none yet":     {two().with(clusterIP, noService), same, both, 0},
		"a ready proxy":           {two().with(withProxy(true)), next, "cache-proxy", 2},
		"no ready proxy":          {two().with(withProxy(false)), same, both, 0},
		"a proxy and one less":    {two().with(withProxy(false)).resized(1), same, both, 2},
		"a proxy without address": {two().with(withProxy(true), noService), same, both, 0},
		"servers behind a proxy are lost": {discoverable(2, updated(), missing).with(withProxy(true)), next, "cache-proxy",
			2},
	} {
		list, published, minServers := NextList(c.view)
		var nodes []string
		for _, node := range list.Nodes {
			parts := strings.Split(node, "|")
			if !strings.HasPrefix(parts[1], "10.") {
				parts[1] = nameOf(node)
			}
			nodes = append(nodes, parts[1])
		}
		if list.Version != c.version || strings.Join(nodes, " ") != c.nodes || minServers != c.minServers {
			t.Errorf("%s: got version %d, nodes %q and %d servers, want %d, %q and %d", name, list.Version, nodes, minServers,
				c.version, c.nodes, c.minServers)
		}
		want := c.view.Published
		if !slices.Equal(list.Nodes, c.view.List.Nodes) || list.Version != c.view.List.Version {
			want = now
		}
		if c.view.Memcached.Spec.Discovery != nil && c.version != 0 && !published.Equal(want) {
			t.Errorf("%s: published at %s, want %s", name, published, want)
		}
	}
}

// TestPublished: a server that leaves the list serves for the whole delay, whatever time somebody has written.
func TestPublished(t *testing.T) {
	t.Parallel()
	for _, written := range []time.Time{{}, now.Add(time.Hour)} {
		v := discoverable(1, updated(), updated()).resized(1)
		v.Published = written
		if _, published, _ := NextList(v); !published.Equal(now) {
			t.Errorf("%s becomes %s", written, published)
		}
	}
}

// restored says that somebody has restored the list before the one that the kubelets know.
func restored(v *View) { v.List = listOf(stored-1, 2) }

// annotated is a server whose kubelet was told of a version.
func annotated(version int64) *server {
	return updated().annotated(v1alpha1.DiscoveryAnnotation, strconv.FormatInt(version, 10))
}

// TestPublish: the kubelets of servers are told of a new list, and the operator looks again when the delay is over.
func TestPublish(t *testing.T) {
	t.Parallel()
	knows := func() *server { return annotated(stored) }
	for name, c := range map[string]struct {
		view View
		told []string
		wait time.Duration
	}{
		"all know it":  {view: discoverable(2, knows(), knows())},
		"one does not": {view: discoverable(2, knows(), updated()), told: []string{"cache-1"}},
		"terminating":  {view: discoverable(1, knows(), updated().terminating())},
		"paused":       {view: discoverable(2, updated(), updated()).with(paused)},
		"no list":      {view: discoverable(2, updated(), updated()).with(noList)},
		"removal": {view: discoverable(1, knows(), knows()).resized(1).with(func(v *View) {
			v.Published = v.Now.Add(-50 * time.Second)
		}), wait: 100 * time.Second},
	} {
		s, _ := chores(c.view)
		var told []string
		for _, a := range s.Annotate {
			if a.Key == v1alpha1.DiscoveryAnnotation {
				told = append(told, a.Pod.Name)
			}
		}
		if !slices.Equal(told, c.told) || s.Wait != c.wait {
			t.Errorf("%s: told %q and waits %s, want %q and %s", name, told, s.Wait, c.told, c.wait)
		}
	}
}
