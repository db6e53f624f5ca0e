package simulation

import (
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The controllers of StatefulSets and Deployments and the kubelets are simulated, so that each run does the same. Each
// round, they do what the objects of the round before ask for. The garbage collector is the real one.
//
// They read objects by functions of their own, in objects_test.go: a mistake in a function that they shared with the
// operator would change both, and no test would see it.

// step does a round. It reports whether anything was written, or a pod becomes available by itself.
func (w *world) step() bool {
	w.Helper()
	w.becomesAvailable, w.drained = false, time.Time{}
	now := w.now()
	for _, obj := range now["StatefulSet"] {
		w.runStatefulSet(obj.(*appsv1.StatefulSet), podsOf(now, obj))
	}
	for _, obj := range now["Deployment"] {
		w.runDeployment(obj.(*appsv1.Deployment))
	}
	for _, obj := range now["Pod"] {
		w.runPod(obj.(*corev1.Pod))
	}
	return len(w.dirty) > 0 || w.becomesAvailable
}

// podsOf returns the pods that a workload controls.
func podsOf(s state, workload client.Object) (pods []*corev1.Pod) {
	owners := []metav1.Object{workload}
	for _, set := range s["ReplicaSet"] {
		if metav1.IsControlledBy(set, workload) {
			owners = append(owners, set)
		}
	}
	for _, obj := range s["Pod"] {
		if slices.ContainsFunc(owners, func(o metav1.Object) bool { return metav1.IsControlledBy(obj, o) }) {
			pods = append(pods, obj.(*corev1.Pod))
		}
	}
	return pods
}

// runStatefulSet is the controller of a StatefulSet whose pods start in parallel, and are replaced once deleted.
func (w *world) runStatefulSet(set *appsv1.StatefulSet, pods []*corev1.Pod) {
	w.Helper()
	if set.DeletionTimestamp != nil {
		return
	}
	revision := set.Name + "-" + hash(set.Spec.Template)
	is := appsv1.StatefulSetStatus{ObservedGeneration: set.Generation, UpdateRevision: revision,
		CurrentRevision: revision, CollisionCount: ptr.To(int32(0))}
	have := map[int]bool{}
	for _, pod := range pods {
		ordinal := ordinalOf(set.Name, pod.Name)
		have[ordinal] = true
		if ordinal >= int(*set.Spec.Replicas) {
			w.terminate(pod)
			continue
		}
		w.count(&is.Replicas, &is.ReadyReplicas, &is.AvailableReplicas, set.Spec.MinReadySeconds, pod)
		switch {
		case pod.DeletionTimestamp != nil:
		case pod.Labels[appsv1.StatefulSetRevisionLabel] == revision:
			is.UpdatedReplicas++
		default:
			is.CurrentRevision = pod.Labels[appsv1.StatefulSetRevisionLabel]
		}
	}
	for i := range int(*set.Spec.Replicas) {
		if !have[i] {
			w.createPod(fmt.Sprintf("%s-%d", set.Name, i), set, "StatefulSet", set.Spec.Template,
				appsv1.StatefulSetRevisionLabel, revision)
		}
	}
	if !equality.Semantic.DeepEqual(set.Status, is) {
		after := set.DeepCopy()
		after.Status = is
		w.must(w.api.Status().Patch(w.ctx, after, client.MergeFrom(set)))
	}
}

// count counts a pod of a workload.
func (w *world) count(replicas, ready, available *int32, minReadySeconds int32, pod *corev1.Pod) {
	*replicas++
	since, ok := readySince(pod)
	if !ok {
		return
	}
	*ready++
	if w.clock().Before(since.Add(time.Duration(minReadySeconds) * time.Second)) {
		w.becomesAvailable = true
		return
	}
	*available++
}

// runDeployment is the controller of a Deployment and its ReplicaSets.
func (w *world) runDeployment(d *appsv1.Deployment) {
	w.Helper()
	if d.DeletionTimestamp != nil {
		return
	}
	template := hash(d.Spec.Template)
	var newest *appsv1.ReplicaSet
	for _, obj := range w.now()["ReplicaSet"] {
		if set := obj.(*appsv1.ReplicaSet); metav1.IsControlledBy(set, d) &&
			set.Labels[appsv1.DefaultDeploymentUniqueLabelKey] == template {
			newest = set
		}
	}
	if newest == nil {
		newest = w.createReplicaSet(d, template)
	}
	is := appsv1.DeploymentStatus{ObservedGeneration: d.Generation}
	var updated, outdated []*corev1.Pod
	for _, pod := range podsOf(w.now(), d) {
		switch {
		case pod.DeletionTimestamp != nil:
			continue
		case metav1.IsControlledBy(pod, newest):
			updated = append(updated, pod)
		default:
			outdated = append(outdated, pod)
		}
		w.count(&is.Replicas, &is.ReadyReplicas, &is.AvailableReplicas, d.Spec.MinReadySeconds, pod)
	}
	is.UpdatedReplicas = int32(len(updated))
	is.UnavailableReplicas = max(0, *d.Spec.Replicas-is.AvailableReplicas)

	rolling := d.Spec.Strategy.RollingUpdate
	surge, _ := intstr.GetScaledValueFromIntOrPercent(rolling.MaxSurge, int(*d.Spec.Replicas), true)
	away, _ := intstr.GetScaledValueFromIntOrPercent(rolling.MaxUnavailable, int(*d.Spec.Replicas), false)
	for n := len(updated); n < int(*d.Spec.Replicas) && n+len(outdated) < int(*d.Spec.Replicas)+surge; n++ {
		w.createPod(fmt.Sprintf("%s-%05d", newest.Name, w.nextIP+1), newest, "ReplicaSet", d.Spec.Template,
			appsv1.DefaultDeploymentUniqueLabelKey, template)
	}
	for n := len(updated); n > int(*d.Spec.Replicas); n-- {
		w.terminate(updated[n-1])
	}
	available := int(is.AvailableReplicas)
	for _, pod := range outdated {
		if _, ready := readySince(pod); ready {
			if available <= int(*d.Spec.Replicas)-away {
				continue
			}
			available--
		}
		w.terminate(pod)
	}
	if !equality.Semantic.DeepEqual(d.Status, is) {
		after := d.DeepCopy()
		after.Status = is
		w.must(w.api.Status().Patch(w.ctx, after, client.MergeFrom(d)))
	}
}

func (w *world) createReplicaSet(d *appsv1.Deployment, template string) *appsv1.ReplicaSet {
	w.Helper()
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name + "-" + template,
		Labels: labels.Merge(d.Spec.Template.Labels, labels.Set{appsv1.DefaultDeploymentUniqueLabelKey: template})}}
	set.OwnerReferences = []metav1.OwnerReference{
		*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))}
	set.Spec.Replicas, set.Spec.Selector = ptr.To(int32(0)), &metav1.LabelSelector{MatchLabels: set.Labels}
	set.Spec.Template = *d.Spec.Template.DeepCopy()
	set.Spec.Template.Labels = set.Labels
	w.must(w.api.Create(w.ctx, set))
	return set
}

// createPod creates a pod on a node.
func (w *world) createPod(name string, owner client.Object, kind string, template corev1.PodTemplateSpec, label,
	revision string) {
	w.Helper()
	w.nextIP++
	pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
	pod.Name, pod.Namespace = name, owner.GetNamespace()
	pod.Labels = labels.Merge(template.Labels, labels.Set{label: revision})
	pod.OwnerReferences = []metav1.OwnerReference{
		*metav1.NewControllerRef(owner, appsv1.SchemeGroupVersion.WithKind(kind))}
	pod.Spec.NodeName = nodeName
	w.started[pod.Labels[componentLabel]]++
	w.must(w.api.Create(w.ctx, pod))
	is := *pod.Status.DeepCopy()
	is.PodIP = fmt.Sprintf("10.1.%d.%d", w.nextIP/250, 1+w.nextIP%250)
	is.PodIPs = []corev1.PodIP{{IP: is.PodIP}}
	w.writeStatus(pod, is)
}

// terminate makes a pod terminate.
func (w *world) terminate(pod *corev1.Pod) {
	w.Helper()
	if pod.DeletionTimestamp == nil {
		w.must(client.IgnoreNotFound(w.api.Delete(w.ctx, pod, client.Preconditions{UID: &pod.UID})))
	}
}

// runPod is the kubelet. A pod becomes ready a round after it was created, and stops a round after it was deleted.
func (w *world) runPod(pod *corev1.Pod) {
	w.Helper()
	if pod.DeletionTimestamp != nil {
		_, ready := readySince(pod)
		// Where events are folded, each step of the operator takes that many times longer.
		grace := 90 * time.Second * time.Duration(max(1, w.folds["Pod"], w.folds["ConfigMap"]))
		if end := w.terminating(pod).Add(grace); drainPath(pod) != "" && ready &&
			!w.agents.stopped[pod.Status.PodIP] && w.clock().Before(end) {
			w.drained = end
			return
		}
		if ready {
			w.agents.checkUnused(pod)
		}
		w.must(client.IgnoreNotFound(w.api.Delete(w.ctx, pod, client.GracePeriodSeconds(0),
			client.Preconditions{UID: &pod.UID})))
		return
	}
	is := corev1.PodStatus{Phase: corev1.PodRunning, PodIP: pod.Status.PodIP, PodIPs: pod.Status.PodIPs,
		ObservedGeneration: pod.Generation, QOSClass: pod.Status.QOSClass}
	since, ready := readySince(pod)
	if !ready {
		since = w.clock()
	}
	for _, c := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodReady, corev1.ContainersReady} {
		is.Conditions = append(is.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(since.Truncate(time.Second))})
	}
	statusOf := func(c corev1.Container) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: c.Name, Image: c.Image, Ready: true, Started: ptr.To(true),
			Resources: c.Resources.DeepCopy(), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	}
	for _, c := range pod.Spec.InitContainers {
		is.InitContainerStatuses = append(is.InitContainerStatuses, statusOf(c))
	}
	for _, c := range pod.Spec.Containers {
		is.ContainerStatuses = append(is.ContainerStatuses, statusOf(c))
	}
	if !equality.Semantic.DeepEqual(pod.Status, is) {
		w.writeStatus(pod, is)
	}
}

// writeStatus writes the status of a pod.
func (w *world) writeStatus(pod *corev1.Pod, is corev1.PodStatus) {
	w.Helper()
	after := pod.DeepCopy()
	after.Status = is
	w.must(w.api.Status().Patch(w.ctx, after, client.MergeFrom(pod)))
}

// terminating returns when the simulation noticed that a pod terminates.
func (w *world) terminating(pod *corev1.Pod) (since time.Time) {
	if since, ok := w.terminatingSince[pod.UID]; ok {
		return since
	}
	w.terminatingSince[pod.UID] = w.clock()
	return w.clock()
}

// hash names a pod template.
func hash(template corev1.PodTemplateSpec) string {
	h := fnv.New32a()
	text, err := template.Marshal()
	if err != nil {
		panic(err)
	}
	_, _ = h.Write(text) // never fails
	return fmt.Sprintf("%08x", h.Sum32())
}
