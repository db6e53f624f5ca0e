package status

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
)

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
