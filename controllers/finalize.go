package controllers

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
)

// finalizeTimeout is how long a deleted Memcached waits for its servers to end. A lost node, whose pods cannot end,
// must not hold the object for ever.
const finalizeTimeout = 5 * time.Minute

// finalize removes the servers of a deleted Memcached and lets it go when they are gone, so that whoever waits for the
// deletion of the object waits for the servers. It never applies a child. The other children go with the object, by
// garbage collection.
func (p *pass) finalize(ctx context.Context) error {
	if !controllerutil.ContainsFinalizer(p.mc, v1alpha1.Finalizer) {
		return nil
	}
	if len(p.obs.Pods) > 0 {
		if err := p.lookUpWorkload(ctx); err != nil {
			return err
		}
	}
	left := p.mc.DeletionTimestamp.Add(finalizeTimeout).Sub(p.now)
	waits := p.waitsForServers()
	if waits && left > 0 {
		return p.removeServers(ctx, left)
	}
	if waits {
		p.record(nil, corev1.EventTypeWarning, "FinalizeTimeout", "Finalize",
			"Servers still exist %s after the deletion; letting the object go without them", finalizeTimeout)
	}
	return p.removeFinalizer(ctx)
}

// removeServers deletes the workload in the foreground: it stays until its pods have ended. A status that cannot be
// written stops no deletion.
func (p *pass) removeServers(ctx context.Context, left time.Duration) error {
	degraded := meta.FindStatusCondition(p.written.Conditions, v1alpha1.ConditionDegraded)
	if degraded == nil || degraded.Reason != v1alpha1.ReasonFinalizing {
		p.tryStatus(ctx)
	}
	if p.workload != nil && p.workload.DeletionTimestamp.IsZero() {
		err := p.changedMeanwhile(p.set.Delete(ctx, p.workload, metav1.DeletePropagationForeground))
		if errors.Is(err, errChanged) {
			return err
		}
		p.err, p.obs.Problem = err, problem(err)
	}
	p.tryStatus(ctx)
	if p.err != nil {
		return p.err
	}
	if p.again == 0 {
		p.again = left
	}
	return nil
}

func (p *pass) tryStatus(ctx context.Context) {
	if err := p.writeStatus(ctx); err != nil {
		log.FromContext(ctx).Info("the status of a deleted Memcached was not written", "cause", err.Error())
	}
}

// waitsForServers tells whether servers must end before mc may go. An orphaning delete leaves them all as they are, and
// those of a workload that is not ours are no concern of mc.
func (p *pass) waitsForServers() bool {
	if slices.Contains(p.mc.Finalizers, metav1.FinalizerOrphanDependents) {
		return false
	}
	if live := p.observed[p.workloadKey()]; live != nil {
		return p.owner.Relation(live) == children.Ours
	}
	return slices.ContainsFunc(p.obs.Pods, func(pod corev1.Pod) bool {
		return pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
	})
}
