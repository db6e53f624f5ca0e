// Package controllers turns Memcached objects into memcached servers.
//
// Data flows one way: observe reads the object and its children, steps decides which servers the proxies use, desired
// builds the children that the object should have, children applies them, steps decides what happens to servers and
// proxies next, and status computes the status.
package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/status"
	"github.com/example/memcached-operator/controllers/steps"
)

// +kubebuilder:rbac:groups=cache.example.com,resources=memcacheds,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=cache.example.com,resources=memcacheds/status,verbs=patch
// +kubebuilder:rbac:groups=cache.example.com,resources=memcacheds/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=pods/resize,verbs=patch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

const (
	// firstRetry and lastRetry bound the delay before a failed reconcile is retried, which doubles each time. lastRetry is
	// also the longest that a user waits after removing the cause of the error.
	firstRetry = 50 * time.Millisecond
	lastRetry  = 30 * time.Second
	// stalledRetry is the delay before a stalled Memcached is reconciled again: the operator watches neither foreign
	// objects that have the name of a child nor the policies that refuse a child.
	stalledRetry = time.Minute
	// staleRetry is the delay before the next reconcile if the informer cache does not show our last write.
	staleRetry = 50 * time.Millisecond
	// conflictRetry is the delay after a write conflict; usually the object's watch event triggers a reconcile sooner.
	// After maxConflicts in a row, a conflict is an error: an admission plugin may answer every write with one.
	conflictRetry = 250 * time.Millisecond
	maxConflicts  = 3
	// deletionRetry is the delay after a reconcile that must wait for a deletion, of a child of a deleted Memcached of the
	// same name or of a child that somebody else deleted, or until the informer cache shows that the Memcached was changed
	// or deleted. Usually a watch event triggers a reconcile sooner.
	deletionRetry = 5 * time.Second
	// maxError limits an error in the log, in bytes: with its stack trace, the line has at most 4 KB.
	maxError = 2048
	// configMapPeriod is the time between two looks at the ConfigMap with the CAs of clients, which kubelets do not look
	// at more often either. To watch the ConfigMaps of users would take memory for all those of the cluster.
	configMapPeriod = time.Minute
	// reconciliationTimeout cancels a reconcile that hangs.
	reconciliationTimeout = 2 * time.Minute
)

// MemcachedReconciler reconciles Memcached objects.
type MemcachedReconciler struct {
	// Client reads from the informer cache, which CacheOptions configure, and writes.
	Client client.Client
	// APIReader reads what the informer cache does not hold.
	APIReader client.Reader
	// Recorder records events.
	Recorder events.EventRecorder
	// Options are the operator's settings that affect the children.
	Options desired.Options
	// Now is the clock.
	Now func() time.Time
	// AskAgent asks an agent, at an address with a port, for its report.
	AskAgent func(ctx context.Context, address string) (contract.Report, error)
	// StopServer lets a server stop whose agent has this address, and whose pod this token.
	StopServer func(ctx context.Context, address, token string) error

	states states
}

// SetupWithManager registers the reconciler.
func (r *MemcachedReconciler) SetupWithManager(mgr ctrl.Manager) error {
	if err := childSet(r.Client, r.APIReader).SetupIndexes(context.Background(), mgr.GetFieldIndexer(),
		&corev1.Pod{}); err != nil {
		return err
	}
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Memcached{}, bySecret,
		secretNames); err != nil {
		return fmt.Errorf("index Memcacheds by Secret: %w", err)
	}
	watches := r.Watches()
	b := ctrl.NewControllerManagedBy(mgr).For(watches[0].Object, watches[0].changes())
	for _, w := range watches[1:] {
		b = b.Watches(w.Object, w.Handler, w.changes())
	}
	return b.WithOptions(controller.Options{RateLimiter: newRateLimiter(),
		ReconciliationTimeout: reconciliationTimeout}).Complete(r)
}

// newRateLimiter returns the rate limiter of failed reconciles.
func newRateLimiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry)
}

// Reconcile applies the children of a Memcached that differ from its spec, and updates its status.
func (r *MemcachedReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	mc := &v1alpha1.Memcached{}
	if err := r.Client.Get(ctx, req.NamespacedName, mc); err != nil {
		if apierrors.IsNotFound(err) {
			r.states.delete(req.NamespacedName)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("read Memcached: %w", err)
	}
	status.Normalize(&mc.Status)
	st := r.states.get(mc)
	requeueAfter, err := r.reconcile(ctx, mc, st)
	switch {
	case errors.Is(err, errDeleted), errors.Is(err, children.ErrStaleOwner):
		return reconcile.Result{RequeueAfter: deletionRetry}, nil // the informer cache will show that soon
	case st.isTransient(err):
		st.conflicts++
		return reconcile.Result{RequeueAfter: conflictRetry}, nil
	case err != nil:
		return reconcile.Result{}, errors.New(children.Limit(err.Error(), maxError)) // it becomes a line of the log
	}
	st.conflicts = 0
	return reconcile.Result{RequeueAfter: requeueAfter}, nil
}

// reconcile does the work of Reconcile. It returns the delay before the next reconcile that no watch event would
// trigger; 0 for none.
func (r *MemcachedReconciler) reconcile(ctx context.Context, mc *v1alpha1.Memcached,
	st *state) (requeueAfter time.Duration, err error) {
	now := r.Now()
	set := childSet(r.Client, r.APIReader)
	set.Owner, set.State = owner(mc), &st.children
	o, err := observe(ctx, set, mc)
	if err != nil {
		return 0, err
	}
	if st.children.IsBehind(o.children, now) {
		return staleRetry, nil
	}
	if !st.isLastStatus(mc) { // if the informer cache shows that status later, its event needs a reconcile
		st.statusVersion.Store(nil)
	}
	if !mc.DeletionTimestamp.IsZero() {
		return r.finalize(ctx, o, st, now)
	}
	if !controllerutil.ContainsFinalizer(mc, v1alpha1.Finalizer) {
		if mc, err = r.writeFinalizer(ctx, mc, st, now, controllerutil.AddFinalizer); err != nil {
			return 0, err
		}
		o.mc, set.Owner, set.New = mc, owner(mc), true
	}

	if err := o.lookUp(ctx); err != nil {
		return 0, err
	}
	v := o.update(steps.View{Memcached: mc, Now: now})
	// While the ConfigMap of the proxies has another list than the recorded one, they have confirmed nothing.
	if step := steps.ClearConfirmations(v); len(step.Annotate) > 0 && !mc.Spec.Paused {
		_, requeueAfter, err = r.execute(ctx, o, v, step)
		return requeueAfter, err
	}
	move, err := o.nextMove(ctx, v)
	if err != nil {
		return 0, err
	}
	list, published, minServers := steps.NextList(v)
	secrets, secretsErr := r.secrets(ctx, mc, st, v.Record.Secrets, now)
	plan := desired.NewPlan(mc, desired.Resolve(mc, desired.Current{Workload: v.Workload, Record: v.Record,
		Secrets: secrets, Freeze: secretsErr != nil, ProxyServers: move.List, List: list,
		Published: published, MinServers: max(move.MinServers, minServers), Now: now}, r.Options))
	applied, err := r.apply(ctx, o, v, plan, st)
	if err != nil {
		return 0, err
	}
	if len(applied.Written) > 0 {
		v = o.update(v)
	}
	v.LastProgress = st.clock.Since()
	v.Secrets, v.TemplateApplied = secrets.Annotation(), secretsErr == nil && !applied.Failed[workloadKey(applied.mc)]
	applied.Err = children.Join(secretsErr, applied.Err)
	requeueAfter, err = r.takeStep(ctx, o, v, applied, st)
	if kind, _ := desired.ClientCA(mc); kind == desired.KindConfigMap {
		requeueAfter = steps.Soonest(requeueAfter, configMapPeriod)
	}
	return steps.Soonest(requeueAfter, untilExpiry(secrets, now)), err
}

// takeStep takes the next step of servers and proxies, and writes the status. It returns the delay before the next
// reconcile that no watch event would trigger; 0 for none.
func (r *MemcachedReconciler) takeStep(ctx context.Context, o observation, v steps.View, applied applyResult,
	st *state) (requeueAfter time.Duration, err error) {
	mc := applied.mc
	step, v := r.decide(ctx, v, st)
	isReady := func(pod *corev1.Pod) bool { return status.IsTrue(pod, corev1.PodReady) }
	// Servers are replaced although no apply has changed them. One that was not ready was lost before.
	if slices.ContainsFunc(step.Delete, isReady) && status.WasReady(mc) {
		applied.effect.Changing = true
	}
	s := statusInput(v, r.Options, applied.effect)
	s.Problem, s.Waiting, s.Work.Progress = problem(applied.Err), applied.Waiting, step.Progress
	if step.IsIrreversible() && status.WasReady(mc) { // Ready becomes False before servers are replaced or flushed
		if mc, err = r.writeStatus(ctx, mc, st, s, v.Now); err != nil {
			return 0, err
		}
	}
	progress, requeueAfter, stepErr := r.execute(ctx, o, v, step)
	if st.isTransient(stepErr) {
		return 0, stepErr
	}
	failure := children.Join(applied.Err, stepErr)
	s.Problem, s.Work.Progress = problem(failure), progress
	if mc, err = r.writeStatus(ctx, mc, st, s, v.Now); err != nil {
		return 0, err
	}
	requeueAfter = steps.Soonest(requeueAfter, st.untilDeadline(mc, v.Now))
	switch {
	case s.Problem != nil && s.Problem.Stalled:
		return steps.Soonest(requeueAfter, stalledRetry), nil
	case failure != nil:
		return 0, failure
	case applied.dryRunErr != nil:
		return 0, applied.dryRunErr
	case applied.Waiting != "":
		requeueAfter = steps.Soonest(requeueAfter, deletionRetry)
	}
	return requeueAfter, nil
}
