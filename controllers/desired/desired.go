// Package desired builds the children that a Memcached should have. It is pure: no client, no clock.
package desired

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// Plan holds the children that a Memcached should have.
type Plan struct {
	// Children are all children that the Memcached should have, in the order in which they are written. A child that is
	// not among them is deleted.
	Children []runtime.ApplyConfiguration
	// Guards are, for a workload, the children that must exist before its pods may be created: the policy that restricts
	// access, and the configuration that the pods read, whose name a foreign object could have.
	Guards map[runtime.ApplyConfiguration][]runtime.ApplyConfiguration
}

// Children returns the plan for mc.
func Children(mc *v1alpha1.Memcached, in Inputs) Plan {
	p := Plan{Guards: map[runtime.ApplyConfiguration][]runtime.ApplyConfiguration{}}
	p.add(headlessService(mc), podDisruptionBudget(mc, names.Servers))
	if names.ServerServices(mc) {
		for i := range names.Size(mc) {
			p.add(serverService(mc, i))
		}
	}
	serverPolicies, proxyPolicies := networkPolicies(mc)
	p.add(serverPolicies...)
	switch {
	case in.template == nil:
	case mc.Spec.Workload == v1alpha1.WorkloadStatefulSet:
		p.addGuarded(statefulSet(mc, in), serverPolicies)
	default:
		p.addGuarded(deployment(mc, in), serverPolicies)
	}
	if mc.Spec.Proxy != nil {
		guards := slices.Concat(proxyPolicies, []runtime.ApplyConfiguration{proxyConfig(mc, in.proxyServers)})
		p.add(service(mc, names.Proxy(mc), names.Proxies), podDisruptionBudget(mc, names.Proxies))
		p.add(guards...)
		p.addGuarded(proxyDeployment(mc, in), guards)
	}
	return p
}

func (p *Plan) add(children ...runtime.ApplyConfiguration) {
	p.Children = append(p.Children, children...)
}

func (p *Plan) addGuarded(workload runtime.ApplyConfiguration, guards []runtime.ApplyConfiguration) {
	p.add(workload)
	p.Guards[workload] = guards
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
