package controllers

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// paces is a queue that records the delays of requests.
type paces struct {
	queue
	after []time.Duration
}

func (p *paces) Add(reconcile.Request) { p.after = append(p.after, 0) }

func (p *paces) AddAfter(_ reconcile.Request, after time.Duration) { p.after = append(p.after, after) }

// watched sends an update or delete event for an object to the watch of children.
func (f *fixture) watched(obj client.Object, deleted bool) *paces {
	watch, q := f.r.toOwner(), &paces{}
	if deleted {
		watch.Delete(f.ctx, event.DeleteEvent{Object: obj}, q)
	} else {
		watch.Update(f.ctx, event.UpdateEvent{ObjectOld: obj, ObjectNew: obj}, q)
	}
	return q
}

// TestDebounce: changes are reconciled together while servers start or are deleted, and at once where the status must
// follow.
func TestDebounce(t *testing.T) {
	f := newFixture(t)
	want := func(what string, obj client.Object, deleted bool, want time.Duration) {
		t.Helper()
		if q := f.watched(obj, deleted); len(q.after) != 1 || q.after[0] != want {
			t.Errorf("%s is reconciled after %s, want %s", what, q.after, want)
		}
	}
	pod := func(name string) *corev1.Pod {
		p := &corev1.Pod{}
		f.must(f.api.Get(f.ctx, f.key(name), p))
		return p
	}
	f.mustReconcile()
	f.roll(2)
	want("a server that starts", pod("cache-0"), false, debounce)
	want("a Deployment with two of three servers", get[appsv1.Deployment](f), false, debounce)
	f.roll(3)
	want("a Deployment with all servers", get[appsv1.Deployment](f), false, availableDebounce)
	f.mustReconcile()
	want("a server of one that is ready", pod("cache-0"), false, 0)
	f.must(f.api.Delete(f.ctx, f.mc))
	f.mustReconcile()
	want("the deletion of a server", pod("cache-0"), true, debounce)
	want("the deletion of the Deployment", get[appsv1.Deployment](f), true, 0)
	f.cached[kindMemcached] = nil
	if q := f.watched(pod("cache-0"), true); len(q.after) != 0 {
		t.Error("what is left of a deleted Memcached is reconciled")
	}
}
