package status

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// Component is the servers, or the proxies.
type Component struct {
	// Workload is a Deployment or StatefulSet, and State what is read from it; nil if we control none.
	Workload metav1.Object
	State    *WorkloadState
	// Pods are those of the workload, by name.
	Pods []*corev1.Pod
	// Active are the names of the pods that are neither terminating nor finished, and Ready is how many of them are ready.
	// The status of the workload lags behind: after a loss it still counts the lost pods.
	Active []string
	Ready  int32
}

// ReadComponent reads a workload, which is nil if we control none, and its pods.
func ReadComponent(workload metav1.Object, pods []*corev1.Pod) Component {
	c := Component{Workload: workload, State: ReadState(workload, pods...), Pods: pods, Active: []string{}}
	for _, p := range pods {
		if !isInactive(p) {
			c.Active = append(c.Active, p.Name)
			if IsTrue(p, corev1.PodReady) {
				c.Ready++
			}
		}
	}
	slices.Sort(c.Active)
	return c
}

// WorkloadState is what the status of a Deployment or StatefulSet says, and what its pods say beyond that.
type WorkloadState struct {
	Counts
	// Observed says that its controller has observed its newest spec.
	Observed bool
	// Wanted is its spec.replicas.
	Wanted int32
	// Updated is the number of pods of the newest template, and Outdated that of pods of an older one, or with another
	// memory.
	Updated, Outdated int32
	// NewestPods is the number of pods of the newest revision of a StatefulSet. It differs from Counts.Newest if the
	// informer cache shows an older status, from before a rollout, with the newest pods.
	NewestPods int32
	// Failure says why its controller cannot create servers; empty where it can.
	Failure string
}

// Counts are numbers of pods in the status of a workload; Newest are those of the newest revision of a StatefulSet.
type Counts struct{ Replicas, Ready, Available, Newest int32 }

// ReadState reads a Deployment or StatefulSet; nil for another object. pods are its servers.
func ReadState(workload metav1.Object, pods ...*corev1.Pod) *WorkloadState {
	switch o := workload.(type) {
	case *appsv1.Deployment:
		w := &WorkloadState{Observed: o.Status.ObservedGeneration >= o.Generation, Wanted: ptr.Deref(o.Spec.Replicas, 1),
			Counts:  Counts{o.Status.Replicas, o.Status.ReadyReplicas, o.Status.AvailableReplicas, 0},
			Updated: o.Status.UpdatedReplicas, Outdated: o.Status.Replicas - o.Status.UpdatedReplicas}
		for _, c := range o.Status.Conditions {
			if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue ||
				c.Reason == "ReplicaSetCreateError" {
				w.Failure = c.Message
			}
		}
		return w
	case *appsv1.StatefulSet:
		w := &WorkloadState{Observed: o.Status.ObservedGeneration >= o.Generation, Wanted: ptr.Deref(o.Spec.Replicas, 1),
			Counts: Counts{o.Status.Replicas, o.Status.ReadyReplicas, o.Status.AvailableReplicas,
				o.Status.UpdatedReplicas},
			Updated: o.Status.Replicas}
		// Its status counts no terminating server as updated, so that a loss would look like a rollout, and no server that
		// got another memory: count the pods.
		wanted := ReadMemory(&o.Spec.Template.Spec)
		for _, pod := range pods {
			terminates := !pod.DeletionTimestamp.IsZero()
			if !terminates && pod.Labels[appsv1.StatefulSetRevisionLabel] == o.Status.UpdateRevision {
				w.NewestPods++
			}
			outdated := IsOutdated(o, pod) || !HasMemory(pod, wanted)
			if outdated {
				w.Outdated++
			}
			if outdated || terminates {
				w.Updated--
			}
		}
		if len(pods) == 0 {
			w.NewestPods = w.Newest
		}
		return w
	}
	return nil
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

// Template returns the pod template of a Deployment or StatefulSet; an empty one for another object.
func Template(workload metav1.Object) *corev1.PodTemplateSpec {
	switch w := workload.(type) {
	case *appsv1.Deployment:
		return &w.Spec.Template
	case *appsv1.StatefulSet:
		return &w.Spec.Template
	}
	return &corev1.PodTemplateSpec{}
}

// Images returns the image of memcached in a pod template, and that of the agent; empty for none.
func Images(template *corev1.PodTemplateSpec) (memcached, agent string) {
	for _, container := range slices.Concat(template.Spec.InitContainers, template.Spec.Containers) {
		switch container.Name {
		case names.Container:
			memcached = container.Image
		case names.Agent:
			agent = container.Image
		}
	}
	return memcached, agent
}

// complete reports whether the workload was built from the current generation of mc, wants this number of pods, and
// counts all of them as updated and available, and whether there are no others. It compares the recorded generation,
// because the informer cache may lag behind the writes of another operator process. While mc is paused, the generation
// does not matter.
func (c Component) complete(mc *v1alpha1.Memcached, want int32) bool {
	if c.State == nil || !c.Workload.GetDeletionTimestamp().IsZero() {
		return false
	}
	isCurrent := mc.Spec.Paused || c.Workload.GetLabels()[v1alpha1.GenerationLabel] == names.Generation(mc)
	return isCurrent && c.State.Wanted == want && c.State.AllAvailable() && c.State.Outdated == 0 &&
		int32(len(c.Active)) == want && c.Ready == want
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
func (c Component) progress() int32 {
	w := c.State
	if w == nil || !w.Observed {
		return 0
	}
	return w.Wanted - w.Outdated + w.Updated + min(w.Updated, w.Ready)
}

// hasOutdatedPods reports whether servers of an older template still run.
func (c Component) hasOutdatedPods() bool { return c.State != nil && c.State.Outdated > 0 }

// rolling reports whether servers are being replaced, or the newest template has not been observed.
func (c Component) rolling() bool {
	return c.State != nil && (!c.State.Observed || c.State.Outdated > 0)
}
