package steps

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/status"
)

const (
	// pollInterval is the time between two polls, and unreachableInterval that while a proxy does not reach a server.
	pollInterval        = 10 * time.Second
	unreachableInterval = time.Second
	// reachDelay is how long a server may be ready before proxies must reach it: their reports are seconds old.
	reachDelay = 10 * time.Second
)

// chores is what is always done, whatever step is next. While the Memcached is paused, no pod changes; a server that
// somebody deletes then stops at once.
func chores(v View) (s Step) {
	inUse := v.Routing.inUse()
	moves := v.Routing.Moves && !v.Memcached.Spec.Paused
	s.Stop = MayStop(v.Servers, func(name string) bool { return moves && inUse(name) })
	s.Final = moves && len(s.Stop) > 0
	s.poll(v)
	if v.Memcached.Spec.Paused {
		return s
	}
	for i := range v.Servers {
		// A kubelet refreshes the Secrets that a pod mounts when an annotation of the pod changes, and otherwise within a
		// minute or two.
		pod := &v.Servers[i]
		if v.Secrets != "" && pod.Annotations[v1alpha1.SecretsAnnotation] != v.Secrets && pod.DeletionTimestamp.IsZero() {
			s.Annotate = append(s.Annotate, Annotation{pod, v1alpha1.SecretsAnnotation, v.Secrets})
		}
	}
	if v.Memcached.Spec.Proxy == nil {
		return s
	}
	for _, pod := range v.Routing.toAnnotate() {
		s.annotate(pod, v1alpha1.ProxyConfigAnnotation, v.Routing.annotation(notReported))
	}
	s.confirm(v)
	if v.Routing.List.Phase != contract.NoChange { // it may stall, which no watch event tells
		s.Wait = Soonest(s.Wait, Later)
	}
	return s
}

// Void voids what proxies have confirmed, because their ConfigMap has another list than they are told.
func Void(v View) (s Step) {
	if v.Routing.digest == "" {
		for _, pod := range v.Routing.toAnnotate() {
			s.annotate(pod, v1alpha1.ProxyConfigAnnotation, "")
		}
	}
	return s
}

// polled returns the servers whose agents say whether the kubelet waits until they may stop, and the proxies, whose
// agents say which servers they do not reach.
func polled(v View) (servers, proxies []*corev1.Pod) {
	for i := range v.Servers {
		pod := &v.Servers[i]
		if status.StopsThroughAgent(pod) && status.RunningSince(pod) != "" && !isDraining(pod) {
			servers = append(servers, pod)
		}
	}
	for i := range v.Proxies {
		if pod := &v.Proxies[i]; v.Memcached.Spec.Proxy != nil && status.IsTrue(pod, corev1.PodReady) {
			proxies = append(proxies, pod)
		}
	}
	return servers, proxies
}

// PollInterval returns the time between two polls of agents; 0 if there is nothing to poll.
func PollInterval(v View) time.Duration {
	servers, proxies := polled(v)
	switch {
	case len(servers)+len(proxies) == 0:
		return 0
	case slices.ContainsFunc(proxies, func(pod *corev1.Pod) bool {
		return pod.Annotations[v1alpha1.UnreachableAnnotation] != ""
	}):
		return unreachableInterval
	}
	return pollInterval
}

// poll asks agents for what no watch event says, and records their answers as annotations.
func (s *Step) poll(v View) {
	if !v.Agents.Poll {
		return
	}
	servers, proxies := polled(v)
	for _, pod := range servers {
		if r, ok := s.ask(v, pod); ok && r.Err == nil && r.Draining {
			s.record(pod, v1alpha1.DrainingAnnotation, status.RunningSince(pod))
		}
	}
	for _, pod := range proxies {
		if r, ok := s.ask(v, pod); ok && r.Err == nil {
			s.record(pod, v1alpha1.UnreachableAnnotation, v.unreachable(r.Unreachable))
		}
	}
}

// record annotates a pod unless it is annotated so.
func (s *Step) record(pod *corev1.Pod, key, value string) {
	if pod.Annotations[key] != value {
		s.annotate(pod, key, value)
	}
}

// unreachable returns a server that a proxy does not reach, of those that it reports; empty for none. The status of a
// server says itself that it is not ready.
func (v View) unreachable(reported []string) (server string) {
	for i := range v.Servers {
		pod := &v.Servers[i]
		since, ready := status.ReadySince(pod)
		if ready && v.Now.Sub(since) >= reachDelay && pod.DeletionTimestamp.IsZero() &&
			slices.Contains(reported, pod.Name) && (server == "" || pod.Name < server) {
			server = pod.Name
		}
	}
	return server
}
