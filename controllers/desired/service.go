package desired

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// service is headless: its name resolves to the address of every ready server, and clients spread their keys over them.
// A virtual address would send each request for a key to another server.
func service(mc *v1alpha1.Memcached) *corev1ac.ServiceApplyConfiguration {
	s := corev1ac.Service(mc.Name, mc.Namespace).
		WithSpec(corev1ac.ServiceSpec().
			WithType(corev1.ServiceTypeClusterIP).
			WithClusterIP(corev1.ClusterIPNone).
			WithSelector(names.Selector(mc)).
			WithPorts(corev1ac.ServicePort().
				WithName(names.Port).
				WithPort(mc.Spec.ContainerPort).
				WithProtocol(corev1.ProtocolTCP).
				WithTargetPort(intstr.FromString(names.Port))))
	objectMeta(s.ObjectMetaApplyConfiguration, mc)
	return s
}
