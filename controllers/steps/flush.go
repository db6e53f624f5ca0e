package steps

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/status"
)

// flush makes servers drop their items, one after the other, for each new value of FlushedAtAnnotation. It ends once
// all servers have reported that they did.
//
//   - Behind proxies, no server is asked while items move. No further move begins until the flush has ended.
//   - The next server is asked once the one before has dropped its items and, with warmUp, is warm or had time for
//     that.
//   - A server that is about to stop stops with its items.
//   - The annotation was removed: no further server is asked, and none that has not noticed yet.
func flush(v View) (s Step, busy bool) {
	f := v.Flush()
	switch {
	case v.Memcached.Spec.Paused:
	case v.Memcached.Annotations[v1alpha1.FlushedAtAnnotation] == "":
		for _, pod := range v.Servers {
			if _, asked := flushOf(pod); asked != "" && asked != v.annotations()[v1alpha1.FlushedAtAnnotation] {
				s.annotate(pod, v1alpha1.FlushAnnotation, "")
			}
		}
	case f.Value != "":
		s.Stop = f.Stopping
		switch {
		case v.Routing.isBusy(): // first, all items arrive
		case len(f.Left) > 0:
			if last := len(f.Asked) - 1; last < 0 || s.hasFlushed(v, f.Asked[last]) && s.isWarm(v, f.Asked[last], f.Left) {
				s.annotate(f.Left[0], v1alpha1.FlushAnnotation, f.ask(v.Now))
			}
		case len(f.Stopping) == 0:
			flushed := filter(f.Asked, func(pod *corev1.Pod) bool { return s.hasFlushed(v, pod) })
			if len(flushed) == len(f.Asked) {
				s.Flushed = f.Value
			}
		}
	}
	return s, false
}

// hasFlushed asks whether a server has dropped its items.
func (s *Step) hasFlushed(v View, pod *corev1.Pod) bool {
	const remedy = "; or remove the annotation " + v1alpha1.FlushedAtAnnotation
	if !status.CanFlush(pod) {
		s.waitsFor(Later, fmt.Sprintf("server %s has no agent that can flush it", pod.Name)+remedy)
		return false
	}
	r, ok := s.needs(v, "server", pod)
	switch {
	case !ok:
	case r.Flushed == pod.Annotations[v1alpha1.FlushAnnotation]:
		return true
	case r.FlushProblem != "":
		s.waitsFor(Later, fmt.Sprintf("server %s: %s", pod.Name, redact(pod, r.FlushProblem))+remedy)
	default:
		s.waitsFor(Soon, fmt.Sprintf("server %s: memcached drops its items", pod.Name))
		s.refresh(v, pod)
	}
	return false
}

// isWarm reports whether a server that has dropped its items need not warm up any more.
func (s *Step) isWarm(v View, pod *corev1.Pod, peers []*corev1.Pod) bool {
	spec := v.Memcached.Spec.Rollout.WarmUp
	askedAt, _ := flushOf(pod)
	return spec == nil || !v.Now.Before(askedAt.Add(time.Duration(spec.TimeoutSeconds)*time.Second)) ||
		len(s.warmUp(v, []*corev1.Pod{pod}, peers)) > 0
}

// Flush says how far servers are that must drop their items. The zero value says that there is nothing to drop.
type Flush struct {
	// Value is a digest of FlushedAtAnnotation, which may be long; empty if all are known to have dropped them.
	Value string
	// Left are yet to be asked, the ready ones first. Asked were, the last one at the end.
	Left, Asked []*corev1.Pod
	// Stopping serve until the operator lets them stop, and then stop with their items.
	Stopping []*corev1.Pod
}

// Flush returns how far servers are that must drop their items.
func (v View) Flush() (f Flush) {
	value := desired.FlushValue(v.Memcached)
	if value == "" || value == v.annotations()[v1alpha1.FlushedAtAnnotation] || v.Record.Template == nil {
		return f
	}
	f.Value = value
	for _, pod := range v.Servers {
		_, asked := flushOf(pod)
		switch {
		case !mayRun(pod):
		case isDraining(pod):
			f.Stopping = append(f.Stopping, pod)
		case !pod.DeletionTimestamp.IsZero():
		case asked == value:
			f.Asked = append(f.Asked, pod)
		default:
			f.Left = append(f.Left, pod)
		}
	}
	slices.SortFunc(f.Asked, func(a, b *corev1.Pod) int { // by time, which sorts as text
		return strings.Compare(a.Annotations[v1alpha1.FlushAnnotation], b.Annotations[v1alpha1.FlushAnnotation])
	})
	notReady := func(pod *corev1.Pod) bool { return !isReady(pod) }
	f.Left = slices.Concat(filter(f.Left, isReady), filter(f.Left, notReady))
	return f
}

// ToDrop returns the number of servers that are not known to have dropped their items.
func (f Flush) ToDrop(v View) int {
	n := len(f.Left) + len(f.Stopping)
	for i, pod := range f.Asked {
		report, ok := v.Reports[pod.Name]
		// The last one was asked only after those before had dropped their items.
		if ok && report.Flushed != pod.Annotations[v1alpha1.FlushAnnotation] || !ok && i == len(f.Asked)-1 {
			n++
		}
	}
	return n
}

// flushOf returns when a server was asked to drop its items, and for which Flush.Value.
func flushOf(pod *corev1.Pod) (at time.Time, value string) {
	text, value, _ := strings.Cut(pod.Annotations[v1alpha1.FlushAnnotation], " ")
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, ""
	}
	return at, value
}

// ask returns the value of FlushAnnotation that asks the next server to drop its items. Its agent compares the times,
// and they say who was asked last: each is later than those before, whatever the clocks say.
func (f Flush) ask(now time.Time) string {
	refreshed, _ := time.Parse(time.RFC3339, f.Left[0].Annotations[v1alpha1.RefreshedAnnotation]) // also when taken back
	times := []time.Time{refreshed, now.Add(-time.Second)}
	for _, pod := range append(f.Asked, f.Left[0]) {
		asked, _ := flushOf(pod)
		times = append(times, asked)
	}
	return slices.MaxFunc(times, time.Time.Compare).Add(time.Second).UTC().Format(time.RFC3339) + " " + f.Value
}
