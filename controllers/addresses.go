package controllers

import (
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/names"
)

// addresses are where clients find the servers, by the Services as they are: these may not follow the spec yet, or not
// be allowed to. A server whose Service has no address yet is left out.
func (p *pass) addresses() []string {
	if p.mc.Spec.Proxy != nil {
		proxy := names.Proxy(p.mc)
		return []string{p.address(names.ServiceHost(p.mc, proxy), proxy)}
	}
	if p.mc.Spec.Workload != v1alpha1.WorkloadStatefulSet {
		return []string{p.address(names.Host(p.mc), p.mc.Name)}
	}
	list := []string{}
	for i := range names.Size(p.mc) {
		server := names.Server(p.mc, i)
		if p.mc.Spec.ServerAddresses != v1alpha1.AddressesClusterIP {
			list = append(list, p.address(server+"."+names.Host(p.mc), p.mc.Name))
		} else if service := p.service(server); service != nil && service.Spec.ClusterIP != "" {
			list = append(list, p.address(service.Spec.ClusterIP, server))
		}
	}
	return list
}

// address joins a host with the port of a Service, or with that of the spec where there is no Service yet.
func (p *pass) address(host, service string) string {
	port := p.mc.Spec.ContainerPort
	if s := p.service(service); s != nil && len(s.Spec.Ports) > 0 {
		port = s.Spec.Ports[0].Port
	}
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// service is a Service of ours; nil where there is none.
func (p *pass) service(name string) *corev1.Service {
	s, ok := p.observed[children.Key{Kind: "Service", Name: name}].(*corev1.Service)
	if !ok || p.owner.Relation(s) != children.Ours {
		return nil
	}
	return s
}
