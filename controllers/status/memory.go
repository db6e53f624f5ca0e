package status

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// Memory is that of a server, or of the template of servers.
type Memory struct {
	// Items is the memory for items, in MiB.
	Items int64
	// Limit and Request are those of the container in bytes.
	Limit, Request int64
}

// ReadMemory returns the memory that a pod spec gives to memcached.
func ReadMemory(spec *corev1.PodSpec) (m Memory) {
	for i := range spec.Containers {
		c := &spec.Containers[i]
		if c.Name != names.Container {
			continue
		}
		if i := slices.Index(c.Args, "-m") + 1; i > 0 && i < len(c.Args) {
			m.Items, _ = strconv.ParseInt(c.Args[i], 10, 64)
		}
		m.Limit, m.Request = c.Resources.Limits.Memory().Value(), c.Resources.Requests.Memory().Value()
	}
	return m
}

// MemoryDone is the last word of MemoryAnnotation once memcached and its container have that memory.
const MemoryDone = "done"

// RequestedMemory returns the memory for items in MiB that an annotation of a server asks for, and whether the server
// has it; ok is false without an annotation: the server has the memory of its arguments.
func RequestedMemory(pod *corev1.Pod) (items int64, done, ok bool) {
	annotation := pod.Annotations[v1alpha1.MemoryAnnotation]
	items, err := contract.ParseMemory(annotation)
	return items, strings.HasSuffix(annotation, " "+MemoryDone), err == nil
}

// HasMemory reports whether a server has this memory for items.
func HasMemory(pod *corev1.Pod, wanted Memory) bool {
	if items, done, changed := RequestedMemory(pod); changed {
		return done && items == wanted.Items
	}
	return ReadMemory(&pod.Spec).Items == wanted.Items
}

// IsResized reports whether the kubelet has given memcached the memory limit of the pod's spec, and otherwise why not,
// as far as the kubelet says.
func IsResized(pod *corev1.Pod) (ok bool, why string) {
	for _, resize := range []corev1.PodConditionType{corev1.PodResizePending, corev1.PodResizeInProgress} {
		if c := condition(pod, resize, corev1.ConditionTrue); c != nil {
			return false, strings.TrimSuffix(fmt.Sprintf("%s: %s", c.Reason, c.Message), ": ")
		}
	}
	// Before Kubernetes 1.34, kubelets do not report the generation.
	if n := pod.Status.ObservedGeneration; n > 0 && n < pod.Generation {
		return false, ""
	}
	limit := ReadMemory(&pod.Spec).Limit
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.Name == names.Container && s.Resources != nil && s.Resources.Limits.Memory().Value() == limit
	}), ""
}

// StopsThroughAgent reports whether the kubelet asks the agent of a server of a StatefulSet before it stops the server.
func StopsThroughAgent(pod *corev1.Pod) bool { return pod.Annotations[v1alpha1.DrainAnnotation] != "" }

// RunningSince returns since when the memcached of a server has been running; empty if it does not.
func RunningSince(pod *corev1.Pod) string {
	for i := range pod.Status.ContainerStatuses {
		if s := &pod.Status.ContainerStatuses[i]; s.Name == names.Container && s.State.Running != nil {
			return s.State.Running.StartedAt.UTC().Format(time.RFC3339)
		}
	}
	return ""
}

// CanFlush reports whether the agent of a server reads FlushAnnotation.
func CanFlush(pod *corev1.Pod) bool { return slices.ContainsFunc(pod.Spec.Volumes, isPodVolume) }

func isPodVolume(v corev1.Volume) bool { return v.Name == names.PodVolume }
