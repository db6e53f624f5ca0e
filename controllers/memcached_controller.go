// Package controllers turns Memcached objects into memcached servers.
//
// Data flows one way: the object and what the cache shows of its children come in, desired says what the children
// should be, children applies what differs, and status says how things stand.
package controllers

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

// +kubebuilder:rbac:groups=cache.example.com,resources=memcacheds,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=cache.example.com,resources=memcacheds/status,verbs=patch
// +kubebuilder:rbac:groups=cache.example.com,resources=memcacheds/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch;patch;delete
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

const (
	// firstRetry and lastRetry bound the time until an error is tried again. It doubles each time; the longest is what a
	// person who has just removed the cause waits for.
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second
	// stalledRetry is the time until a stalled Memcached is looked at again: neither the objects of others that hold a
	// name, nor the policies that refuse a child, are watched.
	stalledRetry = time.Minute
	// staleRetry is the time until the cache is looked at again that is older than our own write.
	staleRetry = 50 * time.Millisecond
	// raceRetry is the time until an object is looked at again that changed under our hands; usually its event comes
	// first.
	raceRetry = time.Second
	// leftRetry is the time until a child of a deleted predecessor is looked at again; usually the event of its end comes
	// first.
	leftRetry = 5 * time.Second
	// restAfter is how long after the last one of a crowd of reconciles memory is given back. The operator is idle most of
	// its life, and a crowd leaves garbage of as much memory again as all objects take.
	restAfter = 5 * time.Second
	// crowd is the number of reconciles that leave garbage worth a search of all memory.
	crowd = 50
)

// MemcachedReconciler reconciles Memcached objects.
type MemcachedReconciler struct {
	// Client reads from the cache that CacheOptions configure, and writes.
	Client client.Client
	// APIReader reads what the cache does not hold.
	APIReader client.Reader
	// Recorder takes the events.
	Recorder events.EventRecorder
	// Options are those that reach the servers.
	Options desired.Options
	// Now is the clock; time.Now by default.
	Now func() time.Time

	memories memories
	rest     *time.Timer  // that ends when nothing was reconciled for a while; nil for none
	worked   atomic.Int64 // reconciles since memory was given back
}

// SetupWithManager registers the reconciler; at most concurrency objects are reconciled at the same time.
func (r *MemcachedReconciler) SetupWithManager(mgr ctrl.Manager, concurrency int) error {
	if r.Now == nil {
		r.Now = time.Now
	}
	r.rest = time.AfterFunc(restAfter, func() {
		r.worked.Store(0)
		debug.FreeOSMemory()
	})
	if err := childSet(r.Client, r.APIReader).SetupIndexes(context.Background(), mgr.GetFieldIndexer(),
		&corev1.Pod{}); err != nil {
		return err
	}
	b := ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.Memcached{}, builder.WithPredicates(predicate.Funcs{UpdateFunc: r.needsReconcile,
			DeleteFunc: r.remembered})).
		Watches(&corev1.Pod{}, r.toOwner(), builder.WithPredicates(predicate.Funcs{UpdateFunc: podChanged}))
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Memcached{}, bySecret,
		secretNames); err != nil {
		return fmt.Errorf("index Memcacheds by Secret: %w", err)
	}
	b = b.WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.requestsOfSecret))
	for _, kind := range childKinds {
		b = b.Watches(kind.Object, r.toOwner(), builder.WithPredicates(predicate.Funcs{UpdateFunc: childChanged}))
	}
	return b.WithOptions(controller.Options{
		MaxConcurrentReconciles: concurrency,
		RateLimiter:             retries(),
	}).Complete(r)
}

// retries paces what failed.
func retries() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry)
}

// Reconcile brings the children of a Memcached to what its spec says and its status to what is true.
func (r *MemcachedReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if r.worked.Add(1) >= crowd && r.rest != nil {
		r.rest.Reset(restAfter)
	}
	mc := &v1alpha1.Memcached{}
	if err := r.Client.Get(ctx, req.NamespacedName, mc); err != nil {
		if apierrors.IsNotFound(err) {
			r.memories.forget(req.NamespacedName)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("read Memcached: %w", err)
	}
	status.Normalize(&mc.Status)
	p := &pass{
		MemcachedReconciler: r,
		mc:                  mc,
		owner: children.Owner{Object: mc, GVK: v1alpha1.GroupVersion.WithKind(kindMemcached),
			Labels: names.Labels(mc)},
		set:             childSet(r.Client, r.APIReader),
		mem:             r.memories.of(mc),
		now:             r.Now(),
		written:         mc.Status,
		resourceVersion: mc.ResourceVersion,
	}
	if p.mem.status.Load() == nil {
		p.mem.status.Store(mark(&mc.Status))
	}
	if err := p.reconcile(ctx); err != nil && !errors.Is(err, errChanged) {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: p.again}, nil
}
