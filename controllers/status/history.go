package status

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// The status of a Memcached is also what the operator remembers of it, across restarts and leaders:
//
//   - Reconciling's transition time is when the clock of the progress deadline started; each generation, each change of
//     the servers, and each server that becomes ready starts it anew.
//   - Stalled with ProgressDeadlineExceeded stays until a server becomes ready, or the workload progressed
//     after Stalled's transition time.
//   - Ready says that all servers were ready: fewer are a loss, and a change that no generation announces is announced.
//   - Degraded's reason ServersLost says that servers were lost, until all are ready again; and, where Degraded is
//     False, whether they ever were (Installing, else AsExpected). ProgressingWithRetry says that they were, too.
//   - Reconciling's reason Resizing says that the number of servers is all that changes.
//   - readyReplicas is what more ready servers are measured by, which is progress, and fewer, which a paused Memcached
//     has lost.
//   - observedGeneration says whether the generation announces a change.
//   - image is what ran, should somebody delete the workload.
//
// All else is computed from what is observed.

// history is what the previous status of a Memcached said of its current generation; nothing where it spoke of an older
// one.
type history struct{ conditions []metav1.Condition }

func previous(mc *v1alpha1.Memcached) history {
	if mc.Status.ObservedGeneration != mc.Generation {
		return history{}
	}
	return history{mc.Status.Conditions}
}

// reason of a condition that is True; empty where it is not.
func (h history) reason(conditionType string) string {
	if c := meta.FindStatusCondition(h.conditions, conditionType); c != nil && c.Status == metav1.ConditionTrue {
		return c.Reason
	}
	return ""
}

func (h history) wasReady() bool { return h.reason(v1alpha1.ConditionReady) != "" }

// hadLoss reports whether servers were lost, in whatever generation, and they have not all been ready since.
func hadLoss(mc *v1alpha1.Memcached) bool {
	return (history{mc.Status.Conditions}).reason(v1alpha1.ConditionDegraded) == v1alpha1.ReasonServersLost
}

// WasReady reports whether the status says that mc is ready in its current generation.
func WasReady(mc *v1alpha1.Memcached) bool { return previous(mc).wasReady() }

// installed reports whether all servers were ready at some time, in whatever generation.
func installed(mc *v1alpha1.Memcached) bool {
	degraded := meta.FindStatusCondition(mc.Status.Conditions, v1alpha1.ConditionDegraded)
	return meta.IsStatusConditionTrue(mc.Status.Conditions, v1alpha1.ConditionReady) ||
		degraded != nil && degraded.Status == metav1.ConditionFalse && degraded.Reason == v1alpha1.ReasonAsExpected ||
		(history{mc.Status.Conditions}).reason(v1alpha1.ConditionDegraded) == v1alpha1.ReasonProgressingWithRetry ||
		hadLoss(mc)
}

// deadlineExceeded reports whether nothing progressed for spec.rollout.progressDeadlineSeconds. A server that became
// ready is progress; the Deployment controller writes of progress during rollouts alone.
func (h history) deadlineExceeded(mc *v1alpha1.Memcached, w *Workload, ready int32, now time.Time) bool {
	if ready > mc.Status.ReadyReplicas {
		return false
	}
	stalled := meta.FindStatusCondition(h.conditions, v1alpha1.ConditionStalled)
	if stalled != nil && stalled.Reason == v1alpha1.ReasonProgressDeadlineExceeded {
		return w == nil || !w.Progressed.After(stalled.LastTransitionTime.Time)
	}
	end := Deadline(mc, h.conditions, w)
	return !end.IsZero() && !now.Before(end)
}

// Deadline is when nothing will have progressed for too long, by the conditions of mc; zero where no clock runs.
func Deadline(mc *v1alpha1.Memcached, conditions []metav1.Condition, w *Workload) time.Time {
	reconciling := meta.FindStatusCondition(conditions, v1alpha1.ConditionReconciling)
	if reconciling == nil {
		return time.Time{}
	}
	started := reconciling.LastTransitionTime.Time
	if w != nil && w.Progressed.After(started) {
		started = w.Progressed
	}
	return started.Add(time.Duration(mc.Spec.Rollout.ProgressDeadlineSeconds) * time.Second)
}
