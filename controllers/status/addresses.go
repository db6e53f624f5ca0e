package status

import (
	"cmp"
	"fmt"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// Service returns the Service with this name if we control it. free says that no foreign Service has the name.
type Service func(name string) (service *corev1.Service, free bool)

// Address is an address for clients.
type Address struct {
	// Name is the name that resolves to IP; of a server or, without spec.workload StatefulSet, of all servers.
	Name string
	// IP is the address of a Service; empty if there is none that lasts.
	IP   string
	Port int32
}

// Node returns the address as clients discover it: name|ip|port.
func (a Address) Node() string { return fmt.Sprintf("%s|%s|%d", a.Name, cmp.Or(a.IP, a.Name), a.Port) }

// ListAddresses returns the addresses for clients. The ports are those of the existing Services, which may not follow
// the spec yet. A server whose Service has no address yet, or is foreign, is omitted.
func ListAddresses(mc *v1alpha1.Memcached, service Service) (list []Address) {
	add := func(serviceName, host string, hasIP bool) {
		if s, free := service(serviceName); free {
			a := Address{Name: host, Port: cmp.Or(port(s), mc.Spec.ContainerPort)}
			if s != nil && hasIP {
				a.IP = s.Spec.ClusterIP
			}
			list = append(list, a)
		}
	}
	switch {
	case mc.Spec.Proxy != nil:
		add(names.Proxy(mc), names.ServiceHost(mc, names.Proxy(mc)), true)
	case mc.Spec.Workload != v1alpha1.WorkloadStatefulSet:
		add(mc.Name, names.Host(mc), false)
	case mc.Spec.ServerAddresses == v1alpha1.AddressesClusterIP:
		for i := range names.Size(mc) {
			if name := names.Server(mc, i); ServerAddress(mc, i, service) != "" {
				add(name, names.ServiceHost(mc, name), true)
			}
		}
	default:
		for i := range names.Size(mc) {
			add(mc.Name, names.Server(mc, i)+"."+names.Host(mc), false)
		}
	}
	return list
}

// Addresses returns the addresses for clients, each as host:port.
func Addresses(mc *v1alpha1.Memcached, service Service) []string {
	list := []string{}
	for _, a := range ListAddresses(mc, service) {
		host := a.Name
		if mc.Spec.Proxy == nil {
			host = cmp.Or(a.IP, a.Name)
		}
		list = append(list, address(host, a.Port))
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
