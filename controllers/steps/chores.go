package steps

import (
	"slices"
	"strings"
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
)

// chores is what is always done, whatever step is next. While the Memcached is paused, it only records what agents
// report, and lets a server that somebody deletes stop at once.
func chores(v View) (s Step, busy bool) {
	atOnce := !v.Routing.Moves || v.Memcached.Spec.Paused
	s.Stop = filter(v.Servers, func(pod *corev1.Pod) bool { return isDraining(pod) && (atOnce || !v.Routing.mayUse(pod)) })
	s.poll(v)
	if v.Memcached.Spec.Paused {
		return s, false
	}
	version, _, _ := strings.Cut(v.List.String(), "\n")
	for _, pod := range v.Servers {
		// A kubelet refreshes what a pod mounts when an annotation of the pod changes, and otherwise within a minute or two.
		for _, a := range []Annotation{{pod, v1alpha1.SecretsAnnotation, v.Secrets},
			{pod, v1alpha1.DiscoveryAnnotation, version}} {
			if a.Value != "" && pod.Annotations[a.Key] != a.Value && pod.DeletionTimestamp.IsZero() {
				s.Annotate = append(s.Annotate, a)
			}
		}
	}
	s.Wait = Soonest(s.Wait, v.UntilRemoval()) // which no watch event tells
	if v.Memcached.Spec.Proxy == nil {
		return s, false
	}
	for _, pod := range v.Routing.toAnnotate() {
		s.annotate(pod, v1alpha1.ProxyConfigAnnotation, v.Routing.annotation(notReported))
	}
	s.confirm(v)
	if v.Routing.List.Phase != contract.NoChange { // it may stall, which no watch event tells
		s.Wait = Soonest(s.Wait, Later)
	}
	return s, false
}

// ClearConfirmations clears what proxies have confirmed while their ConfigMap has another list than the recorded one.
func ClearConfirmations(v View) (s Step) {
	if v.Routing.digest == "" {
		for _, pod := range v.Routing.toAnnotate() {
			s.annotate(pod, v1alpha1.ProxyConfigAnnotation, "")
		}
	}
	return s
}

// polled returns the servers whose agents say whether the kubelet waits until they may stop, and the proxies, whose
// agents say which servers they do not reach.
func polled(v View) []*corev1.Pod {
	return slices.Concat(filter(v.Servers, func(pod *corev1.Pod) bool {
		return status.StopsThroughAgent(pod) && status.RunningSince(pod) != "" && !isDraining(pod)
	}), filter(v.Proxies, func(pod *corev1.Pod) bool {
		return v.Memcached.Spec.Proxy != nil && status.IsTrue(pod, corev1.PodReady)
	}))
}

// PollInterval returns the time between two polls of agents; 0 if there is nothing to poll.
func PollInterval(v View) time.Duration {
	switch pods := polled(v); {
	case len(pods) == 0:
		return 0
	case slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
		return pod.Annotations[v1alpha1.UnreachableAnnotation] != ""
	}):
		return unreachableInterval
	}
	return pollInterval
}

// poll asks agents for what no watch event says, and records their answers as annotations.
func (s *Step) poll(v View) {
	if !v.Poll {
		return
	}
	for _, pod := range polled(v) {
		r, ok := s.ask(v, pod)
		server := v.unreachable(r.Unreachable)
		switch {
		case !ok, r.Err != nil:
		case r.Draining && !kubeletWaits(pod):
			s.annotate(pod, v1alpha1.DrainingAnnotation, status.RunningSince(pod))
		case pod.Annotations[v1alpha1.UnreachableAnnotation] != server:
			s.annotate(pod, v1alpha1.UnreachableAnnotation, server)
		}
	}
}

// unreachable returns a server that a proxy does not reach, of those that it reports; empty for none. While servers are
// missing or not available, proxies rightly report some, and the status says so itself. A report is younger than the
// minReadySeconds of servers behind proxies.
func (v View) unreachable(reported []string) string {
	state := status.ReadState(v.Workload, v.Servers...)
	for _, pod := range v.Servers {
		if state != nil && state.AllAvailable() && isReady(pod) && slices.Contains(reported, pod.Name) {
			return pod.Name
		}
	}
	return ""
}
