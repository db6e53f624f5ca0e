package steps

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/status"
)

const (
	// maxPeers is the number of servers with which cold ones are compared.
	maxPeers = 16
	// warmUpRetry is the delay before servers are asked again for the number of their items.
	warmUpRetry = 5 * time.Second
)

// untilWarm returns how long a ready server may still warm up, and WarmAnnotation until then, which says when the
// operator began to wait. A time in the future is of another operator process, whose clock differs, and means now.
func (v View) untilWarm(pod *corev1.Pod) (left time.Duration, annotation string) {
	spec, annotation, since := v.Memcached.Spec.Rollout.WarmUp, pod.Annotations[v1alpha1.WarmAnnotation], warmSince(pod)
	if spec == nil || annotation == since {
		return 0, annotation
	}
	value, ok := strings.CutPrefix(annotation, since+" ")
	began, err := time.Parse(time.RFC3339, value)
	if !ok || err != nil || began.After(v.Now) {
		began = v.Now
	}
	left = began.Add(time.Duration(spec.TimeoutSeconds) * time.Second).Sub(v.Now)
	return left, since + " " + began.UTC().Format(time.RFC3339)
}

// warmSince is the value of WarmAnnotation on a server that is warm.
func warmSince(pod *corev1.Pod) string {
	return status.Since(pod, corev1.PodReady, corev1.ConditionTrue).UTC().Format(time.RFC3339)
}

// warmUp asks servers how many items they hold, and returns each cold one that has its share. It says how far one of
// the others is.
func (s *Step) warmUp(v View, cold, peers []*corev1.Pod) (warm []*corev1.Pod) {
	if len(cold) == 0 {
		return nil
	}
	var items []int64
	for _, pod := range peers[:min(maxPeers, len(peers))] {
		if r, ok := s.ask(v, pod); ok && r.Err == nil {
			items = append(items, r.Items)
		}
	}
	wait := warmUpRetry
	for _, pod := range cold {
		r, _ := s.ask(v, pod)
		wanted := int(v.Memcached.Spec.Rollout.WarmUp.Percent)
		switch percent, ok := share(r.Items, items); {
		case r.Err != nil || !ok:
			s.Progress.Text = "server " + pod.Name + " cannot be compared: its agent or those of the others do not answer"
			wait = Later
		case percent >= wanted:
			warm = append(warm, pod)
		default:
			s.Progress = status.ChangeProgress{Percent: percent, Text: fmt.Sprintf(
				"server %s holds %d %% of the items of the others, warm with %d %%", pod.Name, percent, wanted)}
		}
	}
	s.Wait = Soonest(s.Wait, wait)
	return warm
}

// share returns the number of items of a server in percent of the average of the others; ok is false if none of the
// others has reported. A server holds its share if the others are empty.
func share(items int64, others []int64) (percent int, ok bool) {
	var sum int64
	for _, n := range others {
		sum += n
	}
	if sum == 0 {
		return 100, len(others) > 0
	}
	return int(items * 100 * int64(len(others)) / sum), true
}
