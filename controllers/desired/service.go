package desired

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// headlessService has a name that resolves to the addresses of all ready servers, and clients spread their keys over
// them. With a cluster IP, each request for a key would reach another server. The names of a StatefulSet's servers
// resolve even while a server restarts, so that clients preserve their hash ring.
func headlessService(mc *v1alpha1.Memcached) *corev1ac.ServiceApplyConfiguration {
	s := service(mc, mc.Name, names.Servers)
	s.Spec.WithClusterIP(corev1.ClusterIPNone)
	if mc.Spec.Workload == v1alpha1.WorkloadStatefulSet {
		s.Spec.WithPublishNotReadyAddresses(true)
	}
	return s
}

// serverService gives one server of a StatefulSet an address that outlives the server's pod. Without a pod,
// connections are refused at once. A terminating server is reachable until it stops, and a starting one as soon as it
// listens.
func serverService(mc *v1alpha1.Memcached, ordinal int32) *corev1ac.ServiceApplyConfiguration {
	s := service(mc, names.Server(mc, ordinal), names.Servers)
	s.Spec.WithSelector(map[string]string{appsv1.StatefulSetPodNameLabel: names.Server(mc, ordinal)}).
		WithPublishNotReadyAddresses(true)
	return s
}

// service returns a Service with a cluster IP for the pods of a component.
func service(mc *v1alpha1.Memcached, name string, component names.Component) *corev1ac.ServiceApplyConfiguration {
	s := corev1ac.Service(name, mc.Namespace).
		WithSpec(corev1ac.ServiceSpec().
			WithType(corev1.ServiceTypeClusterIP).
			WithSelector(component.Selector(mc)).
			WithPorts(corev1ac.ServicePort().
				WithName(names.Port).
				WithPort(mc.Spec.ContainerPort).
				WithProtocol(corev1.ProtocolTCP).
				WithTargetPort(intstr.FromString(names.Port))))
	objectMeta(s.ObjectMetaApplyConfiguration, mc, component)
	return s
}
