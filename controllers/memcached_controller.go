// Package controllers turns Memcached objects into memcached servers.
//
// Data flows one way: the object and what the cache shows of its children come in, desired says what the children should be,
// apply writes what differs, and status says how things stand.
package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// +kubebuilder:rbac:groups=cache.example.com,resources=memcacheds,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=cache.example.com,resources=memcacheds/status,verbs=patch
// +kubebuilder:rbac:groups=cache.example.com,resources=memcacheds/finalizers,verbs=update
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

const (
	// stalledRetry is how often a Memcached is looked at again that only a change from outside helps: neither the objects of others
	// that hold a name, nor the policies that refuse a child, are watched.
	stalledRetry = time.Minute
	// staleRetry is how often the cache is looked at while it is older than our own write to the Memcached, whose event is not a reason
	// to reconcile.
	staleRetry = 50 * time.Millisecond
	// conflictRetry is when to look again after an object was replaced under our hands; usually its event comes first.
	conflictRetry = time.Second
)

// MemcachedReconciler reconciles Memcached objects.
type MemcachedReconciler struct {
	// Client reads from the cache that CacheOptions configure, and writes.
	Client client.Client
	// APIReader reads what the cache does not hold.
	APIReader client.Reader
	// Recorder takes the events.
	Recorder events.EventRecorder
	// DefaultImage runs where spec.image is not set.
	DefaultImage string
	// Now is the clock; time.Now by default.
	Now func() time.Time

	memories memories
}

// SetupWithManager registers the reconciler; at most concurrency objects are reconciled at the same time.
func (r *MemcachedReconciler) SetupWithManager(mgr ctrl.Manager, concurrency int) error {
	if r.Now == nil {
		r.Now = time.Now
	}
	byInstance := func(obj client.Object) []string { return []string{obj.GetLabels()[labelInstance]} }
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &corev1.Pod{}, podsByInstance, byInstance); err != nil {
		return fmt.Errorf("index pods: %w", err)
	}
	// The label finds the Memcached also of a child that lost its owner reference.
	toOwner := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, obj client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{
			Namespace: obj.GetNamespace(), Name: obj.GetLabels()[labelInstance]}}}
	})
	// Kubelets write the status of a pod often; most of it was stripped.
	podChanged := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		was, is := e.ObjectOld.(*corev1.Pod), e.ObjectNew.(*corev1.Pod)
		return was.DeletionTimestamp.IsZero() != is.DeletionTimestamp.IsZero() || !equality.Semantic.DeepEqual(was.Status, is.Status)
	}}
	// The status is our own. Were its events a reason to reconcile, an error whose text varies would be retried without end or pause.
	specChanged := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
			!maps.Equal(e.ObjectOld.GetAnnotations(), e.ObjectNew.GetAnnotations()) ||
			!slices.Equal(e.ObjectOld.GetFinalizers(), e.ObjectNew.GetFinalizers())
	}}
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.Memcached{}, builder.WithPredicates(specChanged)).
		Watches(&appsv1.Deployment{}, toOwner).
		Watches(&corev1.Service{}, toOwner).
		Watches(&policyv1.PodDisruptionBudget{}, toOwner).
		Watches(&corev1.Pod{}, toOwner, builder.WithPredicates(podChanged)).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency}).
		Complete(r)
}

// Reconcile brings the children of a Memcached to what its spec says and its status to what is true.
func (r *MemcachedReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	mc := &v1alpha1.Memcached{}
	if err := r.Client.Get(ctx, req.NamespacedName, mc); err != nil {
		if apierrors.IsNotFound(err) {
			r.memories.forget(req.NamespacedName)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("read Memcached: %w", err)
	}
	normalize(&mc.Status)
	p := &pass{MemcachedReconciler: r, mc: mc, mem: r.memories.of(req.NamespacedName), now: r.Now(), written: mc.Status}
	return p.reconcile(ctx)
}

// pass is one reconcile of one Memcached.
type pass struct {
	*MemcachedReconciler
	mc      *v1alpha1.Memcached // as the cache shows it
	obs     observed
	mem     *memory
	now     time.Time
	written v1alpha1.MemcachedStatus // the status that the API server has
}

func (p *pass) reconcile(ctx context.Context) (reconcile.Result, error) {
	mc := p.mc
	if err := p.observe(ctx); err != nil {
		return reconcile.Result{}, err
	}
	if p.stale() {
		return reconcile.Result{RequeueAfter: staleRetry}, nil
	}
	if !mc.DeletionTimestamp.IsZero() {
		return p.finalize(ctx)
	}

	alive := false
	if !controllerutil.ContainsFinalizer(mc, v1alpha1.Finalizer) {
		if err := p.addFinalizer(ctx); err != nil {
			return reconcile.Result{}, gone(err)
		}
		alive = true
	}

	// The status names another image only once the workload has it: it is what decides when the spec is silent again.
	out, keep := outcome{image: mc.Status.Image}, carry(mc, p.obs, p.DefaultImage)
	changes, err := p.differences(keep, &out)
	if err != nil {
		return reconcile.Result{}, err
	}
	if out.pending && previous(mc).wasReady() {
		// No generation announces this change: say that servers will go before they do.
		if err := p.writeStatus(ctx, out); err != nil {
			return reconcile.Result{}, gone(err)
		}
	}
	if !mc.Spec.Paused {
		out.pending, out.err = p.apply(ctx, changes, alive)
		switch {
		case errors.Is(out.err, errGone), apierrors.IsConflict(out.err):
			// A child was deleted or replaced under our hands, or mc was. The cache will show what is there now.
			return reconcile.Result{RequeueAfter: conflictRetry}, nil
		case apierrors.HasStatusCause(out.err, corev1.NamespaceTerminatingCause):
			out.err = nil // mc goes too, and until then the status says what is left
		}
	}
	if out.err == nil && !out.drifted {
		out.image = keep.image
	}
	if err := p.writeStatus(ctx, out); err != nil {
		return reconcile.Result{}, gone(err)
	}
	return p.result(out.err)
}

// differences returns the children that must be written, and notes in out what that means for the status.
func (p *pass) differences(keep carried, out *outcome) ([]child, error) {
	var changes []child
	paused := p.mc.Spec.Paused
	for _, c := range children(desired(p.mc, keep), p.obs) {
		if paused {
			c.ignoreGeneration()
		}
		var own runtime.ApplyConfiguration
		if c.live != nil {
			var err error
			if own, err = c.owned(p.mem); err != nil {
				return nil, err
			}
			if own == nil {
				continue
			}
		}
		changes = append(changes, c)
		out.drifted = out.drifted || paused
		if c.gvk.Kind == kindDeployment && !paused {
			out.pending, out.resizing = true, own != nil && onlyResized(own, c.config)
		}
	}
	return changes, nil
}

// result decides when to look again where no watch would tell.
func (p *pass) result(err error) (reconcile.Result, error) {
	switch {
	case stalls(err):
		return reconcile.Result{RequeueAfter: stalledRetry}, nil
	case err != nil:
		return reconcile.Result{}, err
	}
	if c := meta.FindStatusCondition(p.written.Conditions, v1alpha1.ConditionReconciling); c != nil {
		left := deadline(p.mc, c.LastTransitionTime.Time, lastProgress(p.obs.deployment)).Sub(p.now)
		return reconcile.Result{RequeueAfter: max(left, time.Second)}, nil
	}
	return reconcile.Result{}, nil
}

// proveAlive asks the API server itself whether mc still exists and is not being deleted. Nothing may be created for an object that
// goes away: the garbage collector might already have looked for its children.
func (p *pass) proveAlive(ctx context.Context) error {
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kindMemcached))
	if err := p.APIReader.Get(ctx, client.ObjectKeyFromObject(p.mc), live); err != nil {
		if apierrors.IsNotFound(err) {
			return errGone
		}
		return fmt.Errorf("look up Memcached %s: %w", p.mc.Name, err)
	}
	if live.UID != p.mc.UID || !live.DeletionTimestamp.IsZero() {
		return errGone
	}
	return nil
}
