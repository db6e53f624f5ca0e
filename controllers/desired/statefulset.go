package desired

import (
	appsv1 "k8s.io/api/apps/v1"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// statefulSet returns the StatefulSet that runs the servers of mc. All start in parallel, because they do not depend on
// each other. The operator replaces them itself, as spec.rollout says: before Kubernetes 1.37, a StatefulSet replaces
// one server at a time or, with parallel pod management, all at once.
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
		seconds = max(seconds, proxyRetry) // until then, proxies may not use the server
	}
	if seconds > 0 {
		s.Spec.WithMinReadySeconds(seconds)
	}
	objectMeta(s.ObjectMetaApplyConfiguration, mc, names.Servers)
	return s
}
