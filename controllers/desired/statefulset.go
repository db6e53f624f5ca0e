package desired

import (
	appsv1 "k8s.io/api/apps/v1"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// statefulSet is the workload of mc whose servers have stable names. All are started at once, because servers know
// nothing of each other. The operator replaces them itself, at the pace of spec.rollout: before Kubernetes 1.37 a
// StatefulSet replaces one at a time or, of those that start at once, all.
func statefulSet(mc *v1alpha1.Memcached, in Inputs) *appsv1ac.StatefulSetApplyConfiguration {
	s := appsv1ac.StatefulSet(mc.Name, mc.Namespace).
		WithLabels(in.generationLabel(mc)).
		WithAnnotations(in.annotations).
		WithSpec(appsv1ac.StatefulSetSpec().
			WithReplicas(names.Size(mc)).
			WithServiceName(mc.Name).
			WithSelector(matchSelector(mc, names.Servers)).
			WithPodManagementPolicy(appsv1.ParallelPodManagement).
			WithUpdateStrategy(appsv1ac.StatefulSetUpdateStrategy().WithType(appsv1.OnDeleteStatefulSetStrategyType)).
			WithRevisionHistoryLimit(1).
			WithOrdinals(appsv1ac.StatefulSetOrdinals().WithStart(0)). // Services and addresses count from 0
			WithTemplate(in.template))
	seconds := mc.Spec.Rollout.MinReadySeconds
	if mc.Spec.Proxy != nil {
		seconds = max(seconds, proxyRetry) // a server that proxies do not use yet is of no use
	}
	if seconds > 0 {
		s.Spec.WithMinReadySeconds(seconds)
	}
	objectMeta(s.ObjectMetaApplyConfiguration, mc, names.Servers)
	return s
}
