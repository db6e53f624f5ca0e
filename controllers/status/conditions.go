package status

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// maxMessage bounds the messages of conditions, in bytes. The API server refuses a status with one of more than 32768.
const maxMessage = 2048

// claim is a condition without its bookkeeping.
type claim struct {
	status  bool
	reason  string
	message string
}

// Normalize brings the lists of a status into one order, so that equal statuses compare equal.
func Normalize(s *v1alpha1.MemcachedStatus) {
	slices.SortFunc(s.Conditions, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
	slices.Sort(s.Nodes)
}

// setCondition adds a condition, keeping the transition time of the previous status where nothing changed. Reconciling
// starts anew with each generation, each server that becomes ready and each change of the servers (progressing),
// because its transition time starts the clock of the progress deadline.
func setCondition(s *v1alpha1.MemcachedStatus, mc *v1alpha1.Memcached, conditionType string, is claim, progressing bool,
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
	progressed := conditionType == v1alpha1.ConditionReconciling && old != nil &&
		(progressing || old.ObservedGeneration != c.ObservedGeneration || s.ReadyReplicas > mc.Status.ReadyReplicas)
	// A time to come, which another manager wrote, would stop the clock.
	if old != nil && old.Status == c.Status && !progressed && !old.LastTransitionTime.After(now) {
		c.LastTransitionTime = old.LastTransitionTime
	}
	s.Conditions = append(s.Conditions, c)
}
