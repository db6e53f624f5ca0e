// Package steps decides what happens to pods next: which are missing, which servers are replaced, resized or flushed,
// and what proxies have confirmed. It is pure: it has no client, and the caller passes the time.
//
// inOrder has the steps, each in a file of its own. A step that needs to know what agents report asks for their reports
// first. NextMove decides which servers the proxies use next, before the children are applied.
package steps

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

const (
	// Soon is the delay before a reconcile that looks for what takes a moment, and what no watch event tells.
	Soon = 500 * time.Millisecond
	// Later is that delay if somebody must act first, or if an agent did not answer, which costs a worker its timeout.
	Later = 10 * time.Second
	// Pace is the least time between two reconciles while servers come and go.
	Pace = 2 * time.Second
)

// Step is what to do next.
type Step struct {
	// Ask are the pods whose agents must report before the step is known.
	Ask []*corev1.Pod
	// Create is a pod that is missing, to create as a dry run; nil for none. Retry says that its owner may be changed, so
	// that its controller tries again at once.
	Create *corev1.Pod
	Retry  bool
	// Delete are servers of a StatefulSet, whose controller recreates them.
	Delete []*corev1.Pod
	// Stop are servers that are about to stop, and may do so now.
	Stop []*corev1.Pod
	// Flushed is the value of FlushedAtAnnotation for which all servers have dropped their items; empty for none.
	Flushed string
	// Annotate are changes of pods.
	Annotate []Annotation
	// Resize is the container to resize; nil for none.
	Resize *Resize
	// Progress says how far a change is.
	Progress status.ChangeProgress
	// Wait is how long until the next look; 0 if a watch event will trigger it.
	Wait time.Duration
}

// Annotation is an annotation of a pod.
type Annotation struct {
	Pod        *corev1.Pod
	Key, Value string
}

// Resize is a new memory of a server's container.
type Resize struct {
	Pod *corev1.Pod
	status.Memory
	// DryRun only asks the API server whether it would accept that memory.
	DryRun bool
}

// inOrder are all steps. If one is busy, those after it wait.
var inOrder = []func(View) (s Step, busy bool){chores, create, replace, changeMemory, flush}

// Next returns the next step. While it waits for reports, it is nothing but Ask.
func Next(v View) (s Step) {
	for _, step := range inOrder {
		next, busy := step(v)
		s = s.and(next)
		if busy {
			break
		}
	}
	if len(s.Ask) > 0 {
		return Step{Ask: s.Ask}
	}
	return s
}

// and returns both steps as one.
func (s Step) and(other Step) Step {
	s.Ask = append(s.Ask, other.Ask...)
	s.Create, s.Retry = cmp.Or(s.Create, other.Create), s.Retry || other.Retry
	s.Delete = append(s.Delete, other.Delete...)
	for _, pod := range other.Stop {
		if !slices.Contains(s.Stop, pod) {
			s.Stop = append(s.Stop, pod)
		}
	}
	s.Flushed = cmp.Or(s.Flushed, other.Flushed)
	s.Annotate = append(s.Annotate, other.Annotate...)
	s.Resize = cmp.Or(s.Resize, other.Resize)
	s.Progress = cmp.Or(s.Progress, other.Progress)
	s.Wait = Soonest(s.Wait, other.Wait)
	return s
}

// IsIrreversible reports whether the step cannot be taken back. Then it must also follow from what the API server has.
func (s Step) IsIrreversible() bool { return len(s.Delete)+len(s.Stop)+len(s.flushes()) > 0 }

// SameIrreversible reports whether two steps do the same that cannot be taken back.
func (s Step) SameIrreversible(other Step) bool {
	same := func(a, b *corev1.Pod) bool { return a.Name == b.Name && a.UID == b.UID }
	return slices.EqualFunc(s.Delete, other.Delete, same) && slices.EqualFunc(s.Stop, other.Stop, same) &&
		slices.EqualFunc(s.flushes(), other.flushes(), same)
}

// flushes returns the servers that are asked to drop their items.
func (s Step) flushes() (pods []*corev1.Pod) {
	for _, a := range s.Annotate {
		if a.Key == v1alpha1.FlushAnnotation && a.Value != "" {
			pods = append(pods, a.Pod)
		}
	}
	return pods
}

// Soonest returns the shortest positive duration; 0 for none.
func Soonest(durations ...time.Duration) (shortest time.Duration) {
	for _, d := range durations {
		if d > 0 && (shortest == 0 || d < shortest) {
			shortest = d
		}
	}
	return shortest
}

// ask returns the report of an agent. If it was not asked yet, ok is false, and the step asks.
func (s *Step) ask(v View, pod *corev1.Pod) (r Report, ok bool) {
	if r, ok = v.Reports[pod.Name]; !ok && !slices.Contains(s.Ask, pod) {
		s.Ask = append(s.Ask, pod)
	}
	return r, ok
}

// needs returns the report of an agent that the step cannot do without. If there is none, ok is false, and the step
// asks, or says that the agent does not answer.
func (s *Step) needs(v View, who string, pod *corev1.Pod) (r contract.Report, ok bool) {
	report, ok := s.ask(v, pod)
	if ok && report.Err != nil {
		s.waitsFor(Later, fmt.Sprintf("%s %s does not answer the operator on port %d", who, pod.Name,
			names.ReportPort(v.Memcached)))
		return r, false
	}
	return report.Report, ok
}

// waitsFor says what the step waits for, and looks again after a delay.
func (s *Step) waitsFor(delay time.Duration, what string) {
	s.Progress.Text = what
	s.Wait = Soonest(s.Wait, delay)
}

// annotate changes an annotation of a pod, and looks again soon.
func (s *Step) annotate(pod *corev1.Pod, key, value string) {
	s.Annotate = append(s.Annotate, Annotation{pod, key, value})
	s.Wait = Soonest(s.Wait, Soon)
}

// refresh makes the kubelet refresh the volumes of a pod once more if the last change of an annotation is some seconds
// old: a kubelet that is busy with the pod may miss the change.
func (s *Step) refresh(v View, pod *corev1.Pod) {
	last, err := time.Parse(time.RFC3339, pod.Annotations[v1alpha1.RefreshedAnnotation])
	if err != nil || v.Now.Sub(last).Abs() > refreshAfter {
		s.annotate(pod, v1alpha1.RefreshedAnnotation, v.Now.UTC().Format(time.RFC3339))
	}
	s.Wait = Soonest(s.Wait, Soon)
}

// refreshAfter is how long a kubelet may take to refresh the volumes of a pod before it is asked again.
const refreshAfter = 5 * time.Second

// redact returns what an agent reports, unless its pod has a Secret: memcached is of the user's image, and could put
// the content into its answer.
func redact(pod *corev1.Pod, report string) string {
	if pod.Annotations[v1alpha1.SecretsAnnotation] != "" {
		return "its agent could not change memcached; the log of the agent says why"
	}
	return report
}

// filter returns the pods that a function selects.
func filter(pods []*corev1.Pod, selected func(*corev1.Pod) bool) (list []*corev1.Pod) {
	for _, pod := range pods {
		if selected(pod) {
			list = append(list, pod)
		}
	}
	return list
}
