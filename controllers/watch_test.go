package controllers

import (
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/steps"
)

// delayRecorder is a queue that records how long requests are delayed.
type delayRecorder struct {
	queue
	delays []time.Duration
}

func (r *delayRecorder) Add(reconcile.Request) { r.delays = append(r.delays, 0) }

func (r *delayRecorder) AddAfter(_ reconcile.Request, delay time.Duration) {
	r.delays = append(r.delays, delay)
}

// eventDelays sends an update or delete event for a child or pod to its watch. It returns the delays of the requests
// that the watch enqueues.
func (f *fixture) eventDelays(obj client.Object, deleted bool) []time.Duration {
	watch, q := f.r.toOwner(), &delayRecorder{}
	if deleted {
		watch.Delete(f.Ctx, event.DeleteEvent{Object: obj}, q)
	} else {
		watch.Update(f.Ctx, event.UpdateEvent{ObjectOld: obj, ObjectNew: obj}, q)
	}
	return q.delays
}

// TestDebounce: events are debounced while servers start or are deleted, and lead to a reconcile at once where the
// status must follow.
func TestDebounce(t *testing.T) {
	f := newFixture(t, onDeployment)
	want := func(what string, obj client.Object, deleted bool, want ...time.Duration) {
		t.Helper()
		if got := f.eventDelays(obj, deleted); !slices.Equal(got, want) {
			t.Errorf("%s: got reconciles after %s, want them after %s", what, got, want)
		}
	}
	f.mustReconcile()
	f.act()
	f.act()
	pod := f.pods("")[0]
	want("a server that starts", pod, false, steps.Pace)
	want("a Deployment with no server available", get[appsv1.Deployment](f), false, steps.Pace)
	f.act()
	want("a Deployment with all servers available", get[appsv1.Deployment](f), false, availableDelay)
	f.settle()
	want("a server of a Memcached that is ready", pod, false, 0)
	f.delete(metav1.DeletePropagationBackground)
	f.mustReconcile()
	want("the deletion of a server", pod, true, steps.Pace)
	want("the deletion of the Deployment", get[appsv1.Deployment](f), true, 0)
	f.cached[kindMemcached] = nil
	want("a pod of a deleted Memcached", pod, true)
}

// TestChanged: of what users, kubelets and controllers write, only what the operator reads leads to a reconcile. Our
// own status leads to none, the status of another manager and a Memcached that replaced one of the same name between
// two events do.
func TestChanged(t *testing.T) {
	t.Parallel()
	r := &MemcachedReconciler{}
	memcached := &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Name: "cache", UID: "uid", ResourceVersion: "1"}}
	version := "2"
	r.states.get(memcached).statusVersion.Store(&version)
	of := func(o client.Object) *v1alpha1.Memcached { return o.(*v1alpha1.Memcached) }
	status := func(o client.Object) { of(o).Status.Phase, of(o).ResourceVersion = v1alpha1.PhaseReady, version }
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Generation: 1}}
	generation := func(o client.Object) { o.SetGeneration(o.GetGeneration() + 1) }
	labels := func(o client.Object) { o.SetLabels(map[string]string{"a": "b"}) }
	pod, budget := &corev1.Pod{}, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Generation: 1}}
	for name, tt := range map[string]struct {
		changed func(event.UpdateEvent) bool
		before  client.Object
		change  func(client.Object)
		want    bool
	}{
		"our status": {r.needsReconcile, memcached, status, false},
		"status of another": {r.needsReconcile, memcached,
			func(o client.Object) { status(o); o.SetResourceVersion("3") }, true},
		"successor":           {r.needsReconcile, memcached, func(o client.Object) { o.SetUID("other") }, true},
		"labels of Memcached": {r.needsReconcile, memcached, labels, false},
		"annotations": {r.needsReconcile, memcached, func(o client.Object) {
			o.SetAnnotations(map[string]string{"a": "b"})
		}, true},
		"finalizers":       {r.needsReconcile, memcached, func(o client.Object) { o.SetFinalizers([]string{"a"}) }, true},
		"spec":             {r.needsReconcile, memcached, generation, true},
		"version of a pod": {podChanged, pod, func(o client.Object) { o.SetResourceVersion("2") }, false},
		"terminating pod": {podChanged, pod, func(o client.Object) {
			o.SetDeletionTimestamp(&metav1.Time{Time: time.Now()})
		}, true},
		"adopted pod": {podChanged, pod, func(o client.Object) {
			o.SetOwnerReferences([]metav1.OwnerReference{{UID: "rs"}})
		}, true},
		"labels of a pod": {podChanged, pod, labels, true},
		"status of a pod": {podChanged, pod, func(o client.Object) {
			o.(*corev1.Pod).Status.Phase = corev1.PodRunning
		}, true},
		"Service": {childChanged, &corev1.Service{}, func(client.Object) {}, true},
		"status of a budget": {childChanged, budget, func(o client.Object) {
			o.(*policyv1.PodDisruptionBudget).Status.DisruptionsAllowed = 1
		}, false},
		"spec of a Deployment":   {childChanged, deployment, generation, true},
		"labels of a Deployment": {childChanged, deployment, labels, true},
		"replicas of a Deployment": {childChanged, deployment, func(o client.Object) {
			o.(*appsv1.Deployment).Status.Replicas++
		}, true},
		"condition of a Deployment": {childChanged, deployment, func(o client.Object) {
			o.(*appsv1.Deployment).Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing}}
		}, false},
	} {
		after := tt.before.DeepCopyObject().(client.Object)
		tt.change(after)
		if got := tt.changed(event.UpdateEvent{ObjectOld: tt.before, ObjectNew: after}); got != tt.want {
			t.Errorf("%s: got a reconcile: %t, want %t", name, got, tt.want)
		}
	}
}
