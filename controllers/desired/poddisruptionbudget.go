package desired

import (
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// podDisruptionBudget paces node drains. A pod that is not healthy holds nothing worth keeping, so it never blocks one.
func podDisruptionBudget(mc *v1alpha1.Memcached, name string, component names.Component,
	maxUnavailable int32) *policyv1ac.PodDisruptionBudgetApplyConfiguration {
	b := policyv1ac.PodDisruptionBudget(name, mc.Namespace).
		WithSpec(policyv1ac.PodDisruptionBudgetSpec().
			WithMaxUnavailable(intstr.FromInt32(maxUnavailable)).
			WithUnhealthyPodEvictionPolicy(policyv1.AlwaysAllow).
			WithSelector(matchSelector(mc, component)))
	objectMeta(b.ObjectMetaApplyConfiguration, mc, component)
	return b
}
