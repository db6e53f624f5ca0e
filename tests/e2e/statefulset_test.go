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
	"github.com/example/memcached-operator/tests/harness"
)

func TestStatefulSet(t *testing.T) {
	var addresses []string
	testEnv.Test(t, features.New("a StatefulSet").
		Setup(step(func(w world) {
			w.make("set", `{size: 4, workload: StatefulSet, serverAddresses: ClusterIP, `+frugal+`}`)
			w.make("named", `{size: 2, workload: StatefulSet, `+frugal+`}`)
			w.awaitReady("set", "named")
		})).
		Assess("lists its servers in their order", step(func(w world) {
			for i := range 4 {
				service, err := load[corev1.Service](w, fmt.Sprintf("set-%d", i))
				w.must(err)
				addresses = append(addresses, net.JoinHostPort(service.Spec.ClusterIP, "11211"))
			}
			w.lists("set", addresses...)
			w.lists("named", "named-0.named."+w.ns+".svc:11211", "named-1.named."+w.ns+".svc:11211")
			w.numbered("set", 4)
			w.numbered("named", 2)
		})).
		Assess("keeps the workload, and says how to have another", step(func(w world) {
			for _, spec := range []string{`{"workload":"Deployment"}`, `{"workload":null}`} {
				_, err := w.kubectl("patch", "memcached/named", "--type=merge", "--patch", `{"spec":`+spec+`}`)
				if err == nil || !strings.Contains(err.Error(), "create a Memcached of another name with the new workload") {
					w.Errorf("%s: %v", spec, err)
				}
			}
		})).
		Assess("keeps the address of a server whose pod is replaced", step(func(w world) {
			stays := w.staysListed("set", addresses)
			before := w.uids("set")
			_, err := w.kubectl("delete", "pod/set-1")
			w.must(err)
			w.awaitReady("set")
			after := w.uids("set")
			if after["set-1"] == before["set-1"] {
				w.Error("the pod was not replaced")
			}
			after["set-1"] = before["set-1"]
			w.same(before, after)
			w.answerAt(addresses)
			stays()
		})).
		Assess("replaces as many servers at a time as the rollout allows, and waits for them", step(func(w world) {
			stays := w.staysListed("set", addresses)
			order := w.replaced("set", 4, 2, 2*time.Second, func() {
				w.merge("set", `{"memory":"17Mi","rollout":{"maxUnavailable":2,"minReadySeconds":2}}`)
			})
			if want := []string{"set-3", "set-2", "set-1", "set-0"}; !slices.Equal(order, want) {
				w.Errorf("the order was %v, want %v", order, want)
			}
			w.answerAt(addresses)
			stays()
		})).
		Assess("replaces broken servers first, at no cost", step(func(w world) {
			stays := w.staysListed("set", addresses)
			w.merge("set", `{"rollout":null,"pod":{"nodeSelector":{"example.com/nowhere":"true"}}}`)
			w.eventually("break the first server", func() error { return w.pending("set-3") })
			_, err := w.kubectl("delete", "pod/set-1")
			w.must(err)
			w.eventually("break another one", func() error { return w.pending("set-1") })
			order := w.replaced("set", 4, 1, 0, func() { w.merge("set", `{"memory":"16Mi","pod":{"nodeSelector":null}}`) })
			if want := []string{"set-3", "set-1", "set-2", "set-0"}; !slices.Equal(order, want) {
				w.Errorf("the order was %v, want %v", order, want)
			}
			stays()
		})).
		Assess("leaves alone what a rollout that is taken back has not reached", step(func(w world) {
			before := w.uids("set")
			w.merge("set", `{"pod":{"nodeSelector":{"example.com/nowhere":"true"}}}`)
			w.eventually("break the first server", func() error { return w.pending("set-3") })
			order := w.replaced("set", 4, 1, 0, func() { w.merge("set", `{"pod":{"nodeSelector":null}}`) })
			if want := []string{"set-3"}; !slices.Equal(order, want) {
				w.Errorf("the order was %v, want %v", order, want)
			}
			after := w.uids("set")
			delete(before, "set-3")
			delete(after, "set-3")
			w.same(before, after)
		})).
		Assess("shrinks from the end, and grows there", step(func(w world) {
			before := w.uids("set")
			w.merge("set", `{"size":2}`)
			w.awaitReady("set")
			w.lists("set", addresses[:2]...)
			w.numbered("set", 2)
			for _, gone := range []string{"set-2", "set-3"} {
				if _, err := load[corev1.Service](w, gone); !apierrors.IsNotFound(err) {
					w.Errorf("Service %s is left: %v", gone, err)
				}
				delete(before, gone)
			}
			w.same(before, w.uids("set"))
			w.merge("set", `{"size":3}`)
			w.awaitReady("set")
			w.numbered("set", 3)
			after := w.uids("set")
			delete(after, "set-2")
			w.same(before, after)
			mc, err := load[v1alpha1.Memcached](w, "set")
			w.must(err)
			if got := mc.Status.Servers; len(got) != 3 || !slices.Equal(got[:2], addresses[:2]) {
				w.Errorf("the servers are %v, want %v and one more", got, addresses[:2])
			}
		})).Feature())
}

// lists fails unless the status of a Memcached has these addresses.
func (w world) lists(name string, addresses ...string) {
	w.Helper()
	mc, err := load[v1alpha1.Memcached](w, name)
	w.must(err)
	if !slices.Equal(mc.Status.Servers, addresses) {
		w.Errorf("the servers of %s are %v, want %v", name, mc.Status.Servers, addresses)
	}
}

// staysListed watches the addresses of a Memcached; what it returns ends that, and fails if they changed meanwhile.
func (w world) staysListed(name string, addresses []string) (end func()) {
	w.Helper()
	events := w.watch(&v1alpha1.MemcachedList{})
	return func() {
		w.Helper()
		last, err := load[v1alpha1.Memcached](w, name)
		w.must(err)
		w.merge(name, fmt.Sprintf(`{"rollout":{"progressDeadlineSeconds":%d}}`, last.Spec.Rollout.ProgressDeadlineSeconds+1))
		await(w, events, "the end is seen", func(_ watch.EventType, mc *v1alpha1.Memcached) bool {
			if mc.Name == name && !slices.Equal(mc.Status.Servers, addresses) {
				w.Errorf("the servers of %s were %v, want %v", name, mc.Status.Servers, addresses)
			}
			return mc.Name == name && mc.Generation > last.Generation
		})
		w.awaitReady(name)
	}
}

// numbered fails unless the servers of a Memcached are those from 0 on.
func (w world) numbered(name string, size int) {
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

// uids are those of the servers of a Memcached, by name.
func (w world) uids(name string) map[string]string { return w.uidsOf(name, "server") }

// uidsOf are those of the pods of a component of a Memcached, by name.
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

func (w world) same(before, after map[string]string) {
	w.Helper()
	if err := differ(before, after); err != nil {
		w.Errorf("servers were replaced: %v", err)
	}
}

// pending returns nil if a pod finds no node.
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

// answerAt fails unless memcached answers at these addresses, where pods are real.
func (w world) answerAt(addresses []string) {
	w.Helper()
	if under.Kind != "node" {
		return
	}
	for _, address := range addresses {
		w.stores("store at "+address, caller{address: address})
	}
}

// slot is a place for a server of a StatefulSet, as its pods are seen to come and go.
type slot struct {
	uid        types.UID
	there      bool      // and not about to go
	ready      bool      // as the kubelet says
	readySince time.Time // zero for a server that was there before
	byKwok     bool      // that it is not there
}

// rollout is the replacement of servers, as the events of their pods show it.
type rollout struct {
	world
	maxUnavailable int
	minReady       time.Duration
	slots          map[string]*slot // by name
	order          []string         // in which servers were replaced
}

// replaced has servers replaced, and returns in which order. It fails if one is replaced while too many are away: those
// that are not ready, and new ones that have not been ready for the time that they have to.
func (w world) replaced(name string, size, maxUnavailable int, minReady time.Duration, act func()) []string {
	w.Helper()
	r := &rollout{w, maxUnavailable, minReady, map[string]*slot{}, nil}
	pods, err := w.servers(name)
	w.must(err)
	for i := range pods {
		r.slots[pods[i].Name] = &slot{uid: pods[i].UID, there: true, ready: readyCondition(&pods[i]) != nil}
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
			r.see(e)
			continue
		case <-time.After(100 * time.Millisecond):
		}
		err := r.done(name)
		if err == nil {
			return r.order
		}
		if time.Now().After(deadline) {
			w.Fatalf("replaced %v: %v", r.order, err)
		}
	}
}

// done returns nil if all is as it should be, and was seen to be so: the last events come after the status that says
// Ready.
func (r *rollout) done(name string) error {
	if err := r.ready(name); err != nil {
		return err
	}
	for pod, uid := range r.uids(name) {
		if s := r.slots[pod]; string(s.uid) != uid || !s.ready {
			return fmt.Errorf("%s was not seen to be ready", pod)
		}
	}
	return nil
}

func (r *rollout) see(e watch.Event) {
	r.Helper()
	pod, ok := e.Object.(*corev1.Pod)
	if !ok || r.slots[pod.Name] == nil {
		return
	}
	s, goes := r.slots[pod.Name], e.Type == watch.Deleted || pod.DeletionTimestamp != nil
	switch {
	case pod.UID != s.uid && goes:
		return // made and deleted by others before
	case pod.UID != s.uid:
		*s = slot{uid: pod.UID, there: true}
	case goes && s.there:
		wasReady := s.ready
		s.there, s.ready = false, false
		// The simulated kubelets delete by name: at times also the next pod of that name, and at once. Whoever deletes in
		// order gives a pod that runs time to end.
		s.byKwok = under.Kind == "kwok" && e.Type == watch.Deleted && pod.Spec.NodeName != ""
		if !s.byKwok {
			r.deleted(pod, wasReady)
		}
		return
	case goes:
		return
	}
	condition := readyCondition(pod)
	if condition != nil && (!s.ready || !s.readySince.IsZero()) {
		s.readySince = condition.LastTransitionTime.Time
	}
	s.ready = condition != nil
}

// deleted notes that a server is replaced, and fails if too many are away then.
func (r *rollout) deleted(pod *corev1.Pod, wasReady bool) {
	r.Helper()
	r.order = append(r.order, pod.Name)
	away, at := 0, time.Now()
	if end := pod.DeletionTimestamp; end != nil {
		at = end.Add(-time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second)
	}
	for _, s := range r.slots {
		if !s.byKwok && (!s.ready || at.Sub(s.readySince) < r.minReady) {
			away++
		}
	}
	if wasReady && away > r.maxUnavailable {
		r.Errorf("%s was deleted as number %d of those that are away, want at most %d", pod.Name, away, r.maxUnavailable)
	}
}

// readyCondition is the condition that says that a pod is ready; nil where it is not.
func readyCondition(pod *corev1.Pod) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}
