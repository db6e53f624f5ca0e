// Package status computes the status of a Memcached. It is pure: it has no client, and the caller passes the
// time.
package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// Observed is what a status is computed from.
type Observed struct {
	// Workload is the workload of the servers; nil if we control none.
	Workload *Workload
	// Pods are those of the servers.
	Pods []corev1.Pod
	// Proxy is the workload of the proxies; nil if we control none.
	Proxy *Workload
	// ProxyPods are those of the proxies.
	ProxyPods []corev1.Pod
	// Servers are the addresses to configure clients with.
	Servers []string
	// Problem is why children could not be applied; nil where they could.
	Problem *Problem
	// Waiting names the object that must be deleted before a child can be created; empty for none.
	Waiting string
	Effect
	// NamespaceTerminating says that the namespace and everything in it is being deleted.
	NamespaceTerminating bool
	// Clock measures the time without progress.
	Clock Clock
}

// Effect says how this reconcile affects servers and proxies. What is observed of them is still from before that.
type Effect struct {
	// Changing says that servers are replaced, added or removed.
	Changing bool
	// Resizing says that only the number of servers changes.
	Resizing bool
	// ProxyChanging says that proxies are replaced, added or removed.
	ProxyChanging bool
	// HeldBack says what spec.paused keeps the operator from doing; empty for nothing.
	HeldBack string
}

// Problem is an error as the status reports it.
type Problem struct {
	Reason, Message string
	// Stalled says that no retry can help: somebody must change something.
	Stalled bool
}

// Compute returns the whole status of mc. now sets transition times, and is compared with the progress deadline.
// docs/status.md has a table of all cases.
func Compute(mc *v1alpha1.Memcached, o Observed, now time.Time) v1alpha1.MemcachedStatus {
	if mc.Spec.Proxy == nil {
		o.Proxy, o.ProxyPods, o.ProxyChanging = nil, nil, false
	}
	list, ready := activePods(o.Pods)
	s := v1alpha1.MemcachedStatus{
		ObservedGeneration: mc.Generation,
		Nodes:              list,
		Replicas:           int32(len(list)),
		ReadyReplicas:      ready,
		Selector:           names.Servers.SelectorQuery(mc),
		Image:              mc.Status.Image,
		Servers:            o.Servers,
	}
	if o.Workload != nil {
		s.Image = cmp.Or(o.Workload.Image, s.Image)
	}
	set := func(conditionType string, c conditionState) { setCondition(&s, mc, conditionType, c, now) }
	set(v1alpha1.ConditionAvailable, available(mc, o, ready))
	switch {
	case !mc.DeletionTimestamp.IsZero():
		deleting(set, o)
	case o.NamespaceTerminating:
		set(v1alpha1.ConditionReady, conditionState{false, v1alpha1.ReasonDeleting, "The namespace is being deleted"})
		set(v1alpha1.ConditionDegraded, conditionState{false, v1alpha1.ReasonAsExpected, "Nothing is degraded"})
	default:
		setLiveConditions(set, mc, o, int32(len(list)), ready, now)
	}
	Normalize(&s)
	s.Phase = phase(mc, s.Conditions)
	return s
}

// AwaitsController reports whether mc was ready, and only the observedGeneration of a workload is missing for it to be
// ready again. A change that affects no server causes that for some milliseconds: keep the previous status, of the
// previous generation. A change that affects servers has already set Ready to False.
func AwaitsController(mc *v1alpha1.Memcached, o Observed, now time.Time) bool {
	if !meta.IsStatusConditionTrue(mc.Status.Conditions, v1alpha1.ConditionReady) || o.Workload == nil ||
		o.Workload.Observed && (o.Proxy == nil || o.Proxy.Observed) {
		return false
	}
	o.Workload, o.Proxy = o.Workload.asObserved(), o.Proxy.asObserved()
	s := Compute(mc, o, now)
	return meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionReady)
}

// changing reports whether this reconcile replaces, adds or removes servers or proxies.
func (o Observed) changing() bool { return o.Changing || o.ProxyChanging }

// cause returns what keeps servers or proxies from being ready; empty for nothing.
func (o Observed) cause() string {
	return cmp.Or(causeOf(o.Workload, o.Pods), causeOf(o.Proxy, o.ProxyPods))
}

// hasOutdatedPods reports whether servers or proxies of an older template still run.
func (o Observed) hasOutdatedPods() bool {
	return o.Workload.hasOutdatedPods() || o.Proxy.hasOutdatedPods()
}

func (o Observed) progress() int32 { return o.Workload.progress() + o.Proxy.progress() }

// proxiesComplete reports whether every proxy of the current generation, if any is wanted, is updated and available.
func (o Observed) proxiesComplete(mc *v1alpha1.Memcached) bool {
	if mc.Spec.Proxy == nil {
		return true
	}
	list, ready := activePods(o.ProxyPods)
	size := mc.Spec.Proxy.Size
	return !o.ProxyChanging && o.Proxy.complete(mc, size) && int32(len(list)) == size && ready == size
}

func available(mc *v1alpha1.Memcached, o Observed, ready int32) conditionState {
	_, proxies := activePods(o.ProxyPods)
	switch {
	case ready > 0 && mc.Spec.Proxy != nil && proxies == 0:
		return conditionState{false, v1alpha1.ReasonUnavailable, "No proxy accepts connections"}
	case ready > 0:
		return conditionState{true, v1alpha1.ReasonAvailable, "At least one server accepts connections"}
	case names.Size(mc) == 0:
		return conditionState{false, v1alpha1.ReasonScaledToZero, "spec.size is 0"}
	default:
		return conditionState{false, v1alpha1.ReasonUnavailable, "No server accepts connections"}
	}
}

func deleting(set func(string, conditionState), o Observed) {
	message := "Removing the servers"
	if o.Problem != nil {
		message += ": " + o.Problem.Message
	}
	set(v1alpha1.ConditionReady, conditionState{false, v1alpha1.ReasonDeleting, message})
	set(v1alpha1.ConditionDegraded, conditionState{true, v1alpha1.ReasonFinalizing, message})
}

// setLiveConditions sets Ready and Degraded, and one of Reconciling and Stalled where mc is neither ready nor paused.
func setLiveConditions(set func(string, conditionState), mc *v1alpha1.Memcached, o Observed, existing, ready int32,
	now time.Time) {
	size := names.Size(mc)
	progress := progressMessage(mc, o, existing, ready)
	if o.Problem == nil && o.Waiting == "" && !o.Changing && o.HeldBack == "" && o.Workload.complete(mc, size) &&
		existing == size && ready == size && o.proxiesComplete(mc) {
		set(v1alpha1.ConditionReady, conditionState{true, v1alpha1.ReasonReady, progress})
		set(v1alpha1.ConditionDegraded, conditionState{false, v1alpha1.ReasonAsExpected, "Nothing is degraded"})
		return
	}

	before := previous(mc)
	why := diagnose(o, before, progress)
	lost := lostServers(mc, o, before, ready)
	if lost && why.reason == v1alpha1.ReasonRollingOut {
		why.reason = v1alpha1.ReasonServersLost
	}
	stalled := o.Problem != nil && o.Problem.Stalled
	progressing := o.changing() && o.Problem == nil
	if !stalled && !progressing && !mc.Spec.Paused && !now.Before(o.Clock.End(mc)) {
		stalled = true
		why.reason = v1alpha1.ReasonProgressDeadlineExceeded
		why.message = fmt.Sprintf("No progress for %d s: %s", mc.Spec.Rollout.ProgressDeadlineSeconds, why.message)
		if mc.Spec.Workload == v1alpha1.WorkloadStatefulSet && existing < size && o.cause() == "" {
			why.message += "; the events of StatefulSet " + mc.Name + " say why pods cannot be created"
		}
	}

	set(v1alpha1.ConditionReady, conditionState{false, why.reason, why.message})
	switch {
	case stalled:
		set(v1alpha1.ConditionStalled, why)
	case !mc.Spec.Paused:
		set(v1alpha1.ConditionReconciling, why)
	}
	degraded := conditionState{stalled || lost, why.reason, why.message}
	if !degraded.status {
		degraded.reason, degraded.message = v1alpha1.ReasonAsExpected, "Nothing is degraded"
	}
	switch {
	case lost && (o.Problem == nil || hadLoss(mc)):
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
func lostServers(mc *v1alpha1.Memcached, o Observed, before history, ready int32) bool {
	w := o.Workload
	if mc.Spec.Paused {
		want := names.Size(mc)
		if w != nil {
			want = w.Wanted
		}
		rollsOn := w.hasOutdatedPods() && mc.Spec.Workload != v1alpha1.WorkloadStatefulSet
		return ready < want && !rollsOn && (ready < mc.Status.ReadyReplicas || hadLoss(mc))
	}
	if o.Changing && !o.Resizing && o.Problem == nil {
		return false // whatever was lost before, servers are being replaced now
	}
	cause := o.cause()
	if o.hasOutdatedPods() && o.Problem == nil && cause == "" {
		return false // a rollout that continues
	}
	if hadLoss(mc) {
		return true
	}
	reason := before.reason(v1alpha1.ConditionDegraded)
	interrupted := reason == v1alpha1.ReasonInvalid || reason == v1alpha1.ReasonConflict
	if (before.wasReady() || interrupted) && (o.Problem != nil || !o.changing() && !w.rolling() && !o.Proxy.rolling()) {
		return true
	}
	return Installed(mc) && (o.Problem != nil || o.hasOutdatedPods() && cause != "")
}

// diagnose returns the reason and the message why mc is not ready.
func diagnose(o Observed, before history, progress string) conditionState {
	why := conditionState{status: true, reason: v1alpha1.ReasonRollingOut, message: progress}
	switch cause := o.cause(); {
	case o.Problem != nil:
		why.reason, why.message = o.Problem.Reason, o.Problem.Message
	case o.HeldBack != "":
		why.reason, why.message = v1alpha1.ReasonPaused, o.HeldBack+"; "+progress
	case o.Waiting != "":
		why.message = progress + "; " + o.Waiting
	case o.Changing:
		if o.Resizing {
			why.reason = v1alpha1.ReasonResizing
		}
	case cause != "":
		why.reason, why.message = v1alpha1.ReasonProgressingWithRetry, progress+"; "+cause
	case before.reason(v1alpha1.ConditionReconciling) == v1alpha1.ReasonResizing && !o.Workload.hasOutdatedPods():
		why.reason = v1alpha1.ReasonResizing
	}
	return why
}

// progressMessage says how many servers are ready, and what else a rollout waits for.
func progressMessage(mc *v1alpha1.Memcached, o Observed, existing, ready int32) string {
	size, w := names.Size(mc), o.Workload
	text := fmt.Sprintf("%d of %d servers ready", min(ready, size), size)
	switch {
	case o.Changing && !o.Resizing && ready > 0:
		text = fmt.Sprintf("0 of %d servers updated, %d ready", size, min(ready, size))
	case w.hasOutdatedPods():
		text = fmt.Sprintf("%d of %d servers updated, %d ready", min(w.Updated, size), size, min(ready, size))
	}
	if w != nil && ready >= size && w.Ready >= size && w.Available < size && mc.Spec.Rollout.MinReadySeconds > 0 {
		text += fmt.Sprintf(", waiting until each has been ready for %d s", mc.Spec.Rollout.MinReadySeconds)
	}
	if existing > size && w != nil && !w.hasOutdatedPods() {
		text += fmt.Sprintf(", %d more to remove", existing-size)
	}
	if mc.Spec.Proxy != nil && !o.proxiesComplete(mc) {
		_, proxies := activePods(o.ProxyPods)
		text += fmt.Sprintf("; %d of %d proxies ready", min(proxies, mc.Spec.Proxy.Size), mc.Spec.Proxy.Size)
	}
	return text
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

// Normalize sorts the lists of a status, so that equal statuses compare equal.
func Normalize(s *v1alpha1.MemcachedStatus) {
	slices.SortFunc(s.Conditions, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
	slices.Sort(s.Nodes)
}

// setCondition adds a condition. It preserves the transition time if the condition's status did not change.
func setCondition(s *v1alpha1.MemcachedStatus, mc *v1alpha1.Memcached, conditionType string, is conditionState,
	now time.Time) {
	c := metav1.Condition{
		Type:               conditionType,
		Status:             metav1.ConditionFalse,
		Reason:             is.reason,
		Message:            strings.ToValidUTF8(is.message[:min(len(is.message), maxMessage)], ""),
		ObservedGeneration: mc.Generation,
		LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
	}
	if is.status {
		c.Status = metav1.ConditionTrue
	}
	old := meta.FindStatusCondition(mc.Status.Conditions, conditionType)
	if old != nil && old.Status == c.Status && !old.LastTransitionTime.After(now) {
		c.LastTransitionTime = old.LastTransitionTime
	}
	s.Conditions = append(s.Conditions, c)
}

// OnlyProgress reports whether two statuses differ only in counts, names of servers and messages, or in that a server
// accepts connections while others are not ready yet.
func OnlyProgress(before, after *v1alpha1.MemcachedStatus) bool {
	rest := func(s *v1alpha1.MemcachedStatus) *v1alpha1.MemcachedStatus {
		s = s.DeepCopy()
		s.Nodes, s.Replicas, s.ReadyReplicas = nil, 0, 0
		for i := range s.Conditions {
			s.Conditions[i].Message = ""
		}
		if meta.IsStatusConditionTrue(after.Conditions, v1alpha1.ConditionAvailable) {
			meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionAvailable)
		}
		return s
	}
	return equality.Semantic.DeepEqual(rest(before), rest(after))
}
