// Package simulator simulates what surrounds the operator on an API server, so that each run does the same: the
// controllers of StatefulSets and Deployments, the kubelets, and the agents. Each round, they do what the objects of
// the round before ask for.
//
// They read objects by functions of their own: a mistake in a function that they shared with the operator would change
// both, and no test would see it.
package simulator

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/internal/testing/harness"
)

// NodeName is the node of all pods.
const NodeName = "node"

// CreateNode creates the node of all pods: the API server refuses to change the memory of a pod whose node is missing
// or has no room.
func CreateNode(ctx context.Context, api client.Client) error {
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1M"), corev1.ResourceMemory: resource.MustParse("1Pi")}
	return api.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: NodeName},
		Status: corev1.NodeStatus{Capacity: room, Allocatable: room}})
}

// Cluster is what simulates the controllers and the kubelets of a namespace with one Memcached.
type Cluster struct {
	testing.TB
	Ctx    context.Context
	API    client.Client        // of users, controllers and kubelets
	Key    types.NamespacedName // of the Memcached
	Clock  func() time.Time
	Now    func() State // the state that the controllers see
	Agents *Agents
	// Slow is how many times longer kubelets wait for servers that drain; 0 for once.
	Slow int

	// Started is the number of pods that were created, by component.
	Started map[string]int
	// BecomesAvailable says after a round that a pod is ready, and will be available soon.
	BecomesAvailable bool
	// Drained is when the servers that drain stop by themselves; zero for none.
	Drained time.Time

	nextIP           int
	refused          map[types.UID]string // why the API server refused the pod of an owner the last time
	refusedVersion   map[types.UID]string // of that owner
	terminatingSince map[types.UID]time.Time
}

// New returns a simulation of the namespace of a Memcached. Its agents answer, and accept that any server stops, unless
// the caller changes Agents.
func New(t testing.TB, api client.Client, key types.NamespacedName, clock func() time.Time, now func() State) *Cluster {
	c := &Cluster{TB: t, Ctx: t.Context(), API: api, Key: key, Clock: clock, Now: now, Started: map[string]int{},
		terminatingSince: map[types.UID]time.Time{}, refused: map[types.UID]string{},
		refusedVersion: map[types.UID]string{}}
	c.Agents = &Agents{Cluster: c, Silent: func() bool { return false },
		WasReady: func(*v1alpha1.Memcached) bool { return false }, Stopped: map[string]bool{},
		asked: map[string]int{}, loaded: map[types.UID]ProxyList{}}
	return c
}

// Object returns the metadata of an object in the namespace.
func (c *Cluster) Object(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: c.Key.Namespace, Name: name}
}

// Patch changes an object as somebody, by a strategic merge patch.
func (c *Cluster) Patch(obj client.Object, json string) {
	c.Helper()
	c.Must(c.API.Patch(c.Ctx, obj, client.RawPatch(types.StrategicMergePatchType, []byte(json)),
		client.FieldOwner("somebody")))
}

// Must ends the test if err is not nil.
func (c *Cluster) Must(err error) {
	c.Helper()
	harness.Must(c, err)
}

// Step does a round.
func (c *Cluster) Step() {
	c.Helper()
	c.BecomesAvailable, c.Drained = false, time.Time{}
	now := c.Now()
	for _, obj := range now["StatefulSet"] {
		c.runStatefulSet(obj.(*appsv1.StatefulSet), PodsOf(now, obj))
	}
	for _, obj := range now["Deployment"] {
		c.runDeployment(now, obj.(*appsv1.Deployment))
	}
	for _, obj := range now["Pod"] {
		c.runPod(obj.(*corev1.Pod))
	}
}

// PodsOf returns the pods that a workload controls.
func PodsOf(s State, workload client.Object) (pods []*corev1.Pod) {
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
func (c *Cluster) runStatefulSet(set *appsv1.StatefulSet, pods []*corev1.Pod) {
	c.Helper()
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
			c.terminate(pod)
			continue
		}
		c.count(&is.Replicas, &is.ReadyReplicas, &is.AvailableReplicas, set.Spec.MinReadySeconds, pod)
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
			c.createPod(fmt.Sprintf("%s-%d", set.Name, i), set, "StatefulSet", set.Spec.Template,
				appsv1.StatefulSetRevisionLabel, revision)
		}
	}
	if !equality.Semantic.DeepEqual(set.Status, is) {
		after := set.DeepCopy()
		after.Status = is
		c.Must(c.API.Status().Patch(c.Ctx, after, client.MergeFrom(set)))
	}
}

// count counts a pod of a workload.
func (c *Cluster) count(replicas, ready, available *int32, minReadySeconds int32, pod *corev1.Pod) {
	*replicas++
	since, ok := ReadySince(pod)
	if !ok {
		return
	}
	*ready++
	if c.Clock().Before(since.Add(time.Duration(minReadySeconds) * time.Second)) {
		c.BecomesAvailable = true
		return
	}
	*available++
}

// runDeployment is the controller of a Deployment and its ReplicaSets.
func (c *Cluster) runDeployment(now State, d *appsv1.Deployment) {
	c.Helper()
	if d.DeletionTimestamp != nil {
		return
	}
	template := hash(d.Spec.Template)
	var newest *appsv1.ReplicaSet
	for _, obj := range now["ReplicaSet"] {
		if set := obj.(*appsv1.ReplicaSet); metav1.IsControlledBy(set, d) &&
			set.Labels[appsv1.DefaultDeploymentUniqueLabelKey] == template {
			newest = set
		}
	}
	if newest == nil {
		newest = c.createReplicaSet(d, template)
	}
	if !maps.Equal(newest.Annotations, d.Annotations) { // which its controller copies
		before := newest.DeepCopy()
		newest.Annotations = d.Annotations
		c.Must(c.API.Patch(c.Ctx, newest, client.MergeFrom(before)))
	}
	is := appsv1.DeploymentStatus{ObservedGeneration: d.Generation}
	var updated, outdated []*corev1.Pod
	for _, pod := range PodsOf(now, d) {
		switch {
		case pod.DeletionTimestamp != nil:
			continue
		case metav1.IsControlledBy(pod, newest):
			updated = append(updated, pod)
		default:
			outdated = append(outdated, pod)
		}
		c.count(&is.Replicas, &is.ReadyReplicas, &is.AvailableReplicas, d.Spec.MinReadySeconds, pod)
	}
	is.UpdatedReplicas = int32(len(updated))
	is.UnavailableReplicas = max(0, *d.Spec.Replicas-is.AvailableReplicas)

	rolling := d.Spec.Strategy.RollingUpdate
	surge, _ := intstr.GetScaledValueFromIntOrPercent(rolling.MaxSurge, int(*d.Spec.Replicas), true)
	away, _ := intstr.GetScaledValueFromIntOrPercent(rolling.MaxUnavailable, int(*d.Spec.Replicas), false)
	for n := len(updated); n < int(*d.Spec.Replicas) && n+len(outdated) < int(*d.Spec.Replicas)+surge; n++ {
		c.createPod(fmt.Sprintf("%s-%05d", newest.Name, c.nextIP+1), newest, "ReplicaSet", d.Spec.Template,
			appsv1.DefaultDeploymentUniqueLabelKey, template)
	}
	for n := len(updated); n > int(*d.Spec.Replicas); n-- {
		c.terminate(updated[n-1])
	}
	if failure := c.refused[newest.UID]; failure != "" {
		is.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue,
			Reason: "FailedCreate", Message: failure}}
	}
	available := int(is.AvailableReplicas)
	for _, pod := range outdated {
		if _, ready := ReadySince(pod); ready {
			if available <= int(*d.Spec.Replicas)-away {
				continue
			}
			available--
		}
		c.terminate(pod)
	}
	if !equality.Semantic.DeepEqual(d.Status, is) {
		after := d.DeepCopy()
		after.Status = is
		c.Must(c.API.Status().Patch(c.Ctx, after, client.MergeFrom(d)))
	}
}

func (c *Cluster) createReplicaSet(d *appsv1.Deployment, template string) *appsv1.ReplicaSet {
	c.Helper()
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name + "-" + template,
		Labels: labels.Merge(d.Spec.Template.Labels, labels.Set{appsv1.DefaultDeploymentUniqueLabelKey: template})}}
	set.OwnerReferences = []metav1.OwnerReference{
		*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))}
	set.Spec.Replicas, set.Spec.Selector = ptr.To(int32(0)), &metav1.LabelSelector{MatchLabels: set.Labels}
	set.Spec.Template, set.Annotations = *d.Spec.Template.DeepCopy(), d.Annotations
	set.Spec.Template.Labels = set.Labels
	c.Must(c.API.Create(c.Ctx, set))
	return set
}

// createPod creates a pod on a node. If the API server refuses that, it tries again only once somebody has changed the
// owner: the back-off of a controller is longer than a test.
func (c *Cluster) createPod(name string, owner client.Object, kind string, template corev1.PodTemplateSpec, label,
	revision string) {
	c.Helper()
	c.nextIP++
	pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
	pod.Name, pod.Namespace = name, owner.GetNamespace()
	pod.Labels = labels.Merge(template.Labels, labels.Set{label: revision})
	pod.OwnerReferences = []metav1.OwnerReference{
		*metav1.NewControllerRef(owner, appsv1.SchemeGroupVersion.WithKind(kind))}
	pod.Spec.NodeName = NodeName
	version := fmt.Sprint(owner.GetGeneration(), owner.GetAnnotations())
	if c.refusedVersion[owner.GetUID()] == version {
		return
	}
	err := c.API.Create(c.Ctx, pod)
	if apierrors.IsForbidden(err) {
		c.refused[owner.GetUID()], c.refusedVersion[owner.GetUID()] = err.Error(), version
		return
	}
	c.Must(err)
	delete(c.refused, owner.GetUID())
	c.Started[pod.Labels[ComponentLabel]]++
	is := *pod.Status.DeepCopy()
	is.PodIP = fmt.Sprintf("10.1.%d.%d", c.nextIP/250, 1+c.nextIP%250)
	is.PodIPs = []corev1.PodIP{{IP: is.PodIP}}
	c.WriteStatus(pod, is)
}

// terminate makes a pod terminate.
func (c *Cluster) terminate(pod *corev1.Pod) {
	c.Helper()
	if pod.DeletionTimestamp == nil {
		c.Must(client.IgnoreNotFound(c.API.Delete(c.Ctx, pod, client.Preconditions{UID: &pod.UID})))
	}
}

// runPod is the kubelet. A pod becomes ready a round after it was created, and stops a round after it was deleted.
func (c *Cluster) runPod(pod *corev1.Pod) {
	c.Helper()
	if pod.DeletionTimestamp != nil {
		_, ready := ReadySince(pod)
		grace := 90 * time.Second * time.Duration(max(1, c.Slow))
		if end := c.terminating(pod).Add(grace); drainPath(pod) != "" && ready &&
			!c.Agents.Stopped[pod.Status.PodIP] && c.Clock().Before(end) {
			c.Drained = end
			return
		}
		if ready {
			c.Agents.checkUnused(pod)
		}
		c.Must(client.IgnoreNotFound(c.API.Delete(c.Ctx, pod, client.GracePeriodSeconds(0),
			client.Preconditions{UID: &pod.UID})))
		return
	}
	is := corev1.PodStatus{Phase: corev1.PodRunning, PodIP: pod.Status.PodIP, PodIPs: pod.Status.PodIPs,
		ObservedGeneration: pod.Generation, QOSClass: pod.Status.QOSClass}
	since, ready := ReadySince(pod)
	if !ready {
		since = c.Clock()
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodReady, corev1.ContainersReady} {
		is.Conditions = append(is.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(since.Truncate(time.Second))})
	}
	isStopped := c.Agents.Stopped[pod.Status.PodIP] // by a kubelet that restarts the container
	delete(c.Agents.Stopped, pod.Status.PodIP)
	statusOf := func(of corev1.Container) corev1.ContainerStatus {
		running := &corev1.ContainerStateRunning{}
		for _, before := range pod.Status.ContainerStatuses {
			if before.Name == of.Name && before.State.Running != nil {
				running = before.State.Running
			}
		}
		if isStopped {
			running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(c.Clock().Truncate(time.Second))}
		}
		return corev1.ContainerStatus{Name: of.Name, Image: of.Image, Ready: true, Started: ptr.To(true),
			Resources: of.Resources.DeepCopy(), State: corev1.ContainerState{Running: running}}
	}
	for _, container := range pod.Spec.InitContainers {
		is.InitContainerStatuses = append(is.InitContainerStatuses, statusOf(container))
	}
	for _, container := range pod.Spec.Containers {
		is.ContainerStatuses = append(is.ContainerStatuses, statusOf(container))
	}
	if !equality.Semantic.DeepEqual(pod.Status, is) {
		c.WriteStatus(pod, is)
	}
}

// WriteStatus writes the status of a pod.
func (c *Cluster) WriteStatus(pod *corev1.Pod, is corev1.PodStatus) {
	c.Helper()
	after := pod.DeepCopy()
	after.Status = is
	c.Must(c.API.Status().Patch(c.Ctx, after, client.MergeFrom(pod)))
}

// terminating returns when the simulation noticed that a pod terminates.
func (c *Cluster) terminating(pod *corev1.Pod) (since time.Time) {
	if since, ok := c.terminatingSince[pod.UID]; ok {
		return since
	}
	c.terminatingSince[pod.UID] = c.Clock()
	return c.Clock()
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
