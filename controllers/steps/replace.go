package steps

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

// replace deletes servers of an older template, a few at a time, so that the StatefulSet recreates them:
//
//   - Behind proxies that move items, an outdated server is deleted once no proxy uses it, or if it is down.
//   - While items move for another reason, nothing is deleted.
//   - Otherwise, an outdated server that is down is deleted at once: it holds no data.
//   - Of the others, those that are not ready are deleted first. They may hold data and even serve: the control plane
//     marks a server as not ready when its node is unreachable, and the kubelet when a probe fails, or when only the
//     agent is down. One is deleted only while fewer than maxUnavailable servers are missing, down, being deleted, or
//     new and not available.
//   - A server that is ready is deleted only while these, and all that are not ready, are fewer than maxUnavailable.
//   - A new server is available once it is ready for minReadySeconds and, with warmUp, once its pod is annotated as
//     warm, or after the timeout. It begins to warm up once all new servers are ready for minReadySeconds.
//   - Among servers in the same state, those with a higher ordinal are deleted first.
func replace(v View) (s Step, busy bool) {
	set := v.set()
	switch {
	case set == nil:
		return s, false
	case v.Routing.Moves:
		s.Delete = filter(v.serversOf(set), func(pod *corev1.Pod) bool {
			return isOutdated(set, pod) && (isDown(pod) || !v.Routing.mayUse(pod))
		})
		return s, len(s.Delete) > 0
	case v.Routing.List.Phase != contract.NoChange: // first the items reach their new servers
		return s, false
	}
	size := int(Replicas(set))
	var down, notReady, ready, updated []*corev1.Pod
	for _, pod := range slices.Backward(v.serversOf(set)) {
		ok := status.IsTrue(pod, corev1.PodReady)
		switch {
		case names.Ordinal(set.Name, pod.Name) >= size: // about to be removed
		case isOutdated(set, pod) && isDown(pod):
			down = append(down, pod)
		case isOutdated(set, pod) && ok:
			ready = append(ready, pod)
		case isOutdated(set, pod):
			notReady = append(notReady, pod)
		case ok:
			updated = append(updated, pod)
		}
	}
	available := v.available(set, len(updated))
	cold := filter(updated, func(pod *corev1.Pod) bool { left, _ := v.untilWarm(pod); return left > 0 })
	warmsUp := available == len(updated)
	available = min(available, len(updated)-len(cold))
	budget := int(v.Memcached.Spec.Rollout.MaxUnavailable) - size + available + len(ready) + len(notReady)
	fromNotReady := min(max(budget, 0), len(notReady))
	fromReady := min(max(budget-len(notReady), 0), len(ready))
	s.Delete = slices.Concat(down, notReady[:fromNotReady], ready[:fromReady])
	peers := slices.Concat(ready[fromReady:], notReady[fromNotReady:])
	if len(peers) > 0 && warmsUp {
		warm := s.warmUp(v, cold, peers)
		for _, pod := range cold {
			_, value := v.untilWarm(pod)
			if slices.Contains(warm, pod) {
				value = warmSince(pod)
			}
			if pod.Annotations[v1alpha1.WarmAnnotation] != value {
				s.annotate(pod, v1alpha1.WarmAnnotation, value)
			}
		}
	}
	return s, len(peers)+len(s.Delete) > 0
}

// available returns how many of the new servers that are ready are so for minReadySeconds. The status of the
// StatefulSet says that: the operator's clock may differ from those of the kubelets.
//
//   - The status also counts servers of older templates, those that terminate, and those beyond the size. All of these
//     that are ready are subtracted, whether they are available or not.
//   - The status does not count the newest servers yet, or counts one as ready that is not any more: no new server
//     counts. That status may be older than a deletion.
func (v View) available(set *appsv1.StatefulSet, updated int) int {
	state := status.ReadState(set, v.Servers...)
	ready := len(filter(v.Servers, func(pod *corev1.Pod) bool { return status.IsTrue(pod, corev1.PodReady) }))
	if state.Newest != state.NewestPods || int(state.Ready) > ready {
		return 0
	}
	return min(max(int(state.Available)-(ready-updated), 0), updated)
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

// Draining returns the servers that are about to stop, and serve until the operator lets them stop.
func Draining(pods []*corev1.Pod) []*corev1.Pod { return filter(pods, isDraining) }

// isOutdated reports whether a server must be replaced. A server that is down holds nothing, and is replaced too if its
// arguments or its container have another memory than the template.
func isOutdated(set *appsv1.StatefulSet, pod *corev1.Pod) bool {
	if status.IsOutdated(set, pod) {
		return true
	}
	_, _, changed := status.RequestedMemory(pod)
	return isDown(pod) && (changed || !status.HasMemory(pod, status.ReadMemory(&set.Spec.Template.Spec)))
}

// isReady reports whether a pod is ready and not being deleted.
func isReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp.IsZero() && status.IsTrue(pod, corev1.PodReady)
}

// mayRun reports whether a pod runs, or is about to.
func mayRun(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// isDown reports whether memcached is not ready and probably holds nothing, by the last report of the kubelet: it does
// not run, or it started after the containers of its pod were ready for the last time. If it runs for longer, a probe
// failed, and it may hold items. The last report from a node that is unreachable may still say that memcached is ready.
func isDown(pod *corev1.Pod) bool {
	if status.IsTrue(pod, corev1.PodReady) || status.IsTrue(pod, corev1.ContainersReady) ||
		!status.Since(pod, corev1.ContainersReady, corev1.ConditionUnknown).IsZero() {
		return false
	}
	notReadySince := status.Since(pod, corev1.ContainersReady, corev1.ConditionFalse)
	isEmpty := func(s corev1.ContainerStatus) bool {
		running := s.State.Running
		return s.Name == names.Container && !s.Ready && (running == nil || !running.StartedAt.Time.Before(notReadySince))
	}
	return pod.Spec.NodeName == "" || slices.ContainsFunc(pod.Status.ContainerStatuses, isEmpty)
}
