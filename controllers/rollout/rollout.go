// Package rollout decides which pods to replace and which to annotate. Deciding is pure: no client, and of the clock
// only what the caller says.
package rollout

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

// Replace returns the servers of a StatefulSet to delete now, so that the StatefulSet creates each anew from the newest
// template, and how long until a new server counts as available; 0 where a watch tells.
//
//   - An outdated server whose memcached the kubelet calls not ready, or that no node runs, is deleted at once: it
//     holds nothing.
//   - Any other outdated server costs budget, of which there is maxUnavailable. A pod that is not ready may serve
//     nevertheless: the control plane calls it so when its node does not answer, and the kubelet when only the agent is
//     down.
//   - A server that is missing, is being deleted, or is new and not ready for minReadySeconds yet, takes budget away.
//   - Servers with a higher number go first.
//   - Nothing is deleted while the StatefulSet is being deleted, or its controller has not seen the newest template.
func Replace(set *appsv1.StatefulSet, pods []corev1.Pod, maxUnavailable int32,
	now time.Time) (replace []*corev1.Pod, wait time.Duration) {
	if set.Status.ObservedGeneration < set.Generation || !set.DeletionTimestamp.IsZero() {
		return nil, 0
	}
	size := int(ptr.Deref(set.Spec.Replicas, 1))
	budget, minReady := int(maxUnavailable)-size, time.Duration(set.Spec.MinReadySeconds)*time.Second
	var down, serving []*corev1.Pod
	for i := range pods {
		pod := &pods[i]
		if n := ordinal(set, pod); n < 0 || n >= size || !pod.DeletionTimestamp.IsZero() {
			continue // of another workload, about to be removed, or about to be created anew
		}
		if pod.Labels[appsv1.StatefulSetRevisionLabel] != set.Status.UpdateRevision {
			if isDown(pod) {
				down = append(down, pod)
			} else {
				serving = append(serving, pod)
				budget++
			}
			continue
		}
		if since, ready := status.ReadySince(pod); ready {
			if left := since.Add(minReady).Sub(now); left <= 0 {
				budget++
			} else if wait == 0 || left < wait {
				wait = left
			}
		}
	}
	highestFirst := func(a, b *corev1.Pod) int { return cmp.Compare(ordinal(set, b), ordinal(set, a)) }
	slices.SortFunc(down, highestFirst)
	slices.SortFunc(serving, highestFirst)
	affordable := min(max(budget, 0), len(serving))
	if affordable == len(serving) {
		wait = 0
	}
	return append(down, serving[:affordable]...), wait
}

// isDown reports whether memcached does not serve, in the words of the kubelet: an old report of a node that does not
// answer any more says that memcached was ready.
func isDown(pod *corev1.Pod) bool {
	if status.IsTrue(pod, corev1.PodReady) || status.IsTrue(pod, corev1.ContainersReady) {
		return false
	}
	return pod.Spec.NodeName == "" || slices.ContainsFunc(pod.Status.ContainerStatuses,
		func(s corev1.ContainerStatus) bool { return s.Name == names.Container && !s.Ready })
}

// ordinal is the number of a server; -1 for a pod that is none of the StatefulSet.
func ordinal(set *appsv1.StatefulSet, pod *corev1.Pod) int {
	number, ok := strings.CutPrefix(pod.Name, set.Name+"-")
	n, err := strconv.Atoi(number)
	if !ok || err != nil || !metav1.IsControlledBy(pod, set) {
		return -1
	}
	return n
}

// Annotate returns the pods whose annotation has another value: a kubelet refreshes the Secrets and ConfigMaps that a
// pod mounts when an annotation of the pod changes, and otherwise within a minute or two.
func Annotate(pods []corev1.Pod, annotation, value string) (list []*corev1.Pod) {
	for i := range pods {
		if pod := &pods[i]; value != "" && pod.Annotations[annotation] != value && pod.DeletionTimestamp.IsZero() {
			list = append(list, pod)
		}
	}
	return list
}
