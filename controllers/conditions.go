package controllers

import (
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// maxMessage bounds the messages of conditions, in bytes. The API server refuses a status with one of more than 32768.
const maxMessage = 2048

// verdict is a condition without its bookkeeping.
type verdict struct {
	status  bool
	reason  string
	message string
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
		Message:            strings.ToValidUTF8(v.message[:min(len(v.message), maxMessage)], ""),
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
