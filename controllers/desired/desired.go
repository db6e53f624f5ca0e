// Package desired says what the children of a Memcached should be. Building them is pure: no client, no clock.
package desired

import (
	"k8s.io/apimachinery/pkg/runtime"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// Children are all children that mc should have. They are written at the same time, so none may need another that comes
// before it. A child of mc that is not among them is deleted.
func Children(mc *v1alpha1.Memcached, in Inputs) []runtime.ApplyConfiguration {
	children := []runtime.ApplyConfiguration{service(mc),
		podDisruptionBudget(mc, mc.Name, names.Servers, ptr.Deref(mc.Spec.DisruptionBudget.MaxUnavailable, 1))}
	if mc.Spec.NetworkPolicy != nil {
		children = append(children, networkPolicies(mc)...)
	}
	if names.ServerServices(mc) {
		for i := range names.Size(mc) {
			children = append(children, serverService(mc, i))
		}
	}
	switch {
	case in.template == nil:
	case mc.Spec.Workload == v1alpha1.WorkloadStatefulSet:
		children = append(children, statefulSet(mc, in))
	default:
		children = append(children, deployment(mc, in))
	}
	if mc.Spec.Proxy != nil {
		children = append(children, proxyService(mc), podDisruptionBudget(mc, names.Proxy(mc), names.Proxies, 1),
			proxyConfig(mc, in.ProxyServers), proxyDeployment(mc, in))
	}
	return children
}

// objectMeta completes the metadata of a child with labels and the controller owner reference.
func objectMeta(meta *metav1ac.ObjectMetaApplyConfiguration, mc *v1alpha1.Memcached, component names.Component) {
	meta.WithLabels(component.Labels(mc)).
		WithOwnerReferences(metav1ac.OwnerReference().
			WithAPIVersion(v1alpha1.GroupVersion.String()).
			WithKind("Memcached").
			WithName(mc.Name).
			WithUID(mc.UID).
			WithController(true).
			WithBlockOwnerDeletion(true))
}

func matchSelector(mc *v1alpha1.Memcached, component names.Component) *metav1ac.LabelSelectorApplyConfiguration {
	return metav1ac.LabelSelector().WithMatchLabels(component.Selector(mc))
}
