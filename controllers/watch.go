package controllers

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/status"
	"github.com/example/memcached-operator/controllers/steps"
)

// availableDelay is how long the proxies' Deployment, or the watch of pods, may lag behind the status of a workload
// that counts all servers as available.
const availableDelay = 100 * time.Millisecond

// Watch is a kind of object whose events trigger reconciles.
type Watch struct {
	// Object is of the kind.
	Object client.Object
	// Handler enqueues the Memcacheds that an event concerns.
	Handler handler.EventHandler
	// Changed reports whether an update needs a reconcile; nil says that every update does.
	Changed func(event.UpdateEvent) bool
}

// Watches returns what the operator watches. The first one is the Memcached itself.
func (r *MemcachedReconciler) Watches() []Watch {
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	watches := []Watch{{&v1alpha1.Memcached{}, &handler.EnqueueRequestForObject{}, r.needsReconcile},
		{&corev1.Pod{}, r.toOwner(), podChanged}, {secret, r.toMemcachedsOfSecret(), nil}}
	for _, kind := range childKinds {
		watches = append(watches, Watch{kind.Object, r.toOwner(), childChanged})
	}
	return watches
}

// changes is a predicate that lets only those updates pass that need a reconcile.
func (w Watch) changes() builder.Predicates {
	return builder.WithPredicates(predicate.Funcs{UpdateFunc: w.Changed})
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// toOwner enqueues the Memcached of a child or pod. It reads the label with its name, which also identifies the
// Memcached of a child that lost its owner reference. While servers come and go, one reconcile each steps.Pace is
// enough. At once follow what ends a wait, the deletion of a workload or the availability of all servers, and any
// change of a Memcached that is ready: its status must not call lost servers healthy.
func (r *MemcachedReconciler) toOwner() handler.EventHandler {
	return onEvent(func(ctx context.Context, obj client.Object, deleted bool, q queue) {
		req := request(obj.GetNamespace(), obj.GetLabels()[v1alpha1.NameLabel])
		mc := &v1alpha1.Memcached{}
		if r.Client.Get(ctx, req.NamespacedName, mc, client.UnsafeDisableDeepCopy) != nil {
			return // deleted, or not in the informer cache yet
		}
		switch workload := status.ReadState(obj); {
		case meta.IsStatusConditionTrue(mc.Status.Conditions, v1alpha1.ConditionReady), workload != nil && deleted:
			q.Add(req)
		case workload != nil && workload.AllAvailable():
			q.AddAfter(req, availableDelay)
		default:
			q.AddAfter(req, steps.Pace)
		}
	})
}

// toMemcachedsOfSecret enqueues the Memcacheds that name a Secret. The delay bounds the cost of a Secret that somebody
// changes all the time: each reconcile reads it, and annotates every server.
func (r *MemcachedReconciler) toMemcachedsOfSecret() handler.EventHandler {
	return onEvent(func(ctx context.Context, secret client.Object, _ bool, q queue) {
		var list v1alpha1.MemcachedList
		if r.Client.List(ctx, &list, client.InNamespace(secret.GetNamespace()),
			client.MatchingFields{bySecret: secret.GetName()}) != nil {
			return // unreachable: the informer cache is synced
		}
		for i := range list.Items {
			q.AddAfter(request(list.Items[i].Namespace, list.Items[i].Name), steps.Pace)
		}
	})
}

// onEvent calls enqueue for every event. If an update changes the label with the name, it calls enqueue for the old
// object too, because both Memcacheds need a reconcile.
func onEvent(enqueue func(ctx context.Context, obj client.Object, deleted bool, q queue)) handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			if !e.IsInInitialList { // when the operator starts, each Memcached is reconciled anyway, with a low priority
				enqueue(ctx, e.Object, false, q)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			enqueue(ctx, e.ObjectNew, false, q)
			if e.ObjectOld.GetLabels()[v1alpha1.NameLabel] != e.ObjectNew.GetLabels()[v1alpha1.NameLabel] {
				enqueue(ctx, e.ObjectOld, false, q)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { enqueue(ctx, e.Object, true, q) },
	}
}

// request returns the reconcile request for a Memcached.
func request(namespace, name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

// needsReconcile reports whether an update of a Memcached needs a reconcile. Our own writes of the status and changes
// of labels need none.
func (r *MemcachedReconciler) needsReconcile(e event.UpdateEvent) bool {
	before, after := e.ObjectOld.(*v1alpha1.Memcached), e.ObjectNew.(*v1alpha1.Memcached)
	return before.UID != after.UID || before.Generation != after.Generation ||
		!maps.Equal(before.Annotations, after.Annotations) || !slices.Equal(before.Finalizers, after.Finalizers) ||
		!equality.Semantic.DeepEqual(before.Status, after.Status) && !r.states.isLastStatus(after)
}

// childChanged reports whether an update of a child needs a reconcile. Of the status of a child, only that of a
// workload matters, and most of that does not.
func childChanged(e event.UpdateEvent) bool {
	before, after := status.ReadState(e.ObjectOld), status.ReadState(e.ObjectNew)
	return !children.OnlyStatusChanged(e.ObjectOld, e.ObjectNew) || before != nil && *before != *after
}

// podChanged reports whether an update of a pod needs a reconcile. Changes of annotations need none. Kubelets write
// pods often, but the informer cache strips most of what they write.
func podChanged(e event.UpdateEvent) bool {
	before, after := e.ObjectOld.(*corev1.Pod), e.ObjectNew.(*corev1.Pod)
	return before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
		!equality.Semantic.DeepEqual(before.OwnerReferences, after.OwnerReferences) ||
		!maps.Equal(before.Labels, after.Labels) ||
		!equality.Semantic.DeepEqual(before.Status, after.Status)
}
