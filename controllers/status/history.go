package status

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// The status of a Memcached is also what the operator remembers of it, across restarts and leaders:
//
//   - Ready says that all servers were ready: fewer are a loss, and a change that no generation announces is announced.
//   - Degraded's reason ServersLost says that servers were lost, until all are ready again. Its reason Installing says
//     that not all servers were ready yet, in whatever generation.
//   - Reconciling's reason Resizing says that the number of servers is all that changes.
//   - Stalled with ProgressDeadlineExceeded stays until there is progress.
//   - readyReplicas is what a paused Memcached has lost servers by.
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

// IsWorse reports whether a status says that mc is not ready any more, though its spec did not change, or degraded. The
// deletion of the namespace would explain that, and has done so where the previous status says it.
func IsWorse(mc *v1alpha1.Memcached, s *v1alpha1.MemcachedStatus) bool {
	before, after := history{mc.Status.Conditions}, history{s.Conditions}
	ready := meta.FindStatusCondition(mc.Status.Conditions, v1alpha1.ConditionReady)
	return mc.DeletionTimestamp.IsZero() && (WasReady(mc) && !after.wasReady() ||
		after.reason(v1alpha1.ConditionDegraded) != "" && before.reason(v1alpha1.ConditionDegraded) == "" ||
		ready != nil && ready.Reason == v1alpha1.ReasonDeleting)
}

// Installed reports whether all servers were ready at some time, in whatever generation.
func Installed(mc *v1alpha1.Memcached) bool {
	degraded := meta.FindStatusCondition(mc.Status.Conditions, v1alpha1.ConditionDegraded)
	return degraded != nil && degraded.Reason != v1alpha1.ReasonInstalling
}

// Clock measures the time without progress. It is kept in memory: no verdict is given about a time when no operator was
// there. Progress is a server more that was updated or became ready than ever since the clock started, so that a server
// that comes and goes is none.
type Clock struct {
	generation int64
	since      time.Time
	progress   int32
}

// Next is the clock after a look at mc, whose status is the previous one.
func (c Clock) Next(mc *v1alpha1.Memcached, o Observed, now time.Time) Clock {
	before, progress := previous(mc), o.progress()
	stalled := before.reason(v1alpha1.ConditionStalled) == v1alpha1.ReasonProgressDeadlineExceeded
	waiting := stalled || before.reason(v1alpha1.ConditionReconciling) != ""
	switch {
	case c.generation == 0 && stalled:
		return Clock{mc.Generation, time.Time{}, progress} // what another process found stays
	case c.generation != mc.Generation, !waiting, o.changing() && o.Problem == nil, progress > c.progress:
		return Clock{mc.Generation, now, progress}
	case progress < c.progress-1: // more than one server that comes and goes: what comes back is progress
		c.progress = progress
	}
	return c
}

// End is when nothing will have progressed for too long.
func (c Clock) End(mc *v1alpha1.Memcached) time.Time {
	r := mc.Spec.Rollout
	return c.since.Add(time.Duration(r.MinReadySeconds+r.ProgressDeadlineSeconds) * time.Second)
}
