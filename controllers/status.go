package controllers

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// outcome is what a reconcile did, as far as the status must know.
type outcome struct {
	image    string // of the servers
	err      error  // why children could not be applied
	pending  bool   // the workload was or must be written: what the cache shows of it is no evidence
	resizing bool   // of the pending workload only the number of servers differs
	drifted  bool   // children differ from the spec, and may not be written
}

// status computes the whole status of mc from what was observed and done. It is pure; now only fills transition times and
// measures the progress deadline. The table of its rows is in docs/status.md.
func status(mc *v1alpha1.Memcached, obs observed, out outcome, now time.Time) v1alpha1.MemcachedStatus {
	names, ready := nodes(obs.pods)
	s := v1alpha1.MemcachedStatus{
		ObservedGeneration: mc.Generation,
		Nodes:              names,
		Replicas:           int32(len(names)),
		ReadyReplicas:      ready,
		Selector:           selector(mc),
		Image:              out.image,
		Servers:            []string{serviceAddress(mc)},
	}
	workload := obs.deployment
	if workload != nil && ownership(mc, workload) == foreign {
		workload = nil
	}
	set := func(conditionType string, v verdict) {
		setCondition(&s.Conditions, mc, conditionType, v, now)
	}
	set(v1alpha1.ConditionAvailable, available(mc, workload, ready))
	switch {
	case !mc.DeletionTimestamp.IsZero():
		deleting(set, out)
	default:
		judge(set, mc, workload, obs.pods, out, now)
	}
	normalize(&s)
	s.Phase = phase(mc, s.Conditions)
	return s
}

// normalize brings the lists of a status into one order and leaves out the conditions of others, so that equal statuses compare equal.
func normalize(s *v1alpha1.MemcachedStatus) {
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c metav1.Condition) bool {
		return !slices.Contains([]string{v1alpha1.ConditionReady, v1alpha1.ConditionAvailable, v1alpha1.ConditionDegraded,
			v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled}, c.Type)
	})
	slices.SortFunc(s.Conditions, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
	slices.Sort(s.Nodes)
}

// verdict is a condition without its bookkeeping.
type verdict struct {
	status  bool
	reason  string
	message string
}

func deleting(set func(string, verdict), out outcome) {
	message := "Removing the servers"
	if out.err != nil {
		message += ": " + out.err.Error()
	}
	set(v1alpha1.ConditionReady, verdict{false, v1alpha1.ReasonDeleting, message})
	set(v1alpha1.ConditionReconciling, verdict{true, v1alpha1.ReasonDeleting, message})
	set(v1alpha1.ConditionDegraded, verdict{true, v1alpha1.ReasonFinalizing, message})
}

// judge sets Ready, Degraded, and one of Reconciling and Stalled where mc is not ready.
func judge(set func(string, verdict), mc *v1alpha1.Memcached, workload *appsv1.Deployment, pods []corev1.Pod, out outcome, now time.Time) {
	before := previous(mc)
	names, ready := nodes(pods)
	progress := fmt.Sprintf("%d of %d servers ready", ready, size(mc))
	fine := verdict{false, v1alpha1.ReasonAsExpected, "Nothing is degraded"}

	if out.err == nil && !out.pending && !out.drifted && complete(mc, workload) && int32(len(names)) == size(mc) && ready == size(mc) {
		set(v1alpha1.ConditionReady, verdict{true, v1alpha1.ReasonReady, progress})
		set(v1alpha1.ConditionDegraded, fine)
		return
	}

	why := diagnose(workload, pods, out, before, progress)
	// A rollout that we announced is no damage, neither is one that somebody else started on the workload.
	damaged := before.damaged() || before.wasReady() && (out.err != nil || !out.pending && !rolling(workload))
	if damaged && why.reason == v1alpha1.ReasonRollingOut {
		why.reason = v1alpha1.ReasonServersLost
	}
	stalled := stalls(out.err)
	if !stalled && !mc.Spec.Paused && before.deadlineExceeded(mc, workload, out, now) {
		stalled = true
		why.reason = v1alpha1.ReasonProgressDeadlineExceeded
		why.message = fmt.Sprintf("No progress for %d s: %s", mc.Spec.Rollout.ProgressDeadlineSeconds, why.message)
	}

	set(v1alpha1.ConditionReady, verdict{false, why.reason, why.message})
	switch {
	case stalled:
		set(v1alpha1.ConditionStalled, why)
	case !mc.Spec.Paused:
		set(v1alpha1.ConditionReconciling, why)
	}
	if stalled || damaged {
		set(v1alpha1.ConditionDegraded, why)
	} else {
		set(v1alpha1.ConditionDegraded, fine)
	}
}

// diagnose says in one reason and message why mc is not ready.
func diagnose(workload *appsv1.Deployment, pods []corev1.Pod, out outcome, before history, progress string) verdict {
	v := verdict{status: true, reason: v1alpha1.ReasonRollingOut, message: progress}
	switch cause := waiting(workload, pods); {
	case out.err != nil:
		v.reason, v.message = reasonOf(out.err), strings.ReplaceAll(out.err.Error(), "\n", "; ")
	case out.drifted:
		v.reason, v.message = v1alpha1.ReasonPaused, "spec.paused keeps the operator from applying the spec"
	case out.pending:
		if out.resizing {
			v.reason = v1alpha1.ReasonResizing
		}
	case cause != "":
		v.reason, v.message = v1alpha1.ReasonProgressingWithRetry, progress+"; "+cause
	case before.reason(v1alpha1.ConditionReconciling) == v1alpha1.ReasonResizing && !mixed(workload):
		v.reason = v1alpha1.ReasonResizing
	}
	return v
}

// complete tells whether, by the workload, every server of the current generation is updated and available. The stamp on the workload proves that what
// the cache shows was made from this generation, even where the cache lags behind what another operator process wrote.
func complete(mc *v1alpha1.Memcached, d *appsv1.Deployment) bool {
	want := size(mc)
	return d != nil && d.DeletionTimestamp.IsZero() &&
		(mc.Spec.Paused || d.Annotations[v1alpha1.GenerationAnnotation] == strconv.FormatInt(mc.Generation, 10)) &&
		d.Status.ObservedGeneration >= d.Generation &&
		d.Spec.Replicas != nil && *d.Spec.Replicas == want &&
		d.Status.UpdatedReplicas == want && d.Status.Replicas == want &&
		d.Status.ReadyReplicas == want && d.Status.AvailableReplicas == want
}

// rolling tells whether servers of an older template still run, or the newest one has not been looked at.
func rolling(d *appsv1.Deployment) bool {
	return d != nil && (d.Status.ObservedGeneration < d.Generation || mixed(d))
}

// mixed tells whether servers of an older template still run.
func mixed(d *appsv1.Deployment) bool {
	return d != nil && d.Status.UpdatedReplicas < d.Status.Replicas
}

func available(mc *v1alpha1.Memcached, d *appsv1.Deployment, ready int32) verdict {
	switch {
	case d != nil && d.Status.AvailableReplicas > 0 && ready > 0:
		return verdict{true, v1alpha1.ReasonAvailable, "At least one server is available"}
	case size(mc) == 0:
		return verdict{false, v1alpha1.ReasonScaledToZero, "spec.size is 0"}
	default:
		return verdict{false, v1alpha1.ReasonUnavailable, "No server is available"}
	}
}

// waiting says what keeps servers from starting, in the words of the scheduler or the kubelet; empty where nothing does.
func waiting(d *appsv1.Deployment, pods []corev1.Pod) string {
	if d != nil {
		for _, c := range d.Status.Conditions {
			if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
				return c.Message
			}
		}
	}
	for i := range pods {
		if !pods[i].DeletionTimestamp.IsZero() {
			continue
		}
		for _, c := range pods[i].Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				return fmt.Sprintf("%s: %s: %s", pods[i].Name, c.Reason, c.Message)
			}
		}
		for _, s := range pods[i].Status.ContainerStatuses {
			if w := s.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
				return fmt.Sprintf("%s: %s: %s", pods[i].Name, w.Reason, w.Message)
			}
		}
	}
	return ""
}

// nodes are the names of the pods that are neither terminating nor finished, sorted, and how many of these are ready. The pods say so
// themselves, because the status of the workload lags behind: after a loss it counts servers that are gone.
func nodes(pods []corev1.Pod) (names []string, ready int32) {
	names = []string{}
	for i := range pods {
		p := &pods[i]
		if !p.DeletionTimestamp.IsZero() || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		names = append(names, p.Name)
		if slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}) {
			ready++
		}
	}
	slices.Sort(names)
	return names, ready
}

func serviceAddress(mc *v1alpha1.Memcached) string {
	return fmt.Sprintf("%s.%s.svc:%d", mc.Name, mc.Namespace, mc.Spec.ContainerPort)
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

// history is what the previous status of a Memcached said of its current generation; all false where it spoke of an older one.
type history struct{ conditions []metav1.Condition }

func previous(mc *v1alpha1.Memcached) history {
	if mc.Status.ObservedGeneration != mc.Generation {
		return history{}
	}
	return history{mc.Status.Conditions}
}

func (h history) is(conditionType string) bool {
	return meta.IsStatusConditionTrue(h.conditions, conditionType)
}

func (h history) reason(conditionType string) string {
	if c := meta.FindStatusCondition(h.conditions, conditionType); c != nil && c.Status == metav1.ConditionTrue {
		return c.Reason
	}
	return ""
}

func (h history) wasReady() bool { return h.is(v1alpha1.ConditionReady) }

// damaged tells whether something went wrong after all servers had been ready, and they have not been since.
func (h history) damaged() bool {
	switch h.reason(v1alpha1.ConditionDegraded) {
	case v1alpha1.ReasonServersLost, v1alpha1.ReasonProgressingWithRetry, v1alpha1.ReasonResizing:
		return true
	}
	return false
}

// deadlineExceeded tells whether nothing progressed for spec.rollout.progressDeadlineSeconds. The clock is the transition time of Reconciling,
// which starts anew with each generation, or the last progress that the Deployment recorded, whichever is later.
func (h history) deadlineExceeded(mc *v1alpha1.Memcached, d *appsv1.Deployment, out outcome, now time.Time) bool {
	if out.pending && out.err == nil {
		return false // it progresses right now
	}
	progressed := lastProgress(d)
	if c := meta.FindStatusCondition(h.conditions, v1alpha1.ConditionStalled); c != nil && c.Reason == v1alpha1.ReasonProgressDeadlineExceeded {
		return !progressed.After(c.LastTransitionTime.Time)
	}
	c := meta.FindStatusCondition(h.conditions, v1alpha1.ConditionReconciling)
	return c != nil && !now.Before(deadline(mc, c.LastTransitionTime.Time, progressed))
}

func deadline(mc *v1alpha1.Memcached, started, progressed time.Time) time.Time {
	if progressed.After(started) {
		started = progressed
	}
	return started.Add(time.Duration(mc.Spec.Rollout.ProgressDeadlineSeconds) * time.Second)
}

func lastProgress(d *appsv1.Deployment) time.Time {
	if d != nil {
		for _, c := range d.Status.Conditions {
			if c.Type == appsv1.DeploymentProgressing {
				return c.LastUpdateTime.Time
			}
		}
	}
	return time.Time{}
}

// setCondition adds a condition, keeping the transition time of the previous status where nothing changed. Reconciling starts anew with
// each generation, because it is the clock of the progress deadline.
func setCondition(conditions *[]metav1.Condition, mc *v1alpha1.Memcached, conditionType string, v verdict, now time.Time) {
	c := metav1.Condition{
		Type:               conditionType,
		Status:             metav1.ConditionFalse,
		Reason:             v.reason,
		Message:            v.message,
		ObservedGeneration: mc.Generation,
		LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
	}
	if v.status {
		c.Status = metav1.ConditionTrue
	}
	old := meta.FindStatusCondition(mc.Status.Conditions, conditionType)
	if old != nil && old.Status == c.Status && (conditionType != v1alpha1.ConditionReconciling || old.ObservedGeneration == c.ObservedGeneration) {
		c.LastTransitionTime = old.LastTransitionTime
	}
	*conditions = append(*conditions, c)
}

// conflictError says that an object of a name that we need belongs to somebody else.
type conflictError struct{ kind, name string }

func (e *conflictError) Error() string {
	return fmt.Sprintf("%s %s exists and is not controlled by this Memcached; remove or rename one of the two", e.kind, e.name)
}

// reasonOf classifies an error, the one that a retry cannot mend first.
func reasonOf(err error) string {
	var conflict *conflictError
	switch {
	case errors.As(err, &conflict):
		return v1alpha1.ReasonConflict
	case apierrors.IsInvalid(err):
		return v1alpha1.ReasonInvalid
	default:
		return v1alpha1.ReasonProgressingWithRetry
	}
}

// stalls tells whether only a change from outside mends err.
func stalls(err error) bool {
	return err != nil && reasonOf(err) != v1alpha1.ReasonProgressingWithRetry
}
