package desired

import (
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// podDisruptionBudget paces node drains for the servers. A server that is not healthy holds nothing worth keeping, so
// it never blocks a drain. Beside an agent that is not so sure: a pod is not ready either while only the agent is down,
// and memcached serves on.
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
