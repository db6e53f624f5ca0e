package status

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
	// Outdated is the number of servers of an older template, or with another memory than that of the template.
	Outdated int32
	// Failure says why its controller cannot create servers; empty where it can.
	Failure string
}

// ReadState reads a Deployment or StatefulSet; pods are its servers.
func ReadState(obj runtime.Object, pods ...corev1.Pod) *WorkloadState {
	if s, ok := obj.(*appsv1.StatefulSet); ok {
		return fromStatefulSet(s, pods)
	}
	return fromDeployment(obj.(*appsv1.Deployment))
}

func fromDeployment(d *appsv1.Deployment) *WorkloadState {
	w := &WorkloadState{
		Generation:  d.Labels[v1alpha1.GenerationLabel],
		Terminating: !d.DeletionTimestamp.IsZero(),
		Observed:    d.Status.ObservedGeneration >= d.Generation,
		Paused:      d.Spec.Paused,
		Wanted:      ptr.Deref(d.Spec.Replicas, 1),
		Replicas:    d.Status.Replicas,
		Updated:     d.Status.UpdatedReplicas,
		Ready:       d.Status.ReadyReplicas,
		Available:   d.Status.AvailableReplicas,
		Outdated:    d.Status.Replicas - d.Status.UpdatedReplicas,
		Image:       image(d.Spec.Template.Spec.Containers, names.Container),
		AgentImage:  image(d.Spec.Template.Spec.InitContainers, names.Agent),
	}
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			w.Failure = c.Message
		}
	}
	return w
}

func fromStatefulSet(s *appsv1.StatefulSet, pods []corev1.Pod) *WorkloadState {
	w := &WorkloadState{
		Generation:  s.Labels[v1alpha1.GenerationLabel],
		Terminating: !s.DeletionTimestamp.IsZero(),
		Observed:    s.Status.ObservedGeneration >= s.Generation,
		Wanted:      ptr.Deref(s.Spec.Replicas, 1),
		Replicas:    s.Status.Replicas,
		Updated:     s.Status.UpdatedReplicas,
		Ready:       s.Status.ReadyReplicas,
		Available:   s.Status.AvailableReplicas,
		Image:       image(s.Spec.Template.Spec.Containers, names.Container),
		AgentImage:  image(s.Spec.Template.Spec.InitContainers, names.Agent),
	}
	// Its status counts a terminating server as not updated, so that a loss would look like a rollout: count the pods.
	wanted := ReadMemory(&s.Spec.Template.Spec).Items
	for i := range pods {
		items, done, changed := ChangedMemory(&pods[i])
		if pods[i].Labels[appsv1.StatefulSetRevisionLabel] != s.Status.UpdateRevision ||
			changed && (items != wanted || !done) {
			w.Outdated++
		}
	}
	return w
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
	return w.Observed && w.Updated == w.Wanted && w.Replicas == w.Wanted && w.Ready == w.Wanted &&
		w.Available == w.Wanted
}

// HasReady reports whether a server of the newest template is ready: more servers are ready than are outdated. For a
// workload with no servers, that is assumed.
func (w *WorkloadState) HasReady() bool { return w.Observed && (w.Wanted == 0 || w.Ready > w.Outdated) }

// IsEmpty reports whether the workload has no pod.
func (w *WorkloadState) IsEmpty() bool { return w.Observed && w.Replicas == 0 }

// asObserved returns the workload as it will be once its controller has observed a spec that changes no pod.
func (w *WorkloadState) asObserved() *WorkloadState {
	if w == nil {
		return nil
	}
	observed := *w
	observed.Observed = true
	return &observed
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
