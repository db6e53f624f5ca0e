package status

import (
	"cmp"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// Service returns the Service with this name if we control it. free says that no foreign Service has the name.
type Service func(name string) (service *corev1.Service, free bool)

// Addresses returns the addresses for clients. The ports are those of the existing Services, which may not follow the
// spec yet. A server whose Service has no address yet, or is foreign, is omitted.
func Addresses(mc *v1alpha1.Memcached, service Service) []string {
	list := []string{}
	add := func(serviceName, host string) {
		if s, free := service(serviceName); free {
			list = append(list, address(host, cmp.Or(port(s), mc.Spec.ContainerPort)))
		}
	}
	switch {
	case mc.Spec.Proxy != nil:
		add(names.Proxy(mc), names.ServiceHost(mc, names.Proxy(mc)))
	case mc.Spec.Workload != v1alpha1.WorkloadStatefulSet:
		add(mc.Name, names.Host(mc))
	case mc.Spec.ServerAddresses == v1alpha1.AddressesClusterIP:
		for i := range names.Size(mc) {
			if address := ServerAddress(mc, i, service); address != "" {
				list = append(list, address)
			}
		}
	default:
		for i := range names.Size(mc) {
			add(mc.Name, names.Server(mc, i)+"."+names.Host(mc))
		}
	}
	return list
}

// ServerAddress is the address of the Service of one server; empty for none.
func ServerAddress(mc *v1alpha1.Memcached, ordinal int32, service Service) string {
	s, _ := service(names.Server(mc, ordinal))
	if s == nil || s.Spec.ClusterIP == "" || port(s) == 0 {
		return ""
	}
	return address(s.Spec.ClusterIP, port(s))
}

func address(host string, port int32) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) }

// port is that of memcached, beside which others may have added ports; 0 without one.
func port(s *corev1.Service) (port int32) {
	for i := 0; s != nil && i < len(s.Spec.Ports); i++ {
		if s.Spec.Ports[i].Name == names.Port {
			port = s.Spec.Ports[i].Port
		}
	}
	return port
}
