package controllers

import (
	"cmp"
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
	if len(p.obs.Pods) > 0 && p.mem.deleted == "" {
		if err := p.lookUpWorkload(ctx); err != nil {
			return err
		}
	}
	if p.waitsForServers() {
		if p.mem.endingSince.IsZero() {
			p.mem.endingSince = p.endingSince()
		}
		began, err := p.deleteWorkload(ctx)
		if err != nil {
			return err
		}
		if left := began.Add(finalizeTimeout).Sub(p.now); left > 0 {
			return p.awaitServers(ctx, left)
		}
		p.record(nil, corev1.EventTypeWarning, "FinalizeTimeout", "Finalize",
			"Servers still exist %s after the deletion; letting the object go without them", finalizeTimeout)
	}
	return p.removeFinalizer(ctx)
}

// endingSince is when servers that this process has not waited for yet began to end. Where their workload is gone and
// all of them are being deleted, another process waited before, and their pods tell.
func (p *pass) endingSince() time.Time {
	if p.workload != nil {
		return p.now
	}
	since := p.mc.DeletionTimestamp.Time
	for _, pod := range p.obs.Pods {
		if pod.DeletionTimestamp.IsZero() {
			return p.now
		}
		if at := pod.DeletionTimestamp.Time; at.After(since) {
			since = at
		}
	}
	return earlier(since, p.now)
}

// deleteWorkload deletes the workload. It returns when the time of the servers to end began: where no operator was
// there at first, later than the Memcached was deleted.
//
// A workload that is at rest goes at once, and the garbage collector ends its servers: while a workload stays until
// they have ended, its controllers count each end, which is half of what a deletion costs the cluster. One that is
// about to create servers stays, or a server could come after the last one that is seen here has ended. So does one
// that somebody else's finalizer holds: the garbage collector leaves its servers alone.
func (p *pass) deleteWorkload(ctx context.Context) (began time.Time, err error) {
	switch {
	case p.workload == nil:
		return p.mem.endingSince, nil
	case p.workload.GetDeletionTimestamp() != nil:
		return p.workload.GetDeletionTimestamp().Time, nil
	case p.workload.GetUID() == p.mem.deleted:
		return p.mem.endingSince, nil
	}
	degraded := meta.FindStatusCondition(p.written.Conditions, v1alpha1.ConditionDegraded)
	if degraded == nil || degraded.Reason != v1alpha1.ReasonFinalizing {
		p.tryStatus(ctx) // before the servers go
	}
	propagation := metav1.DeletePropagationForeground
	if p.obs.AtRest() && len(p.workload.GetFinalizers()) == 0 {
		propagation = metav1.DeletePropagationBackground
	}
	err = p.changedMeanwhile(p.set.Delete(ctx, p.workload, propagation))
	switch {
	case err == nil:
		p.mem.deleted = p.workload.GetUID()
		return p.now, nil
	case errors.Is(err, errChanged):
		return p.mem.endingSince, err
	}
	p.err, p.obs.Problem = err, problem(err)
	return p.mem.endingSince, nil
}

// awaitServers says what is being waited for.
func (p *pass) awaitServers(ctx context.Context, left time.Duration) error {
	p.tryStatus(ctx)
	if p.err != nil {
		return p.err
	}
	p.again = min(cmp.Or(p.again, left), left)
	return nil
}

// tryStatus writes the status of a deleted Memcached. One that cannot be written stops no deletion.
func (p *pass) tryStatus(ctx context.Context) {
	if err := p.writeStatus(ctx); err != nil {
		log.FromContext(ctx).Info("the status of a deleted Memcached was not written", "cause", err.Error())
	}
}

// waitsForServers reports whether servers must end before mc may go. An orphaning delete leaves them all as they are,
// and those of a workload that is not ours are no concern of mc.
func (p *pass) waitsForServers() bool {
	if slices.Contains(p.mc.Finalizers, metav1.FinalizerOrphanDependents) {
		return false
	}
	if live := p.observed[p.workloadKey()]; live != nil {
		return p.owner.Relation(live) == children.Ours
	}
	return slices.ContainsFunc(p.obs.Pods, func(pod corev1.Pod) bool {
		// A ReplicaSet replaces a pod that ended, until the garbage collector removes both.
		by := metav1.GetControllerOfNoCopy(&pod)
		return runs(pod) || by != nil && by.Kind == "ReplicaSet"
	})
}

// runs reports whether a pod has not ended yet. One that is being deleted has when it is gone.
func runs(pod corev1.Pod) bool {
	return !pod.DeletionTimestamp.IsZero() ||
		pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}
