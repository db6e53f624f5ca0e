package controllers

import (
	"cmp"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
)

const (
	labelName      = "app.kubernetes.io/name"
	labelInstance  = "app.kubernetes.io/instance"
	labelComponent = "app.kubernetes.io/component"
	labelPartOf    = "app.kubernetes.io/part-of"
	labelManagedBy = "app.kubernetes.io/managed-by"

	// operatorName is the field manager of every write, and the managed-by label of every child.
	operatorName = "memcached-operator"
)

// desiredState is what the children of a Memcached should be. Building it is pure: no client, no clock.
type desiredState struct {
	deployment *appsv1ac.DeploymentApplyConfiguration
	service    *corev1ac.ServiceApplyConfiguration
	budget     *policyv1ac.PodDisruptionBudgetApplyConfiguration
}

// desired makes fresh apply configurations for the children of mc. They must be fresh, because an apply decodes the answer of
// the API server into them.
func desired(mc *v1alpha1.Memcached, keep carried) desiredState {
	return desiredState{
		deployment: deployment(mc, keep),
		service:    service(mc),
		budget:     podDisruptionBudget(mc),
	}
}

// selectorLabels select the pods of mc, and no others: two Memcacheds in one namespace never share a pod.
func selectorLabels(mc *v1alpha1.Memcached) map[string]string {
	return map[string]string{
		labelName:      "memcached",
		labelInstance:  mc.Name,
		labelComponent: "server",
	}
}

// childLabels are on every child and pod of mc. They do not copy those of mc itself: tracking labels of GitOps tools
// would make the children look like objects of the application, which the tools then prune.
func childLabels(mc *v1alpha1.Memcached) map[string]string {
	l := selectorLabels(mc)
	l[labelPartOf] = "memcached"
	l[labelManagedBy] = operatorName
	return l
}

// podLabels are the labels of the pods of mc: the user's, and ours, which win.
func podLabels(mc *v1alpha1.Memcached) map[string]string {
	l := map[string]string{}
	maps.Copy(l, pod(mc).Labels)
	maps.Copy(l, childLabels(mc))
	return l
}

// selector matches the pods of mc, in the form of a label query.
func selector(mc *v1alpha1.Memcached) string {
	return labels.SelectorFromSet(selectorLabels(mc)).String()
}

// objectMeta completes the metadata of a child with labels and the controller owner reference.
func objectMeta(meta *metav1ac.ObjectMetaApplyConfiguration, mc *v1alpha1.Memcached) {
	meta.WithLabels(childLabels(mc)).
		WithOwnerReferences(metav1ac.OwnerReference().
			WithAPIVersion(v1alpha1.GroupVersion.String()).
			WithKind("Memcached").
			WithName(mc.Name).
			WithUID(mc.UID).
			WithController(true).
			WithBlockOwnerDeletion(true))
}

func matchSelector(mc *v1alpha1.Memcached) *metav1ac.LabelSelectorApplyConfiguration {
	return metav1ac.LabelSelector().WithMatchLabels(selectorLabels(mc))
}

func generation(mc *v1alpha1.Memcached) string {
	return strconv.FormatInt(mc.Generation, 10)
}

// size is the number of servers that mc asks for.
func size(mc *v1alpha1.Memcached) int32 {
	if mc.Spec.Size == nil {
		return 1
	}
	return *mc.Spec.Size
}

func pod(mc *v1alpha1.Memcached) v1alpha1.PodSpec {
	if mc.Spec.Pod == nil {
		return v1alpha1.PodSpec{}
	}
	return *mc.Spec.Pod
}

// carried is what the servers keep where their Memcached is silent, so that nothing restarts them without a reason.
type carried struct {
	image       string
	restartedAt string // of the pod template, empty for none
}

// carry decides what the servers of mc keep. The spec decides where it names an image. Where it does not, the image that runs stays, also
// when a new operator has another default, until the user asks for a restart anyway. A restart that was asked for stays
// done when its annotation goes.
func carry(mc *v1alpha1.Memcached, obs observed, defaultImage string) carried {
	c := carried{image: mc.Status.Image, restartedAt: mc.Annotations[v1alpha1.RestartedAtAnnotation]}
	restart := false
	if d := obs.deployment; d != nil && ownership(mc, d) != foreign {
		before := d.Spec.Template.Annotations[v1alpha1.RestartedAtAnnotation]
		restart = c.restartedAt != "" && c.restartedAt != before
		c.restartedAt = cmp.Or(c.restartedAt, before)
		c.image = cmp.Or(c.image, containerImage(d.Spec.Template.Spec.Containers))
	}
	if restart || c.image == "" {
		c.image = defaultImage
	}
	c.image = cmp.Or(mc.Spec.Image, c.image)
	return c
}

func containerImage(containers []corev1.Container) string {
	for i := range containers {
		if containers[i].Name == containerName {
			return containers[i].Image
		}
	}
	return ""
}
