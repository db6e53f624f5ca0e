package status

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// The status of a Memcached also stores state across restarts of the operator and changes of its leader:
//
//   - Ready says that all servers were ready. If fewer are ready now, servers were lost. Before servers are replaced
//     without a new generation, Ready must become False.
//   - Degraded's reason ServersLost says that servers were lost, until all are ready again. Its reason Installing says
//     that not all servers were ready yet, in whatever generation.
//   - Reconciling with reason Resizing says that only the number of servers changes.
//   - Stalled with ProgressDeadlineExceeded stays until there is progress.
//   - readyReplicas decides whether a paused Memcached lost servers.
//   - observedGeneration says whether the status describes the current generation. If not, tools see the object as
//     InProgress already.
//   - image is the last image that was used, in case somebody deletes the workload.
//
// All else is computed from what is observed.

// history holds the conditions of the previous status of a Memcached if they describe its current generation; otherwise
// none.
type history []metav1.Condition

func previous(mc *v1alpha1.Memcached) history {
	if mc.Status.ObservedGeneration != mc.Generation {
		return nil
	}
	return mc.Status.Conditions
}

// reason of a condition that is True; empty where it is not.
func (h history) reason(conditionType string) string {
	if c := meta.FindStatusCondition(h, conditionType); c != nil && c.Status == metav1.ConditionTrue {
		return c.Reason
	}
	return ""
}

func (h history) wasReady() bool { return h.reason(v1alpha1.ConditionReady) != "" }

// hadLoss reports whether servers were lost, in any generation, and not all have been ready since.
func hadLoss(mc *v1alpha1.Memcached) bool {
	return history(mc.Status.Conditions).reason(v1alpha1.ConditionDegraded) == v1alpha1.ReasonServersLost
}

// WasReady reports whether the status says that mc is ready in its current generation.
func WasReady(mc *v1alpha1.Memcached) bool { return previous(mc).wasReady() }

// IsStalled reports whether the status says that mc made no progress in time in its current generation.
func IsStalled(mc *v1alpha1.Memcached) bool {
	return previous(mc).reason(v1alpha1.ConditionStalled) == v1alpha1.ReasonProgressDeadlineExceeded
}

// Installed reports whether all servers were ready at some time, in whatever generation.
func Installed(mc *v1alpha1.Memcached) bool {
	degraded := meta.FindStatusCondition(mc.Status.Conditions, v1alpha1.ConditionDegraded)
	return degraded != nil && degraded.Reason != v1alpha1.ReasonInstalling
}

// Clock measures the time without progress. It is kept in memory, so that time without a running operator does not
// count. Progress is a new maximum of Input.progress since the clock started: a server that becomes ready
// again and again is no progress. Nor is a percentage that rises again because an agent restarted or was silent.
type Clock struct {
	generation int64
	since      time.Time
	progress   int32
	percent    int // of Work.Progress
}

// Next returns the clock after a reconcile of mc, which still has its previous status.
func (c Clock) Next(mc *v1alpha1.Memcached, in Input, now time.Time) Clock {
	progress, percent, stalled := in.progress(), in.Work.Progress.Percent, IsStalled(mc)
	waiting := stalled || previous(mc).reason(v1alpha1.ConditionReconciling) != ""
	switch {
	case c.generation == mc.Generation && !mc.DeletionTimestamp.IsZero(): // since its deletion, which is a new generation
		return c
	case c.generation == 0 && stalled && !in.advancing(): // preserve what another operator process found
		return Clock{mc.Generation, time.Time{}, progress, percent}
	case c.generation != mc.Generation, !waiting, in.advancing(), progress > c.progress, percent > c.percent:
		return Clock{mc.Generation, now, progress, percent}
	case progress < c.progress-1: // several servers were lost, not one that crashes again and again: count their return
		c.progress = progress
	}
	return c
}

// Since returns since when nothing has progressed; the zero time if it is unknown.
func (c Clock) Since() time.Time { return c.since }

// End returns when the progress deadline is exceeded.
func (c Clock) End(mc *v1alpha1.Memcached) time.Time {
	return c.since.Add(time.Duration(deadlineSeconds(mc)) * time.Second)
}

// RemovalDelay is how long a server that the size removes serves after it has left the list that clients discover.
func RemovalDelay(mc *v1alpha1.Memcached) time.Duration {
	if mc.Spec.Discovery == nil {
		return 0
	}
	return time.Duration(ptr.Deref(mc.Spec.Discovery.RemovalDelaySeconds, 0)) * time.Second
}

// deadlineSeconds is how long nothing may progress, in seconds: a server that is waited for is no lack of progress.
func deadlineSeconds(mc *v1alpha1.Memcached) int32 {
	r := mc.Spec.Rollout
	seconds := r.MinReadySeconds + r.ProgressDeadlineSeconds + int32(RemovalDelay(mc)/time.Second)
	if r.WarmUp != nil {
		seconds += r.WarmUp.TimeoutSeconds
	}
	return seconds
}
