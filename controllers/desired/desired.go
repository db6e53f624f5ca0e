// Package desired says what the children of a Memcached should be. Building them is pure: no client, no clock.
package desired

import (
	"k8s.io/apimachinery/pkg/runtime"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// Children are all children that mc should have, in the order in which they are applied. A child of mc that is not
// among them is deleted.
func Children(mc *v1alpha1.Memcached, in Inputs) []runtime.ApplyConfiguration {
	return []runtime.ApplyConfiguration{
		service(mc),
		podDisruptionBudget(mc),
		deployment(mc, in),
	}
}

// objectMeta completes the metadata of a child with labels and the controller owner reference.
func objectMeta(meta *metav1ac.ObjectMetaApplyConfiguration, mc *v1alpha1.Memcached) {
	meta.WithLabels(names.Labels(mc)).
		WithOwnerReferences(metav1ac.OwnerReference().
			WithAPIVersion(v1alpha1.GroupVersion.String()).
			WithKind("Memcached").
			WithName(mc.Name).
			WithUID(mc.UID).
			WithController(true).
			WithBlockOwnerDeletion(true))
}

func matchSelector(mc *v1alpha1.Memcached) *metav1ac.LabelSelectorApplyConfiguration {
	return metav1ac.LabelSelector().WithMatchLabels(names.Selector(mc))
}
