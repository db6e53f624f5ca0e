package rollout

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/status"
)

// untilWarm returns how long a ready server may still warm up; at most 0 if it need not, or is warm.
func untilWarm(pod *corev1.Pod, spec *v1alpha1.WarmUpSpec, now time.Time) time.Duration {
	if spec == nil || pod.Annotations[v1alpha1.WarmAnnotation] == WarmSince(pod) {
		return 0
	}
	since, _ := status.ReadySince(pod)
	return since.Add(time.Duration(spec.TimeoutSeconds) * time.Second).Sub(now)
}

// WarmSince is the value of WarmAnnotation on a server that is warm.
func WarmSince(pod *corev1.Pod) string {
	since, _ := status.ReadySince(pod)
	return since.UTC().Format(time.RFC3339)
}

// Share returns the number of items of a server in percent of the average of the others; ok is false if none of the
// others has reported. A server holds its share if the others are empty.
func Share(items int64, others []int64) (percent int, ok bool) {
	if len(others) == 0 {
		return 0, false
	}
	var sum int64
	for _, n := range others {
		sum += n
	}
	if sum == 0 {
		return 100, true
	}
	return int(items * 100 * int64(len(others)) / sum), true
}
