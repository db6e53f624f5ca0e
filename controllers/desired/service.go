package desired

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// service is headless: its name resolves to the address of every ready server, and clients spread their keys over them.
// A virtual address would send each request for a key to another server. The names of a StatefulSet's servers stay
// while a server restarts, so that clients keep their hash ring.
func service(mc *v1alpha1.Memcached) *corev1ac.ServiceApplyConfiguration {
	s := corev1ac.Service(mc.Name, mc.Namespace).
		WithSpec(corev1ac.ServiceSpec().
			WithType(corev1.ServiceTypeClusterIP).
			WithClusterIP(corev1.ClusterIPNone).
			WithSelector(names.Servers.Selector(mc)).
			WithPorts(port(mc)))
	if mc.Spec.Workload == v1alpha1.WorkloadStatefulSet {
		s.Spec.WithPublishNotReadyAddresses(true)
	}
	objectMeta(s.ObjectMetaApplyConfiguration, mc, names.Servers)
	return s
}

// serverService has the address of one server of a StatefulSet, which outlives the server's pod. While there is no pod,
// connections are refused at once. A server that has been told to end serves until it does, and one that starts is
// reached as soon as it listens.
func serverService(mc *v1alpha1.Memcached, ordinal int32) *corev1ac.ServiceApplyConfiguration {
	s := addressedService(mc, names.Server(mc, ordinal), names.Servers)
	s.Spec.WithSelector(map[string]string{appsv1.StatefulSetPodNameLabel: names.Server(mc, ordinal)}).
		WithPublishNotReadyAddresses(true)
	return s
}

// addressedService has an address of its own.
func addressedService(mc *v1alpha1.Memcached, name string,
	component names.Component) *corev1ac.ServiceApplyConfiguration {
	s := corev1ac.Service(name, mc.Namespace).
		WithSpec(corev1ac.ServiceSpec().
			WithType(corev1.ServiceTypeClusterIP).
			WithSelector(component.Selector(mc)).
			WithPorts(port(mc)))
	objectMeta(s.ObjectMetaApplyConfiguration, mc, component)
	return s
}

func port(mc *v1alpha1.Memcached) *corev1ac.ServicePortApplyConfiguration {
	return corev1ac.ServicePort().
		WithName(names.Port).
		WithPort(mc.Spec.ContainerPort).
		WithProtocol(corev1.ProtocolTCP).
		WithTargetPort(intstr.FromString(names.Port))
}
