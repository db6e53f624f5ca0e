package rollout

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/status"
)

// FlushState is how far a server is that must drop its items. It is the last word of FlushAnnotation, after the time of
// the flush and the time when the operator asked.
type FlushState string

// States of a flush.
const (
	// Flushed: the agent reports that memcached has dropped its items.
	Flushed FlushState = "flushed"
	// Warm: and the server has its share of items again.
	Warm FlushState = "warm"
)

// Flush says how far servers are that must drop their items. Servers that started after the flush began are not among
// them.
type Flush struct {
	// Time is when the flush began.
	Time time.Time
	// Left are yet to be asked, the ready ones first, and Asked may not have dropped their items yet. Cold have dropped
	// their items, and are not known to be warm.
	Left, Asked, Cold []*corev1.Pod
	// Stopping serve until the operator lets them stop, and then stop with their items.
	Stopping []*corev1.Pod
}

// ReadFlush reads the annotations of servers; at is when the newest flush began, zero for none.
func ReadFlush(pods []corev1.Pod, at time.Time) Flush {
	f := Flush{Time: at}
	for i := range pods {
		pod := &pods[i]
		if at.IsZero() || pod.CreationTimestamp.After(at) || !mayRun(pod) {
			continue
		}
		words := flushWords(pod)
		asked := len(words) >= 2 && words[0] == f.id()
		switch {
		case asked && len(words) == 3 && FlushState(words[2]) == Warm:
		case asked && len(words) == 3 && FlushState(words[2]) == Flushed:
			f.Cold = append(f.Cold, pod)
		case IsDraining(pod):
			f.Stopping = append(f.Stopping, pod)
		case !pod.DeletionTimestamp.IsZero():
		case !status.CanFlush(pod): // it was on no node when the flush began, and started empty
		case asked:
			f.Asked = append(f.Asked, pod)
		default:
			f.Left = append(f.Left, pod)
		}
	}
	slices.SortFunc(f.Left, func(a, b *corev1.Pod) int {
		switch readyA, readyB := status.IsTrue(a, corev1.PodReady), status.IsTrue(b, corev1.PodReady); {
		case readyA == readyB:
			return cmp.Compare(a.Name, b.Name)
		case readyA:
			return -1
		}
		return 1
	})
	return f
}

// FlushBegin returns the time to record for a flush that begins now, after another one: no server was created later,
// whatever the clocks say. cannot names a server whose agent cannot make memcached drop its items; empty for none.
func FlushBegin(pods []corev1.Pod, last, now time.Time) (at time.Time, cannot string) {
	at = now
	if next := last.Add(time.Second); at.Before(next) {
		at = next
	}
	for i := range pods {
		pod := &pods[i]
		if created := pod.CreationTimestamp.Time; at.Before(created) {
			at = created
		}
		able := status.CanFlush(pod) || !mayRun(pod) || !pod.DeletionTimestamp.IsZero()
		if !able && (cannot == "" || pod.Name < cannot) {
			cannot = pod.Name
		}
	}
	return at.Truncate(time.Second), cannot
}

func (f Flush) id() string { return f.Time.UTC().Format(time.RFC3339) }

// Pending returns the number of servers that may still have items of before the flush.
func (f Flush) Pending() int { return len(f.Left) + len(f.Asked) + len(f.Stopping) }

// Ask returns the value of FlushAnnotation that asks a server to drop its items.
func (f Flush) Ask(now time.Time) string { return f.id() + " " + now.UTC().Format(time.RFC3339) }

// FlushAnnotation returns the value of FlushAnnotation of a server that was asked, with a state.
func FlushAnnotation(pod *corev1.Pod, state FlushState) string {
	return strings.Join(append(flushWords(pod)[:2:2], string(state)), " ")
}

// flushWords are separated by single spaces, as the agent reads them: a server with another text is asked again.
func flushWords(pod *corev1.Pod) []string {
	return strings.Split(pod.Annotations[v1alpha1.FlushAnnotation], " ")
}

// Warming returns the servers that must warm up before the next one drops its items.
func (f Flush) Warming(spec *v1alpha1.WarmUpSpec, now time.Time) (warming []*corev1.Pod) {
	for _, pod := range f.Cold {
		asked, err := time.Parse(time.RFC3339, flushWords(pod)[1])
		if spec != nil && len(f.Left) > 0 && err == nil && pod.DeletionTimestamp.IsZero() &&
			now.Before(asked.Add(time.Duration(spec.TimeoutSeconds)*time.Second)) {
			warming = append(warming, pod)
		}
	}
	return warming
}
