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

// networkPolicies let the peers of the spec reach memcached, and nobody else. With a proxy, these peers reach the
// proxy, and the proxy alone reaches the servers.
func networkPolicies(mc *v1alpha1.Memcached) []runtime.ApplyConfiguration {
	var from []*networkingv1ac.NetworkPolicyPeerApplyConfiguration
	for i := range mc.Spec.NetworkPolicy.From {
		from = append(from, convert(&mc.Spec.NetworkPolicy.From[i], networkingv1ac.NetworkPolicyPeer()))
	}
	if mc.Spec.Proxy == nil {
		return []runtime.ApplyConfiguration{networkPolicy(mc, mc.Name, names.Servers, from)}
	}
	proxies := networkingv1ac.NetworkPolicyPeer().
		WithPodSelector(metav1ac.LabelSelector().WithMatchLabels(names.Proxies.Selector(mc)))
	return []runtime.ApplyConfiguration{
		networkPolicy(mc, mc.Name, names.Servers, []*networkingv1ac.NetworkPolicyPeerApplyConfiguration{proxies}),
		networkPolicy(mc, names.Proxy(mc), names.Proxies, from),
	}
}

func networkPolicy(mc *v1alpha1.Memcached, name string, component names.Component,
	from []*networkingv1ac.NetworkPolicyPeerApplyConfiguration) *networkingv1ac.NetworkPolicyApplyConfiguration {
	n := networkingv1ac.NetworkPolicy(name, mc.Namespace).
		WithSpec(networkingv1ac.NetworkPolicySpec().
			WithPodSelector(matchSelector(mc, component)).
			WithPolicyTypes(networkingv1.PolicyTypeIngress))
	if len(from) > 0 { // a rule without peers would let everybody in
		n.Spec.WithIngress(networkingv1ac.NetworkPolicyIngressRule().
			WithFrom(from...).
			WithPorts(networkingv1ac.NetworkPolicyPort().
				WithProtocol(corev1.ProtocolTCP).
				WithPort(intstr.FromString(names.Port))))
	}
	objectMeta(n.ObjectMetaApplyConfiguration, mc, component)
	return n
}
