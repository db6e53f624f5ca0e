package controllers

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

// +kubebuilder:rbac:groups=apps,resources=deployments;statefulsets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=services;configmaps,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch;delete

// childKinds is the table of child kinds. Watches, cache, observation, apply and pruning range over it: a new
// kind needs a row, its permissions above, and a builder in the package desired.
var childKinds = []children.Kind{
	children.NewKind(&appsv1.Deployment{}, &appsv1.DeploymentList{}),
	children.NewKind(&appsv1.StatefulSet{}, &appsv1.StatefulSetList{}),
	children.NewKind(&corev1.Service{}, &corev1.ServiceList{}),
	children.NewKind(&corev1.ConfigMap{}, &corev1.ConfigMapList{}),
	children.NewKind(&networkingv1.NetworkPolicy{}, &networkingv1.NetworkPolicyList{}),
	children.NewKind(&policyv1.PodDisruptionBudget{}, &policyv1.PodDisruptionBudgetList{}),
}

const (
	kindMemcached  = "Memcached"
	kindReplicaSet = "ReplicaSet"
)

// childSet returns the table with a manager's clients.
func childSet(c client.Client, reader client.Reader) *children.Set {
	return &children.Set{Client: c, APIReader: reader, FieldManager: names.Operator, InstanceLabel: v1alpha1.NameLabel,
		Kinds: childKinds}
}

func owner(mc *v1alpha1.Memcached) children.Owner {
	return children.Owner{Object: mc, GVK: v1alpha1.GroupVersion.WithKind(kindMemcached), Labels: names.Labels(mc)}
}

// CacheOptions limit the informer cache to what the operator reads: only children and pods with our managed-by label,
// children almost without managedFields, no Secret in which Helm stores a release, and pods and the metadata of Secrets
// without most of what the operator does not use.
func CacheOptions() cache.Options {
	set := childSet(nil, nil)
	selector := labels.SelectorFromSet(labels.Set{names.LabelManagedBy: names.Operator})
	byObject := map[client.Object]cache.ByObject{}
	for _, kind := range childKinds {
		byObject[kind.Object] = cache.ByObject{Label: selector, Transform: set.TrimManagedFields}
	}
	byObject[&corev1.Pod{}] = cache.ByObject{Label: selector, Transform: func(in any) (any, error) {
		return status.StripPod(in.(*corev1.Pod)), nil
	}}
	notHelm := fields.OneTermNotEqualSelector("type", "helm.sh/release.v1")
	byObject[&corev1.Secret{}] = cache.ByObject{Field: notHelm, Transform: func(in any) (any, error) {
		s := in.(metav1.Object)
		s.SetManagedFields(nil)
		s.SetLabels(nil)
		s.SetAnnotations(nil)
		return in, nil
	}}
	return cache.Options{DefaultTransform: cache.TransformStripManagedFields(), ByObject: byObject}
}
