package desired

import (
	"encoding/json"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// deployment returns the Deployment that runs the servers of mc.
func deployment(mc *v1alpha1.Memcached, in Inputs) *appsv1ac.DeploymentApplyConfiguration {
	// Without a surge, a rollout never needs more capacity than the servers have. A single server is replaced by starting
	// the new one first, because otherwise no server would be available.
	maxSurge, maxUnavailable := int32(0), mc.Spec.Rollout.MaxUnavailable
	if names.Size(mc) == 1 {
		maxSurge, maxUnavailable = 1, 0
	}
	d := owned(appsv1ac.Deployment(mc.Name, mc.Namespace).
		WithLabels(in.labels).
		WithAnnotations(in.annotations).
		WithSpec(deploymentSpec(mc, names.Servers, maxSurge, maxUnavailable).
			WithReplicas(names.Size(mc)).
			WithTemplate(in.template)), mc, names.Servers)
	if s := mc.Spec.Rollout.MinReadySeconds; s > 0 {
		// The existing object omits a zero, and would always differ from a desired one that sets it.
		d.Spec.WithMinReadySeconds(s)
	}
	return d
}

// deploymentSpec is what the Deployments of all components have in common.
func deploymentSpec(mc *v1alpha1.Memcached, component names.Component,
	maxSurge, maxUnavailable int32) *appsv1ac.DeploymentSpecApplyConfiguration {
	return appsv1ac.DeploymentSpec().
		WithSelector(matchSelector(mc, component)).
		WithProgressDeadlineSeconds(mc.Spec.Rollout.ProgressDeadlineSeconds).
		WithRevisionHistoryLimit(1).
		WithStrategy(appsv1ac.DeploymentStrategy().
			WithType("RollingUpdate").
			WithRollingUpdate(appsv1ac.RollingUpdateDeployment().
				WithMaxSurge(intstr.FromInt32(maxSurge)).
				WithMaxUnavailable(intstr.FromInt32(maxUnavailable))))
}

// statefulSet returns the StatefulSet that runs the servers of mc. All start in parallel, because they do not depend on
// each other. The operator replaces them itself, as spec.rollout says: before Kubernetes 1.37, a StatefulSet replaces
// one server at a time or, with parallel pod management, all at once.
func statefulSet(mc *v1alpha1.Memcached, in Inputs) *appsv1ac.StatefulSetApplyConfiguration {
	s := owned(appsv1ac.StatefulSet(mc.Name, mc.Namespace).
		WithLabels(in.labels).
		WithAnnotations(in.annotations).
		WithSpec(appsv1ac.StatefulSetSpec().
			WithReplicas(in.size).
			WithServiceName(mc.Name).
			WithSelector(matchSelector(mc, names.Servers)).
			WithPodManagementPolicy(appsv1.ParallelPodManagement).
			WithUpdateStrategy(appsv1ac.StatefulSetUpdateStrategy().WithType(appsv1.OnDeleteStatefulSetStrategyType)).
			WithRevisionHistoryLimit(1).
			WithOrdinals(appsv1ac.StatefulSetOrdinals().WithStart(0)). // Services and addresses count from 0
			WithTemplate(in.template)), mc, names.Servers)
	seconds := mc.Spec.Rollout.MinReadySeconds
	if mc.Spec.Proxy != nil {
		seconds = max(seconds, proxyDelay)
	}
	if mc.Spec.Proxy != nil && !mc.Spec.Paused {
		list, _ := json.Marshal(in.proxyServers) // only strings
		s.WithAnnotations(map[string]string{v1alpha1.ProxyServersAnnotation: string(list)})
	}
	if seconds > 0 {
		s.Spec.WithMinReadySeconds(seconds)
	}
	return s
}

// Workload holds the fields of a Deployment or StatefulSet that decisions about servers depend on.
type Workload struct {
	Labels, Annotations map[string]string
	Replicas            *int32
	Template            *corev1ac.PodTemplateSpecApplyConfiguration
}

// ReadWorkload reads a Deployment or StatefulSet; nil if config is neither.
func ReadWorkload(config runtime.ApplyConfiguration) *Workload {
	w := &Workload{}
	var meta *metav1ac.ObjectMetaApplyConfiguration
	switch c := config.(type) {
	case *appsv1ac.DeploymentApplyConfiguration:
		spec := ptr.Deref(c.Spec, appsv1ac.DeploymentSpecApplyConfiguration{})
		meta, w.Replicas, w.Template = c.ObjectMetaApplyConfiguration, spec.Replicas, spec.Template
	case *appsv1ac.StatefulSetApplyConfiguration:
		spec := ptr.Deref(c.Spec, appsv1ac.StatefulSetSpecApplyConfiguration{})
		meta, w.Replicas, w.Template = c.ObjectMetaApplyConfiguration, spec.Replicas, spec.Template
	default:
		return nil
	}
	if meta != nil {
		w.Labels, w.Annotations = meta.Labels, meta.Annotations
	}
	return w
}

// SameTemplate reports whether two workloads have the same pod template.
func (w *Workload) SameTemplate(other *Workload) bool {
	return equality.Semantic.DeepEqual(w.Template, other.Template)
}

// SameSize reports whether two workloads ask for the same number of servers.
func (w *Workload) SameSize(other *Workload) bool { return ptr.Equal(w.Replicas, other.Replicas) }

// IsOfGeneration reports whether a workload was built from the current generation of mc.
func (w *Workload) IsOfGeneration(mc *v1alpha1.Memcached) bool {
	return w != nil && w.Labels[v1alpha1.GenerationLabel] == names.Generation(mc)
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
