package steps

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/agent/mover"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/status"
)

// flush makes the next step of servers that must drop their items, one after the other.
func flush(v View) (s Step, busy bool) {
	f, begun := v.Flush()
	asked := v.Memcached.Annotations[v1alpha1.FlushedAtAnnotation]
	if v.Memcached.Spec.Paused {
		return s, false
	}
	s.Stop = append(s.Stop, f.Stopping...) // their items need not move
	switch {
	case asked == "": // taken back
		for _, pod := range f.Asked {
			s.annotate(pod, v1alpha1.FlushAnnotation, "")
		}
	case len(f.Asked) > 0:
		for _, pod := range f.Asked {
			s.flushed(v, pod)
		}
	case !begun:
		if _, why := BeginFlush(v, v.Routing.List); why != "" {
			s.Progress.Text = why + flushRemedy
		}
	case v.Routing.List.Phase != mover.NoChange || v.Routing.Proxies.NotLoaded() != "": // first, all items arrive
	case len(f.Left) == 0:
		if len(f.Stopping) > 0 {
			s.Progress.Text = fmt.Sprintf("server %s is about to stop with its items", f.Stopping[0].Name)
		}
	default:
		warming := f.Warming(v.Memcached.Spec.Rollout.WarmUp, v.Now)
		s.warmUp(v, warming, f.Left, func(pod *corev1.Pod) {
			s.annotate(pod, v1alpha1.FlushAnnotation, FlushAnnotation(pod, Warm))
		})
		if len(warming) == 0 {
			s.annotate(f.Left[0], v1alpha1.FlushAnnotation, f.Ask(v.Now))
			s.Final = true
		}
	}
	return s, f.Pending() > 0
}

// flushRemedy is what a user can do about a flush that does not go on.
const flushRemedy = "; or remove the annotation " + v1alpha1.FlushedAtAnnotation

// flushed asks whether a server has dropped its items.
func (s *Step) flushed(v View, pod *corev1.Pod) {
	s.Wait = Soonest(s.Wait, Soon)
	switch r, ok := s.ask(v, pod); {
	case !ok:
	case r.Err != nil:
		s.Progress.Text = fmt.Sprintf("server %s: its agent does not answer the operator", pod.Name) + flushRemedy
		s.Wait = Later
	case r.Flushed == pod.Annotations[v1alpha1.FlushAnnotation]:
		s.annotate(pod, v1alpha1.FlushAnnotation, FlushAnnotation(pod, Flushed))
	case r.FlushProblem != "":
		s.Progress.Text = fmt.Sprintf("server %s: %s", pod.Name, told(pod, r.FlushProblem)) + flushRemedy
		s.Wait = Later
	default:
		s.Progress.Text = fmt.Sprintf("server %s: memcached drops its items", pod.Name)
		s.refresh(v, pod)
	}
}

// Flush returns how far servers are that must drop their items; begun is false if that is asked for, and has not begun.
func (v View) Flush() (f Flush, begun bool) {
	asked := v.Memcached.Annotations[v1alpha1.FlushedAtAnnotation]
	f = ReadFlush(v.Servers, v.Record.Flush.Time)
	begun = asked == "" || asked == v.Record.FlushedAt || v.Record.Template == nil
	if !begun || asked == "" { // another one is asked for, or none any more
		f.Left, f.Stopping = nil, nil
	}
	return f, begun
}

// BeginFlush returns the time to record for a flush that begins now, and otherwise why it cannot; zero and empty while
// items move, and if none has yet to begin.
func BeginFlush(v View, next mover.Servers) (at time.Time, why string) {
	last, begun := v.Flush()
	if begun {
		return at, ""
	}
	begin, cannot := FlushBegin(v.Servers, last.Time, v.Now)
	switch {
	case slices.Contains(v.Memcached.Spec.ExtraArgs, "--disable-flush-all"):
		why = "spec.extraArgs has --disable-flush-all"
	case cannot != "":
		why = fmt.Sprintf("server %s has no agent that can flush it", cannot)
	case v.Routing.List.Phase == mover.NoChange && next.Phase == mover.NoChange:
		return begin, ""
	}
	return at, why
}

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
