package steps

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

// changeMemory gives servers the memory of their template, in place, one after the other. memcached never has more
// memory than its container is for:
//
//   - More memory: first the container grows, then memcached.
//   - Less memory: first memcached shrinks, and reports that it did, then the container.
//   - A server that must be replaced anyway is left alone.
//   - Nothing changes unless the API server would accept the new memory of the container.
//   - The annotation says from the first step on that the operator changes this server, and in the end that this is
//     done. At all other times, other tools may change the container, but not limit it to less than the template does:
//     memcached would be killed when its cache fills.
func changeMemory(v View) (s Step) {
	set := v.set()
	if set == nil || !canRollOut(set) {
		return s
	}
	wanted := status.ReadMemory(&set.Spec.Template.Spec)
	var next *corev1.Pod
	for i := range v.Servers {
		pod := &v.Servers[i]
		if n := ordinal(set, pod); n >= 0 && pod.DeletionTimestamp.IsZero() && !isDown(pod) && !isOutdated(set, pod) &&
			(!status.HasMemory(pod, wanted) || isLimited(pod, wanted)) && (next == nil || n < ordinal(set, next)) {
			next = pod
		}
	}
	if next != nil {
		s.changeMemoryOf(v, next, wanted)
	}
	return s
}

// isLimited reports whether somebody limited the container of a server to less memory.
func isLimited(pod *corev1.Pod, wanted status.Memory) bool {
	limit := status.ReadMemory(&pod.Spec).Limit
	return limit > 0 && limit < wanted.Limit
}

// changeMemoryOf makes the next step of a server.
func (s *Step) changeMemoryOf(v View, pod *corev1.Pod, wanted status.Memory) {
	own := status.ReadMemory(&pod.Spec)
	items, done, changed := status.RequestedMemory(pod)
	if !changed {
		items = own.Items
	}
	annotate := func(items int64) {
		s.annotate(pod, v1alpha1.MemoryAnnotation, fmt.Sprintf("%d %s", items, names.Generation(v.Memcached)))
	}
	resized, why := status.IsResized(pod)
	s.Wait = Soon
	switch {
	case status.HasMemory(pod, wanted):
		s.Resize = &Resize{Pod: pod, Memory: wanted}
	case !changed, done, items > wanted.Items:
		annotate(min(items, wanted.Items))
		s.Resize = &Resize{Pod: pod, Memory: wanted, DryRun: true}
	case own.Limit != wanted.Limit, own.Request != wanted.Request:
		if own.Limit <= wanted.Limit || s.confirmsMemory(v, pod, items) {
			s.Resize = &Resize{Pod: pod, Memory: wanted}
		}
	case !resized:
		s.Progress.Text = fmt.Sprintf("server %s: %s", pod.Name,
			cmp.Or(why, "the kubelet changes the memory of the container"))
		s.Wait = Later
	case items < wanted.Items:
		annotate(wanted.Items)
	case s.confirmsMemory(v, pod, items):
		s.annotate(pod, v1alpha1.MemoryAnnotation, pod.Annotations[v1alpha1.MemoryAnnotation]+" "+status.MemoryDone)
	}
}

// confirmsMemory asks whether memcached has the memory for items, in MiB, that the annotation of its pod asks for.
func (s *Step) confirmsMemory(v View, pod *corev1.Pod, items int64) bool {
	r, ok := s.ask(v, pod)
	progress := ""
	switch {
	case !ok:
		return false
	case r.Err != nil:
		progress, s.Wait = "its agent does not answer the operator", Later
	case r.Problem != "":
		progress, s.Wait = redact(pod, r.Problem), Later
	case r.Applied != pod.Annotations[v1alpha1.MemoryAnnotation] || r.Memory>>20 != items:
		progress = fmt.Sprintf("memcached has %d MiB, and gets %d MiB", r.Memory>>20, items)
		s.refresh(v, pod)
	default:
		return true
	}
	s.Progress.Text = "server " + pod.Name + ": " + progress
	return false
}
