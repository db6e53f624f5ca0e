package simulation

import (
	"maps"
	"slices"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/example/memcached-operator/controllers"
)

// queue is the operator's work queue. It holds the time of the next reconcile of the one Memcached.
type queue struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	world *world
	next  *time.Time // nil for none
}

// Add implements workqueue.TypedInterface.
func (q *queue) Add(r reconcile.Request) { q.AddAfter(r, 0) }

// AddAfter implements workqueue.TypedDelayingInterface.
func (q *queue) AddAfter(r reconcile.Request, delay time.Duration) {
	at := q.world.time.Add(delay)
	if r.NamespacedName == q.world.Key && (q.next == nil || at.Before(*q.next)) {
		q.next = &at
	}
}

// take reports whether it is time for the next reconcile, and takes that out of the queue.
func (q *queue) take() bool {
	if q.next == nil || q.next.After(q.world.time) {
		return false
	}
	q.next = nil
	return true
}

// deliver updates the informer cache, and hands the events to the operator's handlers. A kind that folds shows the
// changes of several rounds as one event, or as none.
func (w *world) deliver() {
	w.rounds++
	for _, watch := range w.reconciler.Watches() {
		kind := kindOf(watch.Object)
		before, after := w.delivered[kind], len(w.history)-1-w.lags[kind]
		isFolded := w.folds[kind] > 0 && w.rounds%w.folds[kind] != 0
		if after <= before || isFolded || w.isStuck() && slices.Contains(w.connection.fault.late, kind) {
			continue
		}
		old, seen := w.inCache(kind, w.history[before]), w.inCache(kind, w.history[after])
		w.delivered[kind] = after
		w.handle(watch, old, seen)
	}
}

// inCache returns the objects of a kind, by name, as the informer cache holds them.
func (w *world) inCache(kind string, s state) map[string]client.Object {
	w.Helper()
	all := map[string]client.Object{}
	for _, obj := range s[kind] {
		cached, err := w.cached(kind, obj)
		w.Must(err)
		if cached != nil {
			all[obj.GetName()] = cached
		}
	}
	return all
}

// handle hands the differences between two states of a kind to the operator's handler.
func (w *world) handle(watch controllers.Watch, before, after map[string]client.Object) {
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if after[name] == nil {
			watch.Handler.Delete(w.Ctx, event.DeleteEvent{Object: before[name]}, w.queue)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		switch old, obj := before[name], after[name]; {
		case old == nil:
			watch.Handler.Create(w.Ctx, event.CreateEvent{Object: obj}, w.queue)
		case old.GetResourceVersion() == obj.GetResourceVersion() && old.GetUID() == obj.GetUID():
		default:
			if e := (event.UpdateEvent{ObjectOld: old, ObjectNew: obj}); watch.Changed == nil || watch.Changed(e) {
				watch.Handler.Update(w.Ctx, e, w.queue)
			}
		}
	}
}
