package steps

import (
	"cmp"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

// replace deletes servers of an older template, a few at a time, so that the StatefulSet recreates them. Behind proxies
// that move items, it deletes those that no proxy uses any more.
func replace(v View) (s Step, busy bool) {
	set := v.set()
	switch {
	case set == nil:
		return s, false
	case v.Routing.Moves:
		s.Delete = unusedToReplace(set, v.Servers, v.Routing.inUse())
		s.Final = len(s.Delete) > 0
		return s, s.Final
	case v.Routing.List.Phase != contract.NoChange: // first the items reach their new servers
		return s, false
	}
	r := nextRollout(set, v.Servers, v.Memcached.Spec.Rollout, v.Now)
	s.Delete, s.Final, s.Wait = r.Replace, len(r.Replace) > 0, r.Wait
	s.warmUp(v, r.Warming, r.Peers, func(pod *corev1.Pod) { s.annotate(pod, v1alpha1.WarmAnnotation, warmSince(pod)) })
	return s, len(r.Replace)+len(r.Peers) > 0
}

// rollout is what a rollout of a StatefulSet does next.
type rollout struct {
	// Replace are the servers to delete now, so that the StatefulSet recreates them from the newest template.
	Replace []*corev1.Pod
	// Warming are the new servers that must warm up before the next one is replaced, and Peers the outdated ones that they
	// are compared with.
	Warming, Peers []*corev1.Pod
	// Wait is how long until a new server counts as available; 0 if a watch event will trigger a reconcile.
	Wait time.Duration
}

// nextRollout returns the next step of a rollout.
//
//   - An outdated server that is down is deleted at once: it holds no data.
//   - Of the other outdated servers, those that are not ready are deleted first. They may hold data and even serve:
//     the control plane marks a server as not ready when its node is unreachable, and the kubelet when a probe fails,
//     or when only the agent is down. One is deleted only while fewer than maxUnavailable servers are missing, down,
//     being deleted, or new and not available.
//   - A server that is ready is deleted only while these, and all that are not ready, are fewer than maxUnavailable.
//   - A new server is available once it is ready for minReadySeconds and, with warmUp, once its pod is annotated as
//     warm, or after the timeout.
//   - Otherwise, servers with a higher ordinal are deleted first.
//   - Nothing is deleted while the StatefulSet is being deleted, or before its controller observed the new template.
func nextRollout(set *appsv1.StatefulSet, pods []corev1.Pod, spec v1alpha1.RolloutSpec, now time.Time) (s rollout) {
	if !canRollOut(set) {
		return s
	}
	size := int(ptr.Deref(set.Spec.Replicas, 1))
	available, minReady := 0, time.Duration(set.Spec.MinReadySeconds)*time.Second
	var down, notReady, ready []*corev1.Pod
	for i := range pods {
		pod := &pods[i]
		if n := ordinal(set, pod); n < 0 || n >= size || !pod.DeletionTimestamp.IsZero() {
			continue // foreign, about to be removed, or being replaced already
		}
		if isOutdated(set, pod) {
			switch {
			case isDown(pod):
				down = append(down, pod)
			case status.IsTrue(pod, corev1.PodReady):
				ready = append(ready, pod)
			default:
				notReady = append(notReady, pod)
			}
			continue
		}
		if since, ready := status.ReadySince(pod); ready {
			left := since.Add(minReady).Sub(now)
			if warmUp := untilWarm(pod, spec.WarmUp, now); left <= 0 && warmUp > 0 {
				left, s.Warming = warmUp, append(s.Warming, pod)
			}
			if left <= 0 {
				available++
			} else if s.Wait == 0 || left < s.Wait {
				s.Wait = left
			}
		}
	}
	highestFirst := func(a, b *corev1.Pod) int { return cmp.Compare(ordinal(set, b), ordinal(set, a)) }
	for _, list := range [][]*corev1.Pod{down, notReady, ready} {
		slices.SortFunc(list, highestFirst)
	}
	budget := int(spec.MaxUnavailable) - size + available + len(ready) + len(notReady)
	fromNotReady := min(max(budget, 0), len(notReady))
	fromReady := min(max(budget-len(notReady), 0), len(ready))
	s.Replace = slices.Concat(down, notReady[:fromNotReady], ready[:fromReady])
	s.Peers = slices.Concat(ready[fromReady:], notReady[fromNotReady:])
	if len(s.Peers) == 0 {
		s.Wait, s.Warming = 0, nil
	}
	return s
}

// unusedToReplace returns the servers of a StatefulSet to delete now, where the items of each server are moved before
// it is replaced: the outdated ones that no proxy uses, and those that are down.
func unusedToReplace(set *appsv1.StatefulSet, pods []corev1.Pod, inUse func(name string) bool) (list []*corev1.Pod) {
	if !canRollOut(set) {
		return nil
	}
	for i := range pods {
		pod := &pods[i]
		if ordinal(set, pod) >= 0 && pod.DeletionTimestamp.IsZero() && isOutdated(set, pod) &&
			(isDown(pod) || !inUse(pod.Name)) {
			list = append(list, pod)
		}
	}
	return list
}

// mustBeEmptied returns the ordinals of the servers of an older template, or that are about to stop, that have items
// to move.
func mustBeEmptied(set *appsv1.StatefulSet, pods []corev1.Pod) map[int]bool {
	outdated := map[int]bool{}
	for i := range pods {
		pod := &pods[i]
		if n := ordinal(set, pod); n >= 0 && !isDown(pod) {
			outdated[n] = isOutdated(set, pod) || isDraining(pod)
		}
	}
	return outdated
}

// isDraining reports whether a server is about to stop, and serves until the operator lets it stop.
func isDraining(pod *corev1.Pod) bool {
	return (!pod.DeletionTimestamp.IsZero() || kubeletWaits(pod)) && status.StopsThroughAgent(pod) && !isDown(pod)
}

// kubeletWaits reports whether the kubelet has told the agent of a server that it stops memcached. The pod need not be
// deleted for that: the kubelet also stops a container whose image was changed in the pod, the pods of a node that is
// shut down, and those that it evicts itself.
func kubeletWaits(pod *corev1.Pod) bool {
	since := pod.Annotations[v1alpha1.DrainingAnnotation]
	return since != "" && since == status.RunningSince(pod)
}

// MayStop returns the servers that are about to stop and that no proxy uses.
func MayStop(pods []corev1.Pod, inUse func(name string) bool) (list []*corev1.Pod) {
	for i := range pods {
		if pod := &pods[i]; isDraining(pod) && !inUse(pod.Name) {
			list = append(list, pod)
		}
	}
	return list
}

// canRollOut reports whether servers may change: the controller of the StatefulSet has observed the newest template,
// and the StatefulSet is not being deleted.
func canRollOut(set *appsv1.StatefulSet) bool {
	return set.Status.ObservedGeneration >= set.Generation && set.DeletionTimestamp.IsZero()
}

// isOutdated reports whether a server must be replaced. A server that is down holds nothing, and is replaced too if its
// arguments or its container have another memory than the template.
func isOutdated(set *appsv1.StatefulSet, pod *corev1.Pod) bool {
	if status.IsOutdated(set, pod) {
		return true
	}
	_, _, changed := status.RequestedMemory(pod)
	return isDown(pod) && (changed || !status.HasMemory(pod, status.ReadMemory(&set.Spec.Template.Spec)))
}

// mayRun reports whether a pod runs, or is about to.
func mayRun(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// isDown reports whether memcached is not ready and probably holds nothing, by the last report of the kubelet: it does
// not run, or it started after the containers of its pod were ready for the last time. If it runs for longer, a probe
// failed, and it may hold items. The last report from a node that is unreachable may still say that memcached is ready.
func isDown(pod *corev1.Pod) bool {
	if status.IsTrue(pod, corev1.PodReady) || status.IsTrue(pod, corev1.ContainersReady) {
		return false
	}
	var notReadySince metav1.Time
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.ContainersReady {
			notReadySince = c.LastTransitionTime
		}
	}
	isEmpty := func(s corev1.ContainerStatus) bool {
		running := s.State.Running
		return s.Name == names.Container && !s.Ready && (running == nil || !running.StartedAt.Before(&notReadySince))
	}
	return pod.Spec.NodeName == "" || slices.ContainsFunc(pod.Status.ContainerStatuses, isEmpty)
}

// ordinal returns the ordinal of a server; -1 for a pod that the StatefulSet does not control.
func ordinal(set *appsv1.StatefulSet, pod *corev1.Pod) int {
	if !metav1.IsControlledBy(pod, set) {
		return -1
	}
	return names.Ordinal(set.Name, pod.Name)
}
