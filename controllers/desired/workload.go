package desired

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/controllers/names"
)

// Workload holds the fields of a Deployment or StatefulSet that decisions about servers depend on.
type Workload struct {
	Labels, Annotations map[string]string
	Replicas            *int32
	Template            *corev1ac.PodTemplateSpecApplyConfiguration
}

// ReadWorkload reads a Deployment or StatefulSet; nil if config is neither.
func ReadWorkload(config runtime.ApplyConfiguration) *Workload {
	w := &Workload{}
	switch c := config.(type) {
	case *appsv1ac.DeploymentApplyConfiguration:
		if c.Spec != nil {
			w.Replicas, w.Template = c.Spec.Replicas, c.Spec.Template
		}
		if c.ObjectMetaApplyConfiguration != nil {
			w.Labels, w.Annotations = c.Labels, c.Annotations
		}
	case *appsv1ac.StatefulSetApplyConfiguration:
		if c.Spec != nil {
			w.Replicas, w.Template = c.Spec.Replicas, c.Spec.Template
		}
		if c.ObjectMetaApplyConfiguration != nil {
			w.Labels, w.Annotations = c.Labels, c.Annotations
		}
	default:
		return nil
	}
	return w
}

// SameTemplate reports whether two workloads have the same pod template.
func (w *Workload) SameTemplate(other *Workload) bool {
	return equality.Semantic.DeepEqual(w.Template, other.Template)
}

// SameSize reports whether two workloads ask for the same number of servers.
func (w *Workload) SameSize(other *Workload) bool {
	return equality.Semantic.DeepEqual(w.Replicas, other.Replicas)
}

// container returns the memcached container; nil if there is none.
func (w *Workload) container() *corev1ac.ContainerApplyConfiguration {
	if w.Template != nil && w.Template.Spec != nil {
		for i := range w.Template.Spec.Containers {
			if c := &w.Template.Spec.Containers[i]; ptr.Deref(c.Name, "") == names.Container {
				return c
			}
		}
	}
	return nil
}
