package controllers

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/status"
	"github.com/example/memcached-operator/controllers/steps"
)

// finalizeTimeout is how long the finalizer waits for the servers after this process noticed the deletion of their
// workload. The pods of a lost node are never deleted, and must not block the deletion of the Memcached for ever. For
// thousands of workloads, the garbage collector itself needs minutes.
const finalizeTimeout = 10 * time.Minute

// finalize deletes the workload in the foreground, and removes the finalizer once the workload and its pods are
// deleted. Waiting for the deletion of a Memcached therefore includes waiting for its servers. finalize applies
// nothing. The garbage collector deletes the other children after the Memcached.
//
// The finalizer is removed at once if the deletion orphans the children, if the workload is not ours, or if the
// namespace is being deleted: there, the operator may lose its permissions before the servers are deleted.
func (r *MemcachedReconciler) finalize(ctx context.Context, o observation, st *state,
	now time.Time) (requeueAfter time.Duration, err error) {
	mc := o.mc
	if !controllerutil.ContainsFinalizer(mc, v1alpha1.Finalizer) {
		return 0, nil
	}
	if slices.Contains(mc.Finalizers, metav1.FinalizerOrphanDependents) ||
		mc.Status.Phase != v1alpha1.PhaseDeleting && r.namespaceIsTerminating(ctx, mc.Namespace) {
		return 0, r.removeFinalizer(ctx, mc, st, now)
	}
	defer func() { // the namespace may be deleted later, and the operator's permissions with it
		if apierrors.IsForbidden(err) && r.namespaceIsTerminating(ctx, mc.Namespace) {
			requeueAfter, err = 0, r.removeFinalizer(ctx, mc, st, now)
		}
	}()
	if len(o.servers) > 0 {
		if err := o.set.LookUp(ctx, workloadKey(mc), o.children); err != nil {
			return 0, err
		}
	}
	workload := o.children[workloadKey(mc)]
	if workload == nil || o.set.Relation(workload) != children.Ours {
		return 0, r.removeFinalizer(ctx, mc, st, now)
	}
	v := o.update(steps.View{Memcached: mc, Now: now})
	isDeleted, s := workload.GetDeletionTimestamp() != nil, statusInput(v, r.Options, status.Effect{})
	if !isDeleted {
		st.clock = status.Clock{} // begins with the deletion of the workload
	}
	st.clock = st.clock.Next(mc, s, now)
	if requeueAfter = st.clock.Since().Add(finalizeTimeout).Sub(now); requeueAfter <= 0 {
		r.record(mc, nil, corev1.EventTypeWarning, "FinalizeTimeout", "Finalize",
			"%s still exists %s after its deletion; the finalizer is removed anyway", workloadKey(mc), finalizeTimeout)
		return 0, r.removeFinalizer(ctx, mc, st, now)
	}
	if mc.Status.Phase != v1alpha1.PhaseDeleting {
		mc = r.tryWriteStatus(ctx, mc, st, s, now) // before the servers are deleted
	}
	if !isDeleted {
		if err = o.set.Delete(ctx, workload, metav1.DeletePropagationForeground); !children.IsConflict(err) {
			s.Problem = problem(err)
		}
	}
	mc = r.tryWriteStatus(ctx, mc, st, s, now)
	if err != nil {
		return 0, err
	}
	stopWait := r.stopServers(ctx, mc, steps.Draining(o.servers))
	return steps.Soonest(requeueAfter, stopWait), nil
}

// tryWriteStatus writes the status of a Memcached that is being deleted. A failure is only logged, and blocks nothing.
func (r *MemcachedReconciler) tryWriteStatus(ctx context.Context, mc *v1alpha1.Memcached, st *state, s status.Input,
	now time.Time) *v1alpha1.Memcached {
	after, err := r.writeStatus(ctx, mc, st, s, now)
	if err != nil {
		log.FromContext(ctx).Info("cannot write the status of a Memcached that is being deleted", "cause", err.Error())
	}
	return after
}
