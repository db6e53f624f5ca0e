package desired

import (
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// podDisruptionBudget limits how many servers a node drain stops at a time. A server that is not healthy holds no data,
// and never blocks a drain. With an agent, that is not certain: a pod is also not ready if only the agent is down while
// memcached still serves.
func podDisruptionBudget(mc *v1alpha1.Memcached) *policyv1ac.PodDisruptionBudgetApplyConfiguration {
	unhealthy := policyv1.AlwaysAllow
	if needsAgent(mc) {
		unhealthy = policyv1.IfHealthyBudget
	}
	return budget(mc, mc.Name, names.Servers, ptr.Deref(mc.Spec.DisruptionBudget.MaxUnavailable, 1), unhealthy)
}

func proxyDisruptionBudget(mc *v1alpha1.Memcached) *policyv1ac.PodDisruptionBudgetApplyConfiguration {
	return budget(mc, names.Proxy(mc), names.Proxies, 1, policyv1.AlwaysAllow)
}

func budget(mc *v1alpha1.Memcached, name string, component names.Component, maxUnavailable int32,
	unhealthy policyv1.UnhealthyPodEvictionPolicyType) *policyv1ac.PodDisruptionBudgetApplyConfiguration {
	b := policyv1ac.PodDisruptionBudget(name, mc.Namespace).
		WithSpec(policyv1ac.PodDisruptionBudgetSpec().
			WithMaxUnavailable(intstr.FromInt32(maxUnavailable)).
			WithUnhealthyPodEvictionPolicy(unhealthy).
			WithSelector(matchSelector(mc, component)))
	objectMeta(b.ObjectMetaApplyConfiguration, mc, component)
	return b
}
