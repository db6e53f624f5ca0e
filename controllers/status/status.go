// Package status computes the status of a Memcached. It is pure: it has no client, and the caller passes the
// time.
package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// Input is what a status is computed from, besides the Memcached and the time.
type Input struct {
	Servers Component
	// Proxies are empty without spec.proxy.
	Proxies Component
	Work    Work
	Effect
	// Problem is the error of this reconcile: of a Secret, a child or a step; nil for none.
	Problem *Problem
	// Waiting is a message that names an object whose deletion a child waits for; empty for none.
	Waiting string
	// Addresses are status.servers, and Outdated is status.outdated.
	Addresses, Outdated []string
}

// Work is what servers and proxies that run have yet to do.
type Work struct {
	// Moving says that items move, because the servers behind the proxies change, and Resizing that their number changes.
	Moving, Resizing bool
	// NotLoaded is a proxy that may not use the current list of servers yet; empty for none.
	NotLoaded string
	// ToFlush is the number of servers that must still drop their items.
	ToFlush int32
	// Progress says how far this is.
	Progress ChangeProgress
}

// ChangeProgress says how far a change of the servers behind proxies is, and how many percent of the items of this step
// were moved or deleted; or how many percent of its share a new server holds.
type ChangeProgress struct {
	Text    string
	Percent int
	// Failure says why a pod cannot be created; empty for nothing.
	Failure string
}

// Effect says how this reconcile affects servers and proxies. The status of their workloads does not show that yet.
type Effect struct {
	// Changing says that servers are replaced, added or removed.
	Changing bool
	// Resizing says that only the number of servers changes.
	Resizing bool
	// ProxyChanging says that proxies are replaced, added or removed.
	ProxyChanging bool
	// ListChanging says that the proxies get another list of servers.
	ListChanging bool
	// HeldBack says what spec.paused keeps the operator from doing; empty for nothing.
	HeldBack string
}

// Problem is an error as the status reports it.
type Problem struct {
	Reason, Message string
	// Stalled says that no retry can help: somebody must change something.
	Stalled bool
}

// Compute returns the whole status of mc. now sets transition times, and is compared with the end of the clock.
// docs/reference/status.md has a table of all cases.
func Compute(mc *v1alpha1.Memcached, in Input, clock Clock, now time.Time) v1alpha1.MemcachedStatus {
	s := v1alpha1.MemcachedStatus{
		ObservedGeneration: mc.Generation,
		Nodes:              in.Servers.Active,
		Replicas:           int32(len(in.Servers.Active)),
		ReadyReplicas:      in.Servers.Ready,
		Selector:           labels.FormatLabels(names.Servers.Selector(mc)),
		Image:              mc.Status.Image,
		AgentImage:         mc.Status.AgentImage,
		Outdated:           in.Outdated,
		Servers:            in.Addresses,
	}
	if in.Servers.State != nil {
		image, agent := Images(Template(in.Servers.Workload))
		s.Image, s.AgentImage = cmp.Or(image, s.Image), agent
	}
	set := func(conditionType string, c conditionState) { setCondition(&s, mc, conditionType, c, now) }
	set(v1alpha1.ConditionAvailable, available(mc, in))
	if mc.DeletionTimestamp.IsZero() {
		setLiveConditions(set, mc, in, clock, now)
	} else {
		setDeletingConditions(set, in)
	}
	Normalize(&s)
	s.Phase = phase(mc, s.Conditions)
	return s
}

// advancing reports whether this reconcile makes a step, so that the time without progress begins again.
func (in Input) advancing() bool { return (in.changing() || in.ListChanging) && in.Problem == nil }

// changing reports whether this reconcile replaces, adds or removes servers or proxies.
func (in Input) changing() bool { return in.Changing || in.ProxyChanging }

// cause returns what keeps servers or proxies from being ready; empty for nothing.
func (in Input) cause() string {
	return cmp.Or(in.Servers.cause(), in.Proxies.cause(), in.Work.Progress.Failure)
}

// hasOutdatedPods reports whether servers or proxies of an older template still run.
func (in Input) hasOutdatedPods() bool {
	return in.Servers.hasOutdatedPods() || in.Proxies.hasOutdatedPods()
}

// progress is a number that grows with each server that is updated, becomes ready or drops its items, and each proxy.
func (in Input) progress() int32 {
	return in.Servers.progress() + in.Proxies.progress() - in.Work.ToFlush
}

// proxiesComplete reports whether every proxy of the current generation, if any is wanted, is updated and available.
func (in Input) proxiesComplete(mc *v1alpha1.Memcached) bool {
	return mc.Spec.Proxy == nil || !in.ProxyChanging && in.Proxies.complete(mc, mc.Spec.Proxy.Size)
}

func available(mc *v1alpha1.Memcached, in Input) conditionState {
	switch {
	case in.Servers.Ready > 0 && mc.Spec.Proxy != nil && in.Proxies.Ready == 0:
		return conditionState{false, v1alpha1.ReasonUnavailable, "No proxy accepts connections"}
	case in.Servers.Ready > 0:
		return conditionState{true, v1alpha1.ReasonAvailable, "At least one server accepts connections"}
	case names.Size(mc) == 0:
		return conditionState{false, v1alpha1.ReasonScaledToZero, "spec.size is 0"}
	default:
		return conditionState{false, v1alpha1.ReasonUnavailable, "No server accepts connections"}
	}
}

func setDeletingConditions(set func(string, conditionState), in Input) {
	message := "Removing the servers"
	if in.Problem != nil {
		message += ": " + in.Problem.Message
	}
	set(v1alpha1.ConditionReady, conditionState{false, v1alpha1.ReasonDeleting, message})
	set(v1alpha1.ConditionDegraded, conditionState{true, v1alpha1.ReasonFinalizing, message})
}

// setLiveConditions sets Ready and Degraded. Unless mc is ready, it also sets Stalled or Reconciling; a paused mc is
// never Reconciling.
func setLiveConditions(set func(string, conditionState), mc *v1alpha1.Memcached, in Input, clock Clock, now time.Time) {
	size := names.Size(mc)
	progress := progressMessage(mc, in)
	complete := in.Problem == nil && in.Waiting == "" && !in.Changing && in.HeldBack == "" &&
		in.Servers.complete(mc, size) && in.proxiesComplete(mc)
	if complete && !in.Work.Moving && in.Work.NotLoaded == "" && in.Work.ToFlush == 0 &&
		unreachable(in.Proxies.Pods) == "" {
		set(v1alpha1.ConditionReady, conditionState{true, v1alpha1.ReasonReady, progress})
		set(v1alpha1.ConditionDegraded, notDegraded)
		return
	}

	before := previous(mc)
	why := diagnose(in, before, progress)
	lost := !complete && lostServers(mc, in, before)
	if lost && why.reason == v1alpha1.ReasonRollingOut {
		why.reason = v1alpha1.ReasonServersLost
	}
	stalled := in.Problem != nil && in.Problem.Stalled
	if !stalled && !in.advancing() && !mc.Spec.Paused && !now.Before(clock.End(mc)) {
		stalled = true
		why.reason = v1alpha1.ReasonProgressDeadlineExceeded
		why.message = fmt.Sprintf("No progress for %d s: %s", deadlineSeconds(mc), why.message)
		if in.cause() == "" {
			why.message += cmp.Or(in.Servers.hint(), in.Proxies.hint())
		}
	}

	set(v1alpha1.ConditionReady, conditionState{false, why.reason, why.message})
	switch {
	case stalled:
		set(v1alpha1.ConditionStalled, why)
	case !mc.Spec.Paused:
		set(v1alpha1.ConditionReconciling, why)
	}
	degraded := notDegraded
	if stalled || lost {
		degraded = why
	}
	switch {
	case lost && (in.Problem == nil || hadLoss(mc)):
		degraded.reason = v1alpha1.ReasonServersLost
	case !Installed(mc):
		degraded.reason = v1alpha1.ReasonInstalling
	}
	set(v1alpha1.ConditionDegraded, degraded)
}

// lostServers reports whether servers were lost after all had been ready:
//
//   - A server of a ready Memcached is not ready any more: lost, until all servers are ready again.
//   - The Memcached was ready until it became Invalid or met a Conflict: the same.
//   - Servers are being replaced, added or removed, by us or because somebody changed the workload: not lost.
//   - Such a rollout cannot continue: the servers that it stopped are lost.
//   - The Memcached is paused, so that nobody replaces servers: those that are missing are lost, whatever the
//     generation, unless the controller of a Deployment continues a rollout.
func lostServers(mc *v1alpha1.Memcached, in Input, before history) bool {
	if mc.Spec.Paused {
		want := names.Size(mc)
		if w := in.Servers.State; w != nil {
			want = w.Wanted
		}
		rolloutContinues := in.Servers.hasOutdatedPods() && mc.Spec.Workload != v1alpha1.WorkloadStatefulSet
		return in.Servers.Ready < want && !rolloutContinues &&
			(in.Servers.Ready < mc.Status.ReadyReplicas || hadLoss(mc))
	}
	if in.Changing && !in.Resizing && in.Problem == nil {
		return false // whatever was lost before, servers are being replaced now
	}
	cause := in.cause()
	if in.hasOutdatedPods() && in.Problem == nil && cause == "" {
		return false // a rollout that continues
	}
	if hadLoss(mc) {
		return true
	}
	reason := before.reason(v1alpha1.ConditionDegraded)
	interrupted := reason == v1alpha1.ReasonInvalid || reason == v1alpha1.ReasonConflict
	rolling := in.changing() || in.Servers.rolling() || in.Proxies.rolling()
	if (before.wasReady() || interrupted) && (in.Problem != nil || !rolling) {
		return true
	}
	return Installed(mc) && (in.Problem != nil || in.hasOutdatedPods() && cause != "" && in.Servers.Ready < names.Size(mc))
}

func phase(mc *v1alpha1.Memcached, conditions []metav1.Condition) v1alpha1.Phase {
	switch {
	case !mc.DeletionTimestamp.IsZero():
		return v1alpha1.PhaseDeleting
	case mc.Spec.Paused:
		return v1alpha1.PhasePaused
	case meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionDegraded):
		return v1alpha1.PhaseDegraded
	case meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionReady):
		return v1alpha1.PhaseReady
	default:
		return v1alpha1.PhaseProgressing
	}
}

// maxMessage bounds the messages of conditions, in bytes. The API server refuses a status with one of more than 32768.
const maxMessage = 2048

// conditionState holds the status, reason and message of a condition.
type conditionState struct {
	status  bool
	reason  string
	message string
}

var notDegraded = conditionState{false, v1alpha1.ReasonAsExpected, "Nothing is degraded"}

// Normalize sorts the lists of a status, so that equal statuses compare equal.
func Normalize(s *v1alpha1.MemcachedStatus) {
	slices.SortFunc(s.Conditions, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
	slices.Sort(s.Nodes)
}

// setCondition adds a condition. It preserves the transition time if the condition's status did not change.
func setCondition(s *v1alpha1.MemcachedStatus, mc *v1alpha1.Memcached, conditionType string, state conditionState,
	now time.Time) {
	c := metav1.Condition{
		Type:               conditionType,
		Status:             metav1.ConditionFalse,
		Reason:             state.reason,
		Message:            strings.ToValidUTF8(state.message[:min(len(state.message), maxMessage)], ""),
		ObservedGeneration: mc.Generation,
		LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
	}
	if state.status {
		c.Status = metav1.ConditionTrue
	}
	old := meta.FindStatusCondition(mc.Status.Conditions, conditionType)
	if old != nil && old.Status == c.Status && !old.LastTransitionTime.After(now) {
		c.LastTransitionTime = old.LastTransitionTime
	}
	s.Conditions = append(s.Conditions, c)
}
