package steps

import (
	"cmp"
	"fmt"
	"slices"

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
func changeMemory(v View) (s Step, busy bool) {
	set := v.set()
	if set == nil {
		return s, false
	}
	wanted, servers := status.ReadMemory(&set.Spec.Template.Spec), v.serversOf(set)
	next := slices.IndexFunc(servers, func(pod *corev1.Pod) bool {
		limit := status.ReadMemory(&pod.Spec).Limit
		isLimited := limit > 0 && limit < wanted.Limit
		return !isDown(pod) && !isOutdated(set, pod) && (!status.HasMemory(pod, wanted) || isLimited)
	})
	if next >= 0 {
		s.changeMemoryOf(v, servers[next], wanted)
	}
	return s, false
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
		s.waitsFor(Later, fmt.Sprintf("server %s: %s", pod.Name,
			cmp.Or(why, "the kubelet changes the memory of the container")))
	case items < wanted.Items:
		annotate(wanted.Items)
	case s.confirmsMemory(v, pod, items):
		s.annotate(pod, v1alpha1.MemoryAnnotation, pod.Annotations[v1alpha1.MemoryAnnotation]+" "+status.MemoryDone)
	}
	s.Wait = cmp.Or(s.Wait, Soon)
}

// confirmsMemory asks whether memcached has the memory for items, in MiB, that the annotation of its pod asks for.
func (s *Step) confirmsMemory(v View, pod *corev1.Pod, items int64) bool {
	r, ok := s.needs(v, "server", pod)
	switch {
	case !ok:
		return false
	case r.Problem != "":
		s.waitsFor(Later, fmt.Sprintf("server %s: %s", pod.Name, redact(pod, r.Problem)))
		return false
	case r.Applied != pod.Annotations[v1alpha1.MemoryAnnotation] || r.Memory>>20 != items:
		s.waitsFor(Soon, fmt.Sprintf("server %s: memcached has %d MiB, and gets %d MiB", pod.Name, r.Memory>>20, items))
		s.refresh(v, pod)
		return false
	}
	return true
}
