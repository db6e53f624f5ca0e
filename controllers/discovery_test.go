package controllers

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// TestListVersions: whatever happens, each list of servers for clients has a higher version than the lists before, no
// version is that of two lists, and no server of the list stops.
func TestListVersions(t *testing.T) {
	f := ready(t, `{size: 2, workload: StatefulSet, discovery: {removalDelaySeconds: 30}}`)
	config := func() *corev1.ConfigMap { // empty if it is missing
		c := &corev1.ConfigMap{}
		f.Must(client.IgnoreNotFound(f.API.Get(f.Ctx, f.key("cache-discovery"), c)))
		return c
	}
	list := func() contract.List { return contract.ParseList(config().Data[contract.ListFile]) }
	first := list()
	lists, last := map[int64][]string{first.Version: first.Nodes}, first
	stored := []map[string]string{config().Data}
	happens := []func(){
		func() { f.set(fmt.Sprintf(`{"size":%d}`, rand.IntN(5))) },
		func() { f.set(fmt.Sprintf(`{"size":%d}`, 1+rand.IntN(4))) },
		f.restartOperator,
		func() { // somebody restores a list
			old := config()
			old.Data = stored[rand.IntN(len(stored))]
			f.Must(f.API.Update(f.Ctx, old))
		},
		func() { // with another operator process
			f.Must(f.API.Delete(f.Ctx, config()))
			f.restartOperator()
		},
		func() { f.set(`{"serverAddresses":"ClusterIP"}`) },
		func() { f.set(`{"serverAddresses":"DNS"}`) },
		func() {
			if f.exists("cache-0", &corev1.Pod{}) {
				f.lose("cache-0")
			}
		},
		func() {
			f.succeed(func(*v1alpha1.MemcachedSpec) {})
			f.collectPods()
		},
	}
	for n := range 100 {
		happens[rand.IntN(len(happens))]()
		f.round()
		f.until("Ready with a new list", func() bool {
			current := config()
			if now := contract.ParseList(current.Data[contract.ListFile]); now.Version > last.Version {
				if known, ok := lists[now.Version]; ok && !slices.Equal(known, now.Nodes) {
					t.Fatalf("after %d changes: version %d is that of %q and of %q", n, now.Version, known, now.Nodes)
				}
				lists[now.Version], last = now.Nodes, now
				stored = append(stored, current.Data)
			}
			set := &appsv1.StatefulSet{}
			for _, node := range last.Nodes {
				server := node[:len("cache-0")]
				if f.exists("cache", set) && names.Ordinal("cache", server) >= int(*set.Spec.Replicas) {
					t.Fatalf("after %d changes: %d servers run, but clients have %q", n, *set.Spec.Replicas, last.Nodes)
				}
			}
			now := list() // which nobody serves while there are no servers
			return f.isReady() && len(now.Nodes) == int(names.Size(f.mc)) && (now.Version == last.Version || len(now.Nodes) == 0)
		})
	}
	t.Logf("%d lists in %d seconds", len(lists), last.Version-first.Version)
}
