package controllers

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch;delete

// childKinds is the table of child kinds. Watches, cache, observation, comparison, apply and pruning range over it: a
// new kind needs a row, its permissions above, and a builder in the package desired.
var childKinds = []children.Kind{
	workloadKind,
	children.NewKind(&corev1.Service{}, &corev1.ServiceList{}, corev1ac.ExtractService),
	children.NewKind(&policyv1.PodDisruptionBudget{}, &policyv1.PodDisruptionBudgetList{},
		policyv1ac.ExtractPodDisruptionBudget),
}

// workloadKind is the kind of child that runs the servers.
var workloadKind = children.NewKind(&appsv1.Deployment{}, &appsv1.DeploymentList{}, appsv1ac.ExtractDeployment)

const (
	kindDeployment = "Deployment"
	kindMemcached  = "Memcached"
)

// childSet makes the table usable with a manager's clients.
func childSet(c client.Client, live client.Reader) *children.Set {
	return &children.Set{Client: c, Live: live, FieldManager: names.Operator, InstanceLabel: names.LabelInstance,
		Kinds: childKinds}
}

// CacheOptions keep in memory only what the operator uses: children by label, without other managers' field records;
// pods without all that their status does not need.
func CacheOptions() cache.Options {
	set := childSet(nil, nil)
	selector := labels.SelectorFromSet(labels.Set{names.LabelManagedBy: names.Operator})
	byObject := map[client.Object]cache.ByObject{}
	for _, kind := range childKinds {
		byObject[kind.Object] = cache.ByObject{Label: selector, Transform: set.KeepOwnFields}
	}
	byObject[&corev1.Pod{}] = cache.ByObject{Label: selector, Transform: func(in any) (any, error) {
		if pod, ok := in.(*corev1.Pod); ok {
			return status.StripPod(pod), nil
		}
		return nil, fmt.Errorf("%T is no pod", in)
	}}
	return cache.Options{DefaultTransform: cache.TransformStripManagedFields(), ByObject: byObject}
}
