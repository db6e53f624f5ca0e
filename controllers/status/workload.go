package status

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// WorkloadState holds the fields of a Deployment or StatefulSet that the status depends on.
type WorkloadState struct {
	// Generation is the generation of the Memcached that the workload was built from.
	Generation string
	// Terminating says that the workload is being deleted.
	Terminating bool
	// Observed says that its controller has observed its newest spec.
	Observed bool
	// Paused says that somebody paused its rollouts.
	Paused bool
	// Image is the memcached image of its template, AgentImage that of the agent; empty for none.
	Image, AgentImage string
	// Wanted is its spec.replicas; the other numbers are those of its status.
	Wanted, Replicas, Updated, Ready, Available int32
	// Newest is the number of pods of the newest revision that the status of a StatefulSet counts, and NewestPods is their
	// number. They differ if the informer cache shows an older status, from before a rollout, with the newest pods.
	Newest, NewestPods int32
	// Outdated is the number of servers of an older template, or with another memory than that of the template.
	Outdated int32
	// Failure says why its controller cannot create servers; empty where it can.
	Failure string
}

// ReadState reads a Deployment or StatefulSet; nil for another object. pods are its servers.
func ReadState(workload metav1.Object, pods ...corev1.Pod) *WorkloadState {
	var w *WorkloadState
	var template corev1.PodSpec
	switch o := workload.(type) {
	case *appsv1.Deployment:
		w = &WorkloadState{Observed: o.Status.ObservedGeneration >= o.Generation, Paused: o.Spec.Paused,
			Wanted: ptr.Deref(o.Spec.Replicas, 1), Replicas: o.Status.Replicas, Updated: o.Status.UpdatedReplicas,
			Ready: o.Status.ReadyReplicas, Available: o.Status.AvailableReplicas,
			Outdated: o.Status.Replicas - o.Status.UpdatedReplicas}
		template = o.Spec.Template.Spec
		for _, c := range o.Status.Conditions {
			if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
				w.Failure = c.Message
			}
		}
	case *appsv1.StatefulSet:
		w = &WorkloadState{Observed: o.Status.ObservedGeneration >= o.Generation,
			Wanted: ptr.Deref(o.Spec.Replicas, 1), Replicas: o.Status.Replicas, Updated: o.Status.Replicas,
			Ready: o.Status.ReadyReplicas, Available: o.Status.AvailableReplicas, Newest: o.Status.UpdatedReplicas}
		template = o.Spec.Template.Spec
		// Its status counts no terminating server as updated, so that a loss would look like a rollout, and no server that
		// got another memory: count the pods.
		wanted := ReadMemory(&template)
		for i := range pods {
			if pods[i].DeletionTimestamp.IsZero() &&
				pods[i].Labels[appsv1.StatefulSetRevisionLabel] == o.Status.UpdateRevision {
				w.NewestPods++
			}
			outdated := IsOutdated(o, &pods[i]) || !HasMemory(&pods[i], wanted)
			if outdated {
				w.Outdated++
			}
			if outdated || !pods[i].DeletionTimestamp.IsZero() {
				w.Updated--
			}
		}
		if len(pods) == 0 {
			w.NewestPods = w.Newest
		}
	default:
		return nil
	}
	w.Generation = workload.GetLabels()[v1alpha1.GenerationLabel]
	w.Terminating = !workload.GetDeletionTimestamp().IsZero()
	w.Image, w.AgentImage = image(template.Containers, names.Container), image(template.InitContainers, names.Agent)
	return w
}

// kubectlRestartedAt is the annotation of a pod template that kubectl rollout restart changes.
const kubectlRestartedAt = "kubectl.kubernetes.io/restartedAt"

// IsOutdated reports whether a server of a StatefulSet must be replaced to be as its template. A server of another
// revision must, because somebody else may have changed the template that it was created from, unless it gets or got
// another memory in place.
func IsOutdated(set *appsv1.StatefulSet, pod *corev1.Pod) bool {
	template := &set.Spec.Template
	if pod.Annotations[v1alpha1.TemplateAnnotation] != template.Annotations[v1alpha1.TemplateAnnotation] ||
		pod.Annotations[kubectlRestartedAt] != template.Annotations[kubectlRestartedAt] {
		return true
	}
	_, _, changed := RequestedMemory(pod)
	return pod.Labels[appsv1.StatefulSetRevisionLabel] != set.Status.UpdateRevision &&
		!changed && HasMemory(pod, ReadMemory(&template.Spec))
}

// image returns the image of the container with this name; empty for none.
func image(containers []corev1.Container, name string) string {
	for i := range containers {
		if containers[i].Name == name {
			return containers[i].Image
		}
	}
	return ""
}

// complete reports whether the workload was built from the current generation of mc, wants this number of pods, and
// counts all of them as updated and available. It compares the recorded generation, because the informer cache may lag
// behind the writes of another operator process. While mc is paused, the generation does not matter.
func (w *WorkloadState) complete(mc *v1alpha1.Memcached, want int32) bool {
	return w != nil && !w.Terminating && (mc.Spec.Paused || w.Generation == names.Generation(mc)) && w.Wanted == want &&
		w.AllAvailable() && !w.hasOutdatedPods()
}

// AllAvailable reports whether the workload's status counts exactly the wanted number of pods, all of them updated and
// available.
func (w *WorkloadState) AllAvailable() bool {
	return w.Observed && w.Newest == w.NewestPods && w.Updated == w.Wanted && w.Replicas == w.Wanted &&
		w.Ready == w.Wanted && w.Available == w.Wanted
}

// progress is a number that grows as a rollout proceeds: with each outdated server that is removed, each new one that
// is created, and each that becomes ready. Until its controller has observed the newest template, the workload counts
// servers of the one before.
func (w *WorkloadState) progress() int32 {
	if w == nil || !w.Observed {
		return 0
	}
	return w.Wanted - w.Outdated + w.Updated + min(w.Updated, w.Ready)
}

// hasOutdatedPods reports whether servers of an older template still run.
func (w *WorkloadState) hasOutdatedPods() bool { return w != nil && w.Outdated > 0 }

// rolling reports whether servers are being replaced, or the newest template has not been observed.
func (w *WorkloadState) rolling() bool { return w != nil && (!w.Observed || w.hasOutdatedPods()) }
