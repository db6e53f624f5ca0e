package controllers

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// outcome is what a reconcile did, as far as the status must know.
type outcome struct {
	image    string // that the workload has
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

func deleting(set func(string, verdict), out outcome) {
	message := "Removing the servers"
	if out.err != nil {
		message += ": " + out.err.Error()
	}
	set(v1alpha1.ConditionReady, verdict{false, v1alpha1.ReasonDeleting, message})
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
