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

// flush makes servers drop their items, one after the other, for each new value of FlushedAtAnnotation. It ends once
// all servers have reported that they did.
//
//   - Behind proxies, it begins once no items move. None move until it has ended.
//   - The next server is asked once the one before has dropped its items and, with warmUp, is warm or had time for
//     that.
//   - A server that is about to stop stops with its items.
//   - The annotation was removed: no further server is asked, and none that has not noticed yet.
func flush(v View) (s Step, busy bool) {
	f := v.Flush()
	value := v.Memcached.Annotations[v1alpha1.FlushedAtAnnotation]
	switch {
	case v.Memcached.Spec.Paused:
		return s, false
	case value == "":
		for i := range v.Servers {
			pod := &v.Servers[i]
			if _, asked := flushOf(pod); asked != "" && asked != v.Flushed {
				s.annotate(pod, v1alpha1.FlushAnnotation, "")
			}
		}
		return s, false
	case !f.Pending:
		return s, false
	}
	s.Stop = f.Stopping
	cannot := ""
	switch {
	case slices.Contains(v.Memcached.Spec.ExtraArgs, "--disable-flush-all"):
		cannot = "spec.extraArgs has --disable-flush-all"
	case f.Cannot != "":
		cannot = fmt.Sprintf("server %s has no agent that can flush it", f.Cannot)
	case v.Routing.List.Phase != mover.NoChange || v.Routing.Proxies.NotLoaded() != "": // first, all items arrive
	case len(f.Left) > 0:
		if last := len(f.Asked) - 1; last < 0 || s.hasFlushed(v, f.Asked[last]) && s.isWarm(v, f.Asked[last], f.Left) {
			s.annotate(f.Left[0], v1alpha1.FlushAnnotation, askFlush(f.Left[0], value, v.Now))
			s.Final = true
		}
	case len(f.Stopping) > 0:
		s.Progress.Text = fmt.Sprintf("server %s is about to stop with its items", f.Stopping[0].Name)
	default:
		all := true
		for _, pod := range f.Asked {
			all = s.hasFlushed(v, pod) && all
		}
		if all {
			s.Flushed = value
		}
	}
	if cannot != "" {
		s.Progress.Text = cannot + flushRemedy
	}
	return s, true
}

// flushRemedy is what a user can do about a flush that does not go on.
const flushRemedy = "; or remove the annotation " + v1alpha1.FlushedAtAnnotation

// hasFlushed asks whether a server has dropped its items.
func (s *Step) hasFlushed(v View, pod *corev1.Pod) bool {
	r, ok := s.ask(v, pod)
	switch {
	case !ok:
	case r.Err != nil:
		s.Progress.Text = fmt.Sprintf("server %s: its agent does not answer the operator", pod.Name) + flushRemedy
		s.Wait = Later
	case r.Flushed == pod.Annotations[v1alpha1.FlushAnnotation]:
		return true
	case r.FlushProblem != "":
		s.Progress.Text = fmt.Sprintf("server %s: %s", pod.Name, told(pod, r.FlushProblem)) + flushRemedy
		s.Wait = Later
	default:
		s.Progress.Text = fmt.Sprintf("server %s: memcached drops its items", pod.Name)
		s.refresh(v, pod)
	}
	return false
}

// isWarm reports whether a server that has dropped its items need not warm up any more.
func (s *Step) isWarm(v View, pod *corev1.Pod, peers []*corev1.Pod) (warm bool) {
	spec := v.Memcached.Spec.Rollout.WarmUp
	asked, _ := flushOf(pod)
	if spec == nil || !v.Now.Before(asked.Add(time.Duration(spec.TimeoutSeconds)*time.Second)) {
		return true
	}
	s.warmUp(v, []*corev1.Pod{pod}, peers, func(*corev1.Pod) { warm = true })
	return warm
}

// Flush says how far servers are that must drop their items.
type Flush struct {
	// Pending says that not all are known to have dropped them.
	Pending bool
	// Left are yet to be asked, the ready ones first. Asked were, the last one at the end.
	Left, Asked []*corev1.Pod
	// Stopping serve until the operator lets them stop, and then stop with their items.
	Stopping []*corev1.Pod
	// Cannot is a server whose agent cannot make memcached drop its items; empty for none.
	Cannot string
}

// Flush returns how far servers are that must drop their items.
func (v View) Flush() (f Flush) {
	value := v.Memcached.Annotations[v1alpha1.FlushedAtAnnotation]
	if value == "" || value == v.Flushed || v.Record.Template == nil {
		return f
	}
	f.Pending = true
	for i := range v.Servers {
		pod := &v.Servers[i]
		_, asked := flushOf(pod)
		switch {
		case !mayRun(pod):
		case IsDraining(pod):
			f.Stopping = append(f.Stopping, pod)
		case !pod.DeletionTimestamp.IsZero():
		case asked == value:
			f.Asked = append(f.Asked, pod)
		default:
			f.Left = append(f.Left, pod)
			if !status.CanFlush(pod) && (f.Cannot == "" || pod.Name < f.Cannot) {
				f.Cannot = pod.Name
			}
		}
	}
	slices.SortFunc(f.Asked, func(a, b *corev1.Pod) int {
		askedA, _ := flushOf(a)
		askedB, _ := flushOf(b)
		return askedA.Compare(askedB)
	})
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

// ToDrop returns the number of servers that are not known to have dropped their items.
func (f Flush) ToDrop(v View) int {
	n := len(f.Left) + len(f.Stopping)
	if last := len(f.Asked) - 1; last >= 0 {
		pod := f.Asked[last]
		if v.Agents.Reports[pod.Name].Flushed != pod.Annotations[v1alpha1.FlushAnnotation] {
			n++
		}
	}
	return n
}

// flushOf returns when a server was asked to drop its items, and for which value of FlushedAtAnnotation.
func flushOf(pod *corev1.Pod) (at time.Time, value string) {
	text, value, _ := strings.Cut(pod.Annotations[v1alpha1.FlushAnnotation], " ")
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, ""
	}
	return at, value
}

// askFlush returns the value of FlushAnnotation that asks a server to drop its items. The agent compares the times:
// each is later than the one before, whatever the clocks say.
func askFlush(pod *corev1.Pod, value string, now time.Time) string {
	if last, _ := flushOf(pod); !now.After(last.Add(time.Second)) {
		now = last.Add(time.Second)
	}
	return now.UTC().Format(time.RFC3339) + " " + value
}
