package e2e

import (
	"fmt"
	"net"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/tests/cluster"
)

// TestStatefulSet: addresses outlive the pods behind them. In tests/chaos, servers are replaced one by one, and
// controllers/steps has the order.
func TestStatefulSet(t *testing.T) {
	needMoreTime(t)
	t.Parallel()
	var addresses []string
	testEnv.Test(t, features.New("a StatefulSet").
		Setup(step(func(w world) {
			w.createSpec("set", `{size: 4, workload: StatefulSet, serverAddresses: ClusterIP, `+smallServer+`}`)
			w.createSpec("named", `{size: 2, workload: StatefulSet, `+smallServer+`}`)
			w.awaitReady("set", "named")
		})).
		Assess("lists its servers in order", step(func(w world) {
			for i := range 4 {
				service := get[corev1.Service](w, fmt.Sprintf("set-%d", i))
				addresses = append(addresses, net.JoinHostPort(service.Spec.ClusterIP, "11211"))
			}
			w.mustListServers("set", addresses...)
			w.mustListServers("named", "named-0.named."+w.ns+".svc:11211", "named-1.named."+w.ns+".svc:11211")
		})).
		Assess("keeps the addresses of servers that are deleted, or replaced in a rollout", step(func(w world) {
			stopWatch := w.watchServers("set", addresses)
			before := w.uids("set")
			w.mustKubectl("delete", "pod/set-1")
			w.awaitReady("set")
			after := w.uids("set")
			if after["set-1"] == before["set-1"] {
				w.Error("the pod was not replaced")
			}
			after["set-1"] = before["set-1"]
			w.mustNotReplace(before, after)
			before = w.uids("set")
			w.merge("set", `{"maxConnections":1025,"rollout":{"maxUnavailable":2,"minReadySeconds":2}}`)
			w.awaitReady("set")
			w.mustReplaceAll(before, "set")
			for _, address := range addresses {
				if cluster.RealPods(testCluster.Kind) {
					w.mustStore("store at "+address, memcachedClient{address: address})
				}
			}
			stopWatch()
		})).
		Assess("does not replace the remaining servers of a reverted rollout", step(func(w world) {
			before := w.uids("set")
			w.merge("set", `{"rollout":null,"pod":{"nodeSelector":{"example.com/nowhere":"true"}}}`)
			w.eventually("break the first server", func() error { return w.pending("set-3") })
			w.merge("set", `{"pod":{"nodeSelector":null}}`)
			w.awaitReady("set")
			after := w.uids("set")
			delete(before, "set-3")
			delete(after, "set-3")
			w.mustNotReplace(before, after)
		})).
		Assess("removes and adds the servers with the highest numbers", step(func(w world) {
			before := w.uids("set")
			w.merge("set", `{"size":2}`)
			w.awaitReady("set")
			w.mustListServers("set", addresses[:2]...)
			for _, name := range []string{"set-2", "set-3"} {
				if _, err := load[corev1.Service](w, name); !apierrors.IsNotFound(err) {
					w.Errorf("Service %s is left: %v", name, err)
				}
				delete(before, name)
			}
			w.mustNotReplace(before, w.uids("set"))
			w.merge("set", `{"size":3}`)
			w.awaitReady("set")
			after := w.uids("set")
			delete(after, "set-2")
			w.mustNotReplace(before, after)
			if got := w.memcached("set").Status.Servers; len(got) != 3 || !slices.Equal(got[:2], addresses[:2]) {
				w.Errorf("the servers are %v, want %v and one more", got, addresses[:2])
			}
		})).Feature())
}

// mustListServers fails unless status.servers of a Memcached equals addresses.
func (w world) mustListServers(name string, addresses ...string) {
	w.Helper()
	mc := w.memcached(name)
	if !slices.Equal(mc.Status.Servers, addresses) {
		w.Errorf("the servers of %s are %v, want %v", name, mc.Status.Servers, addresses)
	}
}

// watchServers watches status.servers of a Memcached. The returned function stops the watch, and fails if
// status.servers ever differed from addresses.
func (w world) watchServers(name string, addresses []string) (end func()) {
	w.Helper()
	events := w.watch(&v1alpha1.MemcachedList{})
	return func() {
		w.Helper()
		last := w.memcached(name)
		w.merge(name, fmt.Sprintf(`{"rollout":{"progressDeadlineSeconds":%d}}`, last.Spec.Rollout.ProgressDeadlineSeconds+1))
		await(w, events, "the last change is observed", func(_ watch.EventType, mc *v1alpha1.Memcached) bool {
			if mc.Name == name && !slices.Equal(mc.Status.Servers, addresses) {
				w.Errorf("the servers of %s were %v, want %v", name, mc.Status.Servers, addresses)
			}
			return mc.Name == name && mc.Generation > last.Generation
		})
		w.awaitReady(name)
	}
}

// uids returns the UIDs of the servers of a Memcached by name.
func (w world) uids(name string) map[string]string { return w.uidsOf(name, "server") }

// uidsOf returns the UIDs of the pods of a component of a Memcached by name.
func (w world) uidsOf(name, component string) map[string]string {
	w.Helper()
	pods := w.podsOf(name, component)
	uids := map[string]string{}
	for i := range pods {
		uids[pods[i].Name] = string(pods[i].UID)
	}
	return uids
}

func (w world) mustNotReplace(before, after map[string]string) {
	w.Helper()
	if err := differ(before, after); err != nil {
		w.Errorf("servers were replaced: %v", err)
	}
}

// pending returns nil if a pod cannot be scheduled.
func (w world) pending(name string) error {
	pod, err := load[corev1.Pod](w, name)
	if err != nil {
		return err
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && pod.DeletionTimestamp == nil {
			return nil
		}
	}
	return fmt.Errorf("%s is %s", name, pod.Status.Phase)
}

// readyCondition returns the condition Ready of a pod if it is True; otherwise nil.
func readyCondition(pod *corev1.Pod) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}
