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
		watch.Delete(f.ctx, event.DeleteEvent{Object: obj}, q)
	} else {
		watch.Update(f.ctx, event.UpdateEvent{ObjectOld: obj, ObjectNew: obj}, q)
	}
	return q.delays
}

// TestDebounce: events are debounced while servers start or are deleted, and lead to a reconcile at once where the
// status must follow.
func TestDebounce(t *testing.T) {
	f := newFixture(t)
	want := func(what string, obj client.Object, deleted bool, want time.Duration) {
		t.Helper()
		if got := f.eventDelays(obj, deleted); !slices.Equal(got, []time.Duration{want}) {
			t.Errorf("%s: got reconciles after %s, want one after %s", what, got, want)
		}
	}
	pod := func(name string) *corev1.Pod {
		p := &corev1.Pod{}
		f.must(f.api.Get(f.ctx, f.key(name), p))
		return p
	}
	f.mustReconcile()
	f.setServersReady(2)
	want("a server that starts", pod("cache-0"), false, steps.Pace)
	want("a Deployment with two of three servers available", get[appsv1.Deployment](f), false, steps.Pace)
	f.setServersReady(3)
	want("a Deployment with all servers available", get[appsv1.Deployment](f), false, availableDelay)
	f.mustReconcile()
	want("a server of a Memcached that is ready", pod("cache-0"), false, 0)
	f.must(f.api.Delete(f.ctx, f.mc))
	f.mustReconcile()
	want("the deletion of a server", pod("cache-0"), true, steps.Pace)
	want("the deletion of the Deployment", get[appsv1.Deployment](f), true, 0)
	f.cached[kindMemcached] = nil
	if got := f.eventDelays(pod("cache-0"), true); len(got) > 0 {
		t.Errorf("a pod of a deleted Memcached: got reconciles after %s, want none", got)
	}
}

// TestChildChanged: of what controllers write into the status of a child, only what the operator reads leads to a
// reconcile.
func TestChildChanged(t *testing.T) {
	t.Parallel()
	deployment := func(change func(*appsv1.Deployment)) (before, after client.Object) {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Generation: 1}}
		changed := d.DeepCopy()
		change(changed)
		return d, changed
	}
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Generation: 1}}
	allowed := budget.DeepCopy()
	allowed.Status.DisruptionsAllowed = 1
	if childChanged(event.UpdateEvent{ObjectOld: budget, ObjectNew: allowed}) {
		t.Error("the status of a PodDisruptionBudget leads to a reconcile")
	}
	if !childChanged(event.UpdateEvent{ObjectOld: &corev1.Service{}, ObjectNew: &corev1.Service{}}) {
		t.Error("a change of a Service, which has no generation, leads to no reconcile")
	}
	for name, tt := range map[string]struct {
		change func(*appsv1.Deployment)
		want   bool
	}{
		"generation": {func(d *appsv1.Deployment) { d.Generation++ }, true},
		"label":      {func(d *appsv1.Deployment) { d.Labels = map[string]string{"a": "b"} }, true},
		"replicas":   {func(d *appsv1.Deployment) { d.Status.Replicas++ }, true},
		"condition": {func(d *appsv1.Deployment) {
			d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing}}
		}, false},
	} {
		before, after := deployment(tt.change)
		if got := childChanged(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != tt.want {
			t.Errorf("%s: got a reconcile: %t, want %t", name, got, tt.want)
		}
	}
}
