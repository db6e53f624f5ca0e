package e2e

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/tests/cluster"
)

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
				service, err := load[corev1.Service](w, fmt.Sprintf("set-%d", i))
				w.must(err)
				addresses = append(addresses, net.JoinHostPort(service.Spec.ClusterIP, "11211"))
			}
			w.mustListServers("set", addresses...)
			w.mustListServers("named", "named-0.named."+w.ns+".svc:11211", "named-1.named."+w.ns+".svc:11211")
			w.mustHaveServers("set", 4)
			w.mustHaveServers("named", 2)
		})).
		Assess("refuses another workload, and explains the alternative", step(func(w world) {
			for _, spec := range []string{`{"workload":"Deployment"}`, `{"workload":null}`} {
				_, err := w.kubectl("patch", "memcached/named", "--type=merge", "--patch", `{"spec":`+spec+`}`)
				if err == nil || !strings.Contains(err.Error(), "create a Memcached of another name with the new workload") {
					w.Errorf("%s: %v", spec, err)
				}
			}
		})).
		Assess("keeps the address of a server when its pod is replaced", step(func(w world) {
			stopWatch := w.watchServers("set", addresses)
			before := w.uids("set")
			_, err := w.kubectl("delete", "pod/set-1")
			w.must(err)
			w.awaitReady("set")
			after := w.uids("set")
			if after["set-1"] == before["set-1"] {
				w.Error("the pod was not replaced")
			}
			after["set-1"] = before["set-1"]
			w.mustNotReplace(before, after)
			w.mustAnswerAt(addresses)
			stopWatch()
		})).
		Assess("replaces as many servers at a time as the rollout allows", step(func(w world) {
			stopWatch := w.watchServers("set", addresses)
			order := w.awaitRollout("set", 4, 2, 2*time.Second, func() {
				w.merge("set", `{"maxConnections":1025,"rollout":{"maxUnavailable":2,"minReadySeconds":2}}`)
			})
			if want := []string{"set-3", "set-2", "set-1", "set-0"}; !slices.Equal(order, want) {
				w.Errorf("the order was %v, want %v", order, want)
			}
			w.mustAnswerAt(addresses)
			stopWatch()
		})).
		Assess("replaces broken servers first", step(func(w world) {
			stopWatch := w.watchServers("set", addresses)
			w.merge("set", `{"rollout":null,"pod":{"nodeSelector":{"example.com/nowhere":"true"}}}`)
			w.eventually("break the first server", func() error { return w.pending("set-3") })
			_, err := w.kubectl("delete", "pod/set-1")
			w.must(err)
			w.eventually("break another server", func() error { return w.pending("set-1") })
			order := w.awaitRollout("set", 4, 1, 0, func() { w.merge("set", `{"maxConnections":1024,"pod":{"nodeSelector":null}}`) })
			if want := []string{"set-3", "set-1", "set-2", "set-0"}; !slices.Equal(order, want) {
				w.Errorf("the order was %v, want %v", order, want)
			}
			stopWatch()
		})).
		Assess("does not replace the remaining servers of a reverted rollout", step(func(w world) {
			before := w.uids("set")
			w.merge("set", `{"pod":{"nodeSelector":{"example.com/nowhere":"true"}}}`)
			w.eventually("break the first server", func() error { return w.pending("set-3") })
			order := w.awaitRollout("set", 4, 1, 0, func() { w.merge("set", `{"pod":{"nodeSelector":null}}`) })
			if want := []string{"set-3"}; !slices.Equal(order, want) {
				w.Errorf("the order was %v, want %v", order, want)
			}
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
			w.mustHaveServers("set", 2)
			for _, name := range []string{"set-2", "set-3"} {
				if _, err := load[corev1.Service](w, name); !apierrors.IsNotFound(err) {
					w.Errorf("Service %s is left: %v", name, err)
				}
				delete(before, name)
			}
			w.mustNotReplace(before, w.uids("set"))
			w.merge("set", `{"size":3}`)
			w.awaitReady("set")
			w.mustHaveServers("set", 3)
			after := w.uids("set")
			delete(after, "set-2")
			w.mustNotReplace(before, after)
			mc, err := load[v1alpha1.Memcached](w, "set")
			w.must(err)
			if got := mc.Status.Servers; len(got) != 3 || !slices.Equal(got[:2], addresses[:2]) {
				w.Errorf("the servers are %v, want %v and one more", got, addresses[:2])
			}
		})).Feature())
}

// mustListServers fails unless status.servers of a Memcached equals addresses.
func (w world) mustListServers(name string, addresses ...string) {
	w.Helper()
	mc, err := load[v1alpha1.Memcached](w, name)
	w.must(err)
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
		last, err := load[v1alpha1.Memcached](w, name)
		w.must(err)
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

// mustHaveServers fails unless the servers of a Memcached are numbered from 0 to size-1.
func (w world) mustHaveServers(name string, size int) {
	w.Helper()
	uids := w.uids(name)
	for i := range size {
		if uids[fmt.Sprintf("%s-%d", name, i)] == "" {
			w.Errorf("server %d of %s is missing: %v", i, name, uids)
		}
	}
	if len(uids) != size {
		w.Errorf("%s has the servers %v, want %d", name, uids, size)
	}
}

// uids returns the UIDs of the servers of a Memcached by name.
func (w world) uids(name string) map[string]string { return w.uidsOf(name, "server") }

// uidsOf returns the UIDs of the pods of a component of a Memcached by name.
func (w world) uidsOf(name, component string) map[string]string {
	w.Helper()
	pods, err := w.podsOf(name, component)
	w.must(err)
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

// mustAnswerAt fails unless memcached answers at these addresses. It does nothing if pods are simulated.
func (w world) mustAnswerAt(addresses []string) {
	w.Helper()
	if !cluster.RealPods(testCluster.Kind) {
		return
	}
	for _, address := range addresses {
		w.mustStore("store at "+address, memcachedClient{address: address})
	}
}

// slot is the observed state of one server of a StatefulSet, whose pods are replaced over time.
type slot struct {
	uid        types.UID
	present    bool      // and not terminating
	ready      bool      // by its condition
	readySince time.Time // zero for a server from before the rollout
	byKwok     bool      // deleted by a simulated kubelet
}

// rollout observes the replacement of servers by the events of their pods.
type rollout struct {
	world
	maxUnavailable int
	minReady       time.Duration
	slots          map[string]*slot // by name
	order          []string         // in which servers were replaced
}

// awaitRollout runs act, waits until the rollout is complete, and returns the order in which servers were replaced. It
// fails if a server is replaced while too many are unavailable: those that are not ready, and new ones that have been
// ready for less than minReady.
func (w world) awaitRollout(name string, size, maxUnavailable int, minReady time.Duration, act func()) []string {
	w.Helper()
	r := &rollout{w, maxUnavailable, minReady, map[string]*slot{}, nil}
	pods, err := w.servers(name)
	w.must(err)
	for i := range pods {
		r.slots[pods[i].Name] = &slot{uid: pods[i].UID, present: true, ready: readyCondition(&pods[i]) != nil}
	}
	if len(r.slots) != size {
		w.Fatalf("%d servers, want %d", len(r.slots), size)
	}
	events := w.watch(&corev1.PodList{})
	act()
	deadline := time.Now().Add(harness.Patience)
	for {
		select {
		case e := <-events:
			r.observe(e)
			continue
		case <-time.After(100 * time.Millisecond):
		}
		err := r.done(name)
		if err == nil {
			return r.order
		}
		if time.Now().After(deadline) {
			w.Fatalf("replaced %v so far: %v", r.order, err)
		}
	}
}

// done returns nil if the Memcached is ready and the events of all its pods have been observed: the last events may
// arrive after the status is Ready.
func (r *rollout) done(name string) error {
	if err := r.ready(name); err != nil {
		return err
	}
	for pod, uid := range r.uids(name) {
		if s := r.slots[pod]; string(s.uid) != uid || !s.ready {
			return fmt.Errorf("%s was not observed to be ready", pod)
		}
	}
	return nil
}

func (r *rollout) observe(e watch.Event) {
	r.Helper()
	pod, ok := e.Object.(*corev1.Pod)
	if !ok || r.slots[pod.Name] == nil {
		return
	}
	s, deleted := r.slots[pod.Name], e.Type == watch.Deleted || pod.DeletionTimestamp != nil
	switch {
	case pod.UID != s.uid && deleted:
		return // a pod from before
	case pod.UID != s.uid:
		*s = slot{uid: pod.UID, present: true}
	case deleted && s.present:
		wasReady := s.ready
		s.present, s.ready = false, false
		// The simulated kubelets delete by name, sometimes the next pod with that name too, and without a grace period. All
		// other deletions give a running pod a grace period.
		s.byKwok = testCluster.Kind == "kwok" && e.Type == watch.Deleted && pod.Spec.NodeName != ""
		if !s.byKwok {
			r.deleted(pod, wasReady)
		}
		return
	case deleted:
		return
	}
	condition := readyCondition(pod)
	if condition != nil && (!s.ready || !s.readySince.IsZero()) {
		s.readySince = condition.LastTransitionTime.Time
	}
	s.ready = condition != nil
}

// deleted records that a server is replaced, and fails if too many are unavailable at that time.
func (r *rollout) deleted(pod *corev1.Pod, wasReady bool) {
	r.Helper()
	r.order = append(r.order, pod.Name)
	unavailable, at := 0, time.Now()
	if end := pod.DeletionTimestamp; end != nil {
		at = end.Add(-time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second)
	}
	for _, s := range r.slots {
		if !s.byKwok && (!s.ready || at.Sub(s.readySince) < r.minReady) {
			unavailable++
		}
	}
	if wasReady && unavailable > r.maxUnavailable {
		r.Errorf("%s was deleted as unavailable server number %d, want at most %d", pod.Name, unavailable, r.maxUnavailable)
	}
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
