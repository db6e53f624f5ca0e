package desired

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// disruptionBudgets limit how many pods of a component a node drain stops at a time; none if the platform does. An
// unhealthy server holds no data, and never blocks a drain; nor does a proxy. With an agent, a server may hold data
// nevertheless: its pod is also not ready if only the agent is down.
func disruptionBudgets(mc *v1alpha1.Memcached, component names.Component) []runtime.ApplyConfiguration {
	budget := mc.Spec.DisruptionBudget
	if budget.Policy == v1alpha1.DisruptionBudgetNone {
		return nil
	}
	name, unhealthy := mc.Name, policyv1.AlwaysAllow
	switch {
	case component == names.Proxies:
		name, budget = names.Proxy(mc), v1alpha1.DisruptionBudgetSpec{}
	case needsAgent(mc):
		unhealthy = policyv1.IfHealthyBudget
	}
	spec := policyv1ac.PodDisruptionBudgetSpec().
		WithUnhealthyPodEvictionPolicy(unhealthy).
		WithSelector(matchSelector(mc, component))
	if budget.MinAvailable != nil {
		spec.WithMinAvailable(*budget.MinAvailable)
	} else {
		spec.WithMaxUnavailable(intstr.FromInt32(ptr.Deref(budget.MaxUnavailable, 1)))
	}
	child := owned(policyv1ac.PodDisruptionBudget(name, mc.Namespace).WithSpec(spec), mc, component)
	return []runtime.ApplyConfiguration{child}
}

type peers []*networkingv1ac.NetworkPolicyPeerApplyConfiguration

// networkPolicies allows only the peers of the spec to reach memcached. With a proxy, these peers may reach the proxy,
// and only the proxy may reach the servers. The operator, in its namespace, may ask the agents for their reports.
func networkPolicies(mc *v1alpha1.Memcached, namespace string) (servers, proxies []runtime.ApplyConfiguration) {
	spec := mc.Spec.NetworkPolicy
	if spec == nil {
		return nil, nil
	}
	clients := *convert(spec.From, &peers{})
	from := clients
	var operator peers // everybody, where the operator runs outside of the cluster
	if namespace != "" {
		operator = peers{networkingv1ac.NetworkPolicyPeer().WithNamespaceSelector(
			metav1ac.LabelSelector().WithMatchLabels(map[string]string{corev1.LabelMetadataName: namespace}))}
	}
	reports := ingress(intstr.FromInt32(names.ReportPort(mc)), operator)
	if mc.Spec.Proxy != nil {
		policy := networkPolicy(mc, names.Proxy(mc), names.Proxies, from)
		policy.Spec.WithIngress(reports)
		proxies = append(proxies, policy)
		from = peers{networkingv1ac.NetworkPolicyPeer().WithPodSelector(matchSelector(mc, names.Proxies))}
	}
	policy := networkPolicy(mc, mc.Name, names.Servers, from)
	if serversReport(mc) {
		policy.Spec.WithIngress(reports)
	}
	if mc.Spec.Discovery != nil && len(clients) > 0 {
		policy.Spec.WithIngress(ingress(intstr.FromInt32(names.DiscoveryPort(mc)), clients))
	}
	return append(servers, policy), proxies
}

func networkPolicy(mc *v1alpha1.Memcached, name string, component names.Component,
	from peers) *networkingv1ac.NetworkPolicyApplyConfiguration {
	n := owned(networkingv1ac.NetworkPolicy(name, mc.Namespace).
		WithSpec(networkingv1ac.NetworkPolicySpec().
			WithPodSelector(matchSelector(mc, component)).
			WithPolicyTypes(networkingv1.PolicyTypeIngress)), mc, component)
	if len(from) > 0 { // a rule without peers would admit everybody
		n.Spec.WithIngress(ingress(intstr.FromString(names.Port), from))
	}
	if m := mc.Spec.Metrics; m != nil {
		// Metrics have a rule of their own: Prometheus is not a client of the cache. The rule names the port by number,
		// because network plugins look for its name in containers, and the agent is an init container.
		n.Spec.WithIngress(ingress(intstr.FromInt32(m.Port), *convert(mc.Spec.NetworkPolicy.MetricsFrom, &peers{})))
	}
	return n
}

func ingress(port intstr.IntOrString, from peers) *networkingv1ac.NetworkPolicyIngressRuleApplyConfiguration {
	return networkingv1ac.NetworkPolicyIngressRule().
		WithFrom(from...).
		WithPorts(networkingv1ac.NetworkPolicyPort().
			WithProtocol(corev1.ProtocolTCP).
			WithPort(port))
}
