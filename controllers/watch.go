package controllers

import (
	"context"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

// Changes of children and pods are gathered for a while: they come in crowds while servers start. Those of a Memcached
// that is ready are not, for its status must not call lost servers healthy.
const (
	// progressingPace is for servers that start.
	progressingPace = time.Second
	// countedPace is for a workload whose controller has counted all servers, so that Ready may follow. The proxies'
	// Deployment, or a pod in another watch, may be a moment behind.
	countedPace = 100 * time.Millisecond
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// toOwner enqueues the Memcached of a child or pod. The label finds the Memcached also of a child that lost its owner
// reference.
func (r *MemcachedReconciler) toOwner() handler.EventHandler {
	enqueue := func(ctx context.Context, obj client.Object, q queue) {
		req := request(obj.GetNamespace(), obj.GetLabels()[names.LabelInstance])
		pace, ok := r.memories.pace(req.NamespacedName, func() bool { return r.serversRun(ctx, req) })
		if pace == progressingPace && isWorkload(obj) && status.Read(obj).Counted() {
			pace = countedPace
		}
		if ok {
			q.AddAfter(req, pace)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { enqueue(ctx, e.Object, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			enqueue(ctx, e.ObjectNew, q)
			if before := e.ObjectOld; before.GetLabels()[names.LabelInstance] != e.ObjectNew.GetLabels()[names.LabelInstance] {
				enqueue(ctx, before, q)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { enqueue(ctx, e.Object, q) },
	}
}

// serversRun reports whether the cache shows a server of a Memcached that has not ended.
func (r *MemcachedReconciler) serversRun(ctx context.Context, req reconcile.Request) bool {
	mc := &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Namespace: req.Namespace, Name: req.Name}}
	var pods corev1.PodList
	err := childSet(r.Client, r.APIReader).List(ctx, children.Owner{Object: mc}, &pods)
	return err == nil && slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool {
		return componentOf(&pod) == names.Servers && runs(pod)
	})
}

// request names a Memcached.
func request(namespace, name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

// needsReconcile reports whether an update of a Memcached is more than our own write of its status. Were that write a
// reason to reconcile, an error whose text varies would be retried without a pause. A status that somebody else wrote
// is a reason, and so is another object that took the place of the old one.
func (r *MemcachedReconciler) needsReconcile(e event.UpdateEvent) bool {
	before, after := e.ObjectOld.(*v1alpha1.Memcached), e.ObjectNew.(*v1alpha1.Memcached)
	return before.UID != after.UID || before.Generation != after.Generation ||
		!maps.Equal(before.Annotations, after.Annotations) || !slices.Equal(before.Finalizers, after.Finalizers) ||
		!equality.Semantic.DeepEqual(before.Status, after.Status) &&
			!r.memories.ours(client.ObjectKeyFromObject(after), &after.Status)
}

// remembered reports whether a Memcached that is gone is remembered still. One that was let go is not.
func (r *MemcachedReconciler) remembered(e event.DeleteEvent) bool {
	_, ok := r.memories.m.Load(client.ObjectKeyFromObject(e.Object))
	return ok
}

// podChanged reports whether an update of a pod changed what is read of pods. Kubelets write pods often; the cache
// strips most of that.
func podChanged(e event.UpdateEvent) bool {
	before, after := e.ObjectOld.(*corev1.Pod), e.ObjectNew.(*corev1.Pod)
	return before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
		!equality.Semantic.DeepEqual(before.OwnerReferences, after.OwnerReferences) ||
		!maps.Equal(before.Labels, after.Labels) ||
		!equality.Semantic.DeepEqual(before.Status, after.Status)
}

// childChanged reports whether an update of a child can matter: many workers would reconcile once for each that does
// not. Of a child that is being deleted, only a change of its owner matters, and its end. Of other children than the
// workload, a change of status never matters.
func childChanged(e event.UpdateEvent) bool {
	before, after := e.ObjectOld, e.ObjectNew
	if !equality.Semantic.DeepEqual(before.GetOwnerReferences(), after.GetOwnerReferences()) {
		return true
	}
	if !before.GetDeletionTimestamp().IsZero() {
		return false
	}
	return isWorkload(after) || after.GetGeneration() == 0 || before.GetGeneration() != after.GetGeneration() ||
		!equality.Semantic.DeepEqual(before.GetManagedFields(), after.GetManagedFields()) ||
		!maps.Equal(before.GetLabels(), after.GetLabels()) ||
		!maps.Equal(before.GetAnnotations(), after.GetAnnotations())
}

func isWorkload(obj client.Object) bool {
	switch obj.(type) {
	case *appsv1.Deployment, *appsv1.StatefulSet:
		return true
	}
	return false
}
