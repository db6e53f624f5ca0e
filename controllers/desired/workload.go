package desired

import (
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"

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
			WithTemplate(in.template())), mc, names.Servers)
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
			WithTemplate(in.template())), mc, names.Servers)
	seconds := mc.Spec.Rollout.MinReadySeconds
	if mc.Spec.Proxy != nil {
		seconds = max(seconds, proxyDelay)
	}
	if seconds > 0 {
		s.Spec.WithMinReadySeconds(seconds)
	}
	return s
}
