package desired

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// networkPolicies allows only the peers of the spec to reach memcached. With a proxy, these peers may reach the proxy,
// and only the proxy may reach the servers.
func networkPolicies(mc *v1alpha1.Memcached) (servers, proxies []runtime.ApplyConfiguration) {
	if mc.Spec.NetworkPolicy == nil {
		return nil, nil
	}
	from := peers(mc.Spec.NetworkPolicy.From)
	if mc.Spec.Proxy == nil {
		return []runtime.ApplyConfiguration{serverPolicy(mc, from)}, nil
	}
	proxyPods := networkingv1ac.NetworkPolicyPeer().
		WithPodSelector(metav1ac.LabelSelector().WithMatchLabels(names.Proxies.Selector(mc)))
	return []runtime.ApplyConfiguration{
			serverPolicy(mc, []*networkingv1ac.NetworkPolicyPeerApplyConfiguration{proxyPods})},
		[]runtime.ApplyConfiguration{networkPolicy(mc, names.Proxy(mc), names.Proxies, from)}
}

func peers(list []v1alpha1.NetworkPolicyPeer) (out []*networkingv1ac.NetworkPolicyPeerApplyConfiguration) {
	for i := range list {
		out = append(out, convert(&list[i], networkingv1ac.NetworkPolicyPeer()))
	}
	return out
}

// serverPolicy has a separate rule for metrics: Prometheus is not a client of the cache. The rule names the port by
// number, because network plugins look for its name in containers, and the agent is an init container.
func serverPolicy(mc *v1alpha1.Memcached,
	from []*networkingv1ac.NetworkPolicyPeerApplyConfiguration) *networkingv1ac.NetworkPolicyApplyConfiguration {
	n := networkPolicy(mc, mc.Name, names.Servers, from)
	if m := mc.Spec.Metrics; m != nil {
		n.Spec.WithIngress(ingress(intstr.FromInt32(m.Port), peers(mc.Spec.NetworkPolicy.MetricsFrom)))
	}
	return n
}

func ingress(port intstr.IntOrString, from []*networkingv1ac.NetworkPolicyPeerApplyConfiguration,
) *networkingv1ac.NetworkPolicyIngressRuleApplyConfiguration {
	return networkingv1ac.NetworkPolicyIngressRule().
		WithFrom(from...).
		WithPorts(networkingv1ac.NetworkPolicyPort().
			WithProtocol(corev1.ProtocolTCP).
			WithPort(port))
}

func networkPolicy(mc *v1alpha1.Memcached, name string, component names.Component,
	from []*networkingv1ac.NetworkPolicyPeerApplyConfiguration) *networkingv1ac.NetworkPolicyApplyConfiguration {
	n := networkingv1ac.NetworkPolicy(name, mc.Namespace).
		WithSpec(networkingv1ac.NetworkPolicySpec().
			WithPodSelector(matchSelector(mc, component)).
			WithPolicyTypes(networkingv1.PolicyTypeIngress))
	if len(from) > 0 { // a rule without peers would admit everybody
		n.Spec.WithIngress(ingress(intstr.FromString(names.Port), from))
	}
	objectMeta(n.ObjectMetaApplyConfiguration, mc, component)
	return n
}
