package desired

import (
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// podDisruptionBudget paces node drains. A server that is not healthy holds nothing worth keeping, so it never blocks
// one.
func podDisruptionBudget(mc *v1alpha1.Memcached) *policyv1ac.PodDisruptionBudgetApplyConfiguration {
	b := policyv1ac.PodDisruptionBudget(mc.Name, mc.Namespace).
		WithSpec(policyv1ac.PodDisruptionBudgetSpec().
			WithMaxUnavailable(intstr.FromInt32(ptr.Deref(mc.Spec.DisruptionBudget.MaxUnavailable, 1))).
			WithUnhealthyPodEvictionPolicy(policyv1.AlwaysAllow).
			WithSelector(matchSelector(mc)))
	objectMeta(b.ObjectMetaApplyConfiguration, mc)
	return b
}
