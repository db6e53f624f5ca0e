package controllers

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// finalizeTimeout is how long a deleted Memcached waits for its servers to end. A lost node, whose pods cannot end, must not hold it for ever.
const finalizeTimeout = 5 * time.Minute

// finalize removes the servers of a deleted Memcached and lets it go when they are gone, so that whoever waits for the deletion of
// the object waits for the servers. It never applies a child. The other children go with the object, by garbage collection.
func (p *pass) finalize(ctx context.Context) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(p.mc, v1alpha1.Finalizer) {
		return reconcile.Result{}, nil
	}
	left := p.mc.DeletionTimestamp.Add(finalizeTimeout).Sub(p.now)
	switch {
	case !holdsServers(p.mc, p.obs):
	case left <= 0:
		p.Recorder.Eventf(p.mc, nil, corev1.EventTypeWarning, "FinalizeTimeout", "Finalize",
			"Servers still exist %s after the deletion; letting the object go without them", finalizeTimeout)
	default:
		out := outcome{image: p.mc.Status.Image}
		if previous(p.mc).reason(v1alpha1.ConditionDegraded) != v1alpha1.ReasonFinalizing {
			if err := p.writeStatus(ctx, out); err != nil {
				return reconcile.Result{}, gone(err)
			}
		}
		if out.err = p.deleteWorkload(ctx); apierrors.IsConflict(out.err) {
			return reconcile.Result{RequeueAfter: conflictRetry}, nil
		}
		if err := p.writeStatus(ctx, out); err != nil {
			return reconcile.Result{}, gone(err)
		}
		return reconcile.Result{RequeueAfter: left}, out.err
	}
	if err := p.removeFinalizer(ctx); apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: conflictRetry}, nil
	} else if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, nil
}

// holdsServers tells whether mc must wait for servers to end. An orphaning delete leaves them all as they are, and those of a workload that
// is not ours are no concern of it.
func holdsServers(mc *v1alpha1.Memcached, obs observed) bool {
	if slices.Contains(mc.Finalizers, metav1.FinalizerOrphanDependents) {
		return false
	}
	if obs.deployment != nil {
		return ownership(mc, obs.deployment) == ours
	}
	return slices.ContainsFunc(obs.pods, func(p corev1.Pod) bool {
		return p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
	})
}

// deleteWorkload deletes the workload in the foreground: it stays until its pods have ended.
func (p *pass) deleteWorkload(ctx context.Context) error {
	d := p.obs.deployment
	if d == nil || !d.DeletionTimestamp.IsZero() {
		return nil
	}
	// The resource version is a precondition too: if the garbage collector has just orphaned the workload, it is not ours to delete.
	err := p.Client.Delete(ctx, d, client.PropagationPolicy(metav1.DeletePropagationForeground),
		client.Preconditions{UID: &d.UID, ResourceVersion: ptr.To(d.ResourceVersion)})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Deployment %s: %w", d.Name, err)
	}
	return nil
}
