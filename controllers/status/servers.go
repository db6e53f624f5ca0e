package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// maxTerminationMessage limits how much of a container's termination message is quoted, in bytes.
const maxTerminationMessage = 300

// isInactive reports whether a pod is terminating or finished, and so no longer a server.
func isInactive(p *corev1.Pod) bool {
	return !p.DeletionTimestamp.IsZero() || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// cause returns what keeps the pods of a component from being ready, as reported by the workload's controller, the
// scheduler, the kubelet or memcached; empty for nothing.
func (c Component) cause() string {
	if c.State != nil && c.State.Failure != "" {
		return c.State.Failure
	}
	hasTerminating := slices.ContainsFunc(c.Pods, func(p *corev1.Pod) bool { return !p.DeletionTimestamp.IsZero() })
	for _, p := range c.Pods {
		if hasTerminating && condition(p, corev1.PodScheduled, corev1.ConditionFalse) != nil {
			continue // the scheduler may wait for the resources of a terminating pod
		}
		if why := podCause(p); why != "" {
			return p.Name + ": " + why
		}
	}
	if d, ok := c.Workload.(*appsv1.Deployment); ok && d.Spec.Paused {
		return "rollouts of the workload are paused; resume them with kubectl rollout resume"
	}
	return ""
}

func podCause(p *corev1.Pod) string {
	if IsTrue(p, corev1.PodReady) {
		return ""
	}
	// If a pod is not ready although its containers are, the control plane marked it so, because its node is unreachable.
	// It also evicts the pod. A StatefulSet's pod remains nevertheless, and is not replaced.
	_, inStatefulSet := p.Labels[appsv1.StatefulSetRevisionLabel]
	if c := condition(p, corev1.PodReady, corev1.ConditionFalse); c != nil && c.Reason == "" &&
		IsTrue(p, corev1.ContainersReady) && (inStatefulSet || !isInactive(p)) {
		return fmt.Sprintf("node %s is unreachable", p.Spec.NodeName)
	}
	if isInactive(p) {
		return ""
	}
	if c := condition(p, corev1.PodScheduled, corev1.ConditionFalse); c != nil {
		return c.Reason + ": " + c.Message
	}
	for i := range p.Status.ContainerStatuses {
		s := &p.Status.ContainerStatuses[i]
		if s.Ready {
			continue // however it terminated before
		}
		// A crashing container is waiting, running and terminated by turns. Its last termination is the cause all the time.
		if last := cmp.Or(s.State.Terminated, s.LastTerminationState.Terminated); last != nil {
			return terminationMessage(s.Name, last)
		}
		if s.Name == names.Agent && s.State.Running != nil { // a sidecar without probes is ready while it runs
			return "memcached waits for the end of the agent, because the cluster or a webhook has removed the agent's " +
				"restartPolicy"
		}
		if w := s.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			return w.Reason + ": " + w.Message
		}
	}
	return ""
}

// hint says where to look, if nothing is known to keep the pods of a component from being ready; empty for nowhere.
func (c Component) hint() string {
	for _, p := range c.Pods {
		ready := condition(p, corev1.PodReady, corev1.ConditionFalse)
		switch {
		case !p.DeletionTimestamp.IsZero():
			return fmt.Sprintf("; pod %s is being deleted; its metadata.finalizers and its events say what holds it", p.Name)
		case isInactive(p) || IsTrue(p, corev1.PodReady):
		case ready != nil && ready.Reason == "ReadinessGatesNotReady":
			return fmt.Sprintf("; %s: %s", p.Name, ready.Message)
		default:
			return fmt.Sprintf("; the events of pod %s say why it is not ready", p.Name)
		}
	}
	return ""
}

func terminationMessage(container string, termination *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("%s last exited with code %d (%s)", container, termination.ExitCode, termination.Reason)
	if container == names.Container && termination.Reason == "OOMKilled" {
		text += ": the container needed more memory than its limit"
	}
	if message := strings.Join(strings.Fields(termination.Message), " "); message != "" {
		text += ": " + message[max(0, len(message)-maxTerminationMessage):]
	}
	return text
}

// unreachable says which proxy does not reach which server; empty for none.
func unreachable(proxies []*corev1.Pod) string {
	for _, p := range proxies {
		if server := p.Annotations[v1alpha1.UnreachableAnnotation]; server != "" && !isInactive(p) {
			return fmt.Sprintf("proxy %s does not reach server %s", p.Name, server)
		}
	}
	return ""
}

// IsTrue reports whether a condition of a pod is True.
func IsTrue(p *corev1.Pod, conditionType corev1.PodConditionType) bool {
	return condition(p, conditionType, corev1.ConditionTrue) != nil
}

func condition(p *corev1.Pod, conditionType corev1.PodConditionType,
	status corev1.ConditionStatus) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == conditionType && c.Status == status {
			return c
		}
	}
	return nil
}

// Since returns since when a condition of a pod has this status; the zero time if it has another one.
func Since(p *corev1.Pod, conditionType corev1.PodConditionType, status corev1.ConditionStatus) time.Time {
	return ptr.Deref(condition(p, conditionType, status), corev1.PodCondition{}).LastTransitionTime.Time
}

// StripPod drops from a pod for the informer cache what the operator does not read, which is most of it. The
// termination message of a container that can read a Secret could quote it: a command that shows the log replaces the
// message.
func StripPod(p *corev1.Pod) *corev1.Pod {
	readsSecret := slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Secret != nil })
	p.ManagedFields = nil
	p.Spec = corev1.PodSpec{NodeName: p.Spec.NodeName, Containers: p.Spec.Containers,
		Volumes: slices.DeleteFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return !isPodVolume(v) })}
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		*c = corev1.Container{Name: c.Name, Args: c.Args, Resources: c.Resources}
	}
	p.Status = corev1.PodStatus{ObservedGeneration: p.Status.ObservedGeneration, Phase: p.Status.Phase,
		PodIP: p.Status.PodIP, Conditions: p.Status.Conditions,
		ContainerStatuses: slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)}
	for i := range p.Status.ContainerStatuses {
		s := &p.Status.ContainerStatuses[i]
		*s = corev1.ContainerStatus{Name: s.Name, Ready: s.Ready, State: s.State, Resources: s.Resources,
			LastTerminationState: s.LastTerminationState}
		for _, t := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
			if t != nil && readsSecret {
				t.Message = fmt.Sprintf("kubectl logs --previous --namespace %s %s -c %s says why", p.Namespace, p.Name, s.Name)
			}
		}
	}
	return p
}
