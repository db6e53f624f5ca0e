package steps

import (
	"cmp"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

// changeMemory makes the next step of a server towards the memory of its template, in place.
func changeMemory(v View) (s Step) {
	if v.Set == nil {
		return s
	}
	step := NextMemoryStep(v.Set, v.Servers, names.Generation(v.Memcached))
	pod := step.Pod
	if pod == nil {
		return s
	}
	progress := func(text string) Step {
		return Step{Progress: status.ChangeProgress{Text: "server " + pod.Name + ": " + text}, Wait: Later}
	}
	if step.Confirm > 0 {
		switch r, ok := s.ask(v, pod); {
		case !ok:
			return s
		case r.Err != nil:
			return progress("its agent does not answer the operator")
		case r.Problem != "":
			return progress(told(pod, r.Problem))
		case r.Applied != pod.Annotations[v1alpha1.MemoryAnnotation] || r.Memory>>20 != step.Confirm:
			s.Progress.Text = fmt.Sprintf("server %s: memcached has %d MiB, and gets %d MiB", pod.Name, r.Memory>>20,
				step.Confirm)
			s.refresh(v, pod)
			return s
		}
	}
	switch {
	case step.Resize != nil:
		s.Resize = &Resize{Pod: pod, Memory: *step.Resize}
	case step.Annotation != "":
		s.Annotate = []Annotation{{pod, v1alpha1.MemoryAnnotation, step.Annotation, step.Revision}}
		if step.Check != nil {
			s.Resize = &Resize{Pod: pod, Memory: *step.Check, DryRun: true}
		}
	default:
		return progress(step.Waiting)
	}
	s.Wait = Soon
	return s
}

// MemoryStep is the next step of a server towards the memory of its template.
type MemoryStep struct {
	// Pod is that of the server; nil for none.
	Pod *corev1.Pod
	// Confirm is the memory for items, in MiB, that memcached must have before the step, as its agent reports; 0 for any.
	Confirm int64
	// Check is a memory of the container that the API server must accept before the step; nil for none.
	Check *status.Memory
	// Resize is a new memory of the container; nil for none.
	Resize *status.Memory
	// Annotation is a new value of MemoryAnnotation, and Revision the label that the pod has then; empty for none.
	Annotation, Revision string
	// Waiting says what the kubelet does meanwhile; empty unless the step is to wait for the kubelet.
	Waiting string
}

// NextMemoryStep returns the next step of the first server that has not the memory of the template, but otherwise
// differs in nothing; generation is that of the Memcached. memcached never has more memory than its container is for:
//
//   - More memory: first the container grows, then memcached.
//   - Less memory: first memcached shrinks, and reports that it did, then the container.
//   - Then the server gets the revision of the template, so that the StatefulSet counts it as updated.
//   - A server that is down is replaced, and so is one of another revision: it differs in more than its memory.
//   - Nothing changes unless the API server would accept the new memory of the container.
//   - The annotation says from the first step on that the operator changes this server, and in the end that this is
//     done. At all other times, other tools may change the container, but not limit it to less than the template does:
//     memcached would be killed when its cache fills.
func NextMemoryStep(set *appsv1.StatefulSet, pods []corev1.Pod, generation string) (s MemoryStep) {
	if !canRollOut(set) {
		return s
	}
	inPlace, wanted := desired.ReadRecord(set.Annotations).InPlace, status.ReadMemory(&set.Spec.Template.Spec)
	for i := range pods {
		pod := &pods[i]
		if ordinal(set, pod) < 0 || !pod.DeletionTimestamp.IsZero() || IsDown(pod) || isOutdated(set, pod, inPlace) {
			continue
		}
		if step := memoryStep(pod, wanted, set.Status.UpdateRevision, generation); step.Pod != nil &&
			(s.Pod == nil || ordinal(set, pod) < ordinal(set, s.Pod)) {
			s = step
		}
	}
	return s
}

func memoryStep(pod *corev1.Pod, wanted status.Memory, revision, generation string) (s MemoryStep) {
	own := status.ReadMemory(&pod.Spec)
	items, done, changed := status.ChangedMemory(pod)
	if !changed {
		items = own.Items
	}
	ownRevision := pod.Labels[appsv1.StatefulSetRevisionLabel]
	if ownRevision == revision && (!changed || done && items == wanted.Items) {
		if own.Limit > 0 && own.Limit < wanted.Limit {
			s.Pod, s.Resize = pod, &wanted
		}
		return s
	}
	s.Pod = pod
	annotate := func(items int64) { s.Annotation, s.Revision = fmt.Sprintf("%d %s", items, generation), ownRevision }
	sameContainer := own.Limit == wanted.Limit && own.Request == wanted.Request
	resized, why := status.IsResized(pod)
	switch {
	case !changed, done, items > wanted.Items:
		annotate(min(items, wanted.Items))
		s.Check = &wanted
	case !sameContainer:
		if own.Limit > wanted.Limit {
			s.Confirm = items
		}
		s.Resize = &wanted
	case !resized:
		s.Waiting = cmp.Or(why, "the kubelet changes the memory of the container")
	case items < wanted.Items:
		annotate(wanted.Items)
	default:
		s.Confirm, s.Revision = items, revision
		s.Annotation = pod.Annotations[v1alpha1.MemoryAnnotation] + " " + status.MemoryDone
	}
	return s
}
