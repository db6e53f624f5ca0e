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

// Flush says how far servers are that must drop their items.
type Flush struct {
	// Time is that of the flush. Servers that were created later are not among these.
	Time time.Time
	// Left are yet to be asked, the ready ones first. Asked have not dropped their items yet, as far as is known, and
	// Cold have, but may have to warm up.
	Left, Asked, Cold []*corev1.Pod
}

// ReadFlush reads the annotations of servers; at is the time of the newest flush, zero for none.
func ReadFlush(pods []corev1.Pod, at time.Time) Flush {
	f := Flush{Time: at}
	for i := range pods {
		pod := &pods[i]
		if at.IsZero() || pod.CreationTimestamp.After(at) || !pod.DeletionTimestamp.IsZero() {
			continue
		}
		switch words := flushWords(pod); {
		case len(words) < 2 || words[0] != f.id():
			f.Left = append(f.Left, pod)
		case len(words) == 2:
			f.Asked = append(f.Asked, pod)
		case FlushState(words[2]) == Flushed:
			f.Cold = append(f.Cold, pod)
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

func (f Flush) id() string { return f.Time.UTC().Format(time.RFC3339) }

// Pending returns the number of servers that may still have items of before the flush.
func (f Flush) Pending() int { return len(f.Left) + len(f.Asked) }

// Ask returns the value of FlushAnnotation that asks a server to drop its items.
func (f Flush) Ask(now time.Time) string { return f.id() + " " + now.UTC().Format(time.RFC3339) }

// FlushAnnotation returns the value of FlushAnnotation of a server that was asked, with a state.
func FlushAnnotation(pod *corev1.Pod, state FlushState) string {
	return strings.Join(append(flushWords(pod)[:2:2], string(state)), " ")
}

func flushWords(pod *corev1.Pod) []string {
	return strings.Fields(pod.Annotations[v1alpha1.FlushAnnotation])
}

// Warming returns the servers that must warm up before the next one drops its items.
func (f Flush) Warming(spec *v1alpha1.WarmUpSpec, now time.Time) (warming []*corev1.Pod) {
	for _, pod := range f.Cold {
		asked, err := time.Parse(time.RFC3339, flushWords(pod)[1])
		if spec != nil && len(f.Left) > 0 && err == nil &&
			now.Before(asked.Add(time.Duration(spec.TimeoutSeconds)*time.Second)) {
			warming = append(warming, pod)
		}
	}
	return warming
}
