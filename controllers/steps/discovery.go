package steps

import (
	"net"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

// NextList returns the next list of servers for clients to discover, when it was published, and the number of servers
// that must run even if the spec asks for fewer, because clients may use them. The version is at least the time in
// seconds, so that it also grows if the list is lost with the Memcached. Where clients know a newer version than the
// list has, somebody restored an old list, which gets a new version.
func NextList(v View) (next contract.List, published time.Time, minServers int32) {
	if v.Memcached.Spec.Discovery == nil {
		return next, published, 0
	}
	next, published = contract.List{Version: v.List.Version, Nodes: v.nextNodes()}, v.Published
	newest := next.Version // that clients may know
	for _, pod := range v.Servers {
		newest = max(newest, contract.ParseList(pod.Annotations[v1alpha1.DiscoveryAnnotation]).Version)
	}
	isOutdated := !slices.Equal(next.Nodes, v.List.Nodes) || next.Version < newest && !v.Memcached.Spec.Paused
	if isOutdated {
		next.Version = min(max(newest+1, v.Now.Unix()), contract.MaxVersion)
	}
	if isOutdated || published.IsZero() || published.After(v.Now) { // by the clock of another process
		published = v.Now
	}
	isRemoved := func(node string) bool {
		return names.Ordinal(v.Memcached.Name, nameOf(node)) >= int(names.Size(v.Memcached))
	}
	if isOutdated || v.UntilRemoval() > 0 || slices.ContainsFunc(next.Nodes, isRemoved) {
		minServers = Replicas(v.Workload)
	}
	return next, published, minServers
}

// nextNodes returns the servers that clients may use:
//
//   - A proxy is ready: its address. None is: the current list.
//   - A Service has no address yet: the current list.
//   - All servers of the spec are ready: all of them.
//   - Not all are ready: those of the current list, without servers beyond the size.
//   - None is left, because a proxy was removed; or there is no list, though all servers were ready before, so the list
//     was lost: the servers that exist.
//   - There is no list, and not all servers have been ready yet: none.
func (v View) nextNodes() []string {
	current := v.List
	var nodes []string
	size, hasProxy := int(names.Size(v.Memcached)), v.Memcached.Spec.Proxy != nil
	for n, address := range status.Addresses(v.Memcached, v.Service) {
		host, port, _ := net.SplitHostPort(address)
		name := host
		if !hasProxy && v.Memcached.Spec.ServerAddresses == v1alpha1.AddressesClusterIP {
			name = names.ServiceHost(v.Memcached, names.Server(v.Memcached, int32(n)))
		}
		nodes = append(nodes, name+"|"+host+"|"+port)
	}
	ready := filter(v.Servers, func(pod *corev1.Pod) bool {
		n := names.Ordinal(v.Memcached.Name, pod.Name)
		return n >= 0 && n < size && isReady(pod)
	})
	isListed := func(node string) bool {
		return slices.ContainsFunc(current.Nodes, func(other string) bool { return nameOf(other) == nameOf(node) })
	}
	switch {
	case hasProxy && (len(nodes) == 0 || !slices.ContainsFunc(v.Proxies, isReady)), !hasProxy && len(nodes) < size:
		return current.Nodes
	case hasProxy, len(ready) == size:
		return nodes
	case slices.ContainsFunc(nodes, isListed):
		return slices.DeleteFunc(nodes, func(node string) bool { return !isListed(node) })
	case len(current.Nodes) > 0, current.Version == 0 && status.Installed(v.Memcached):
		return nodes[:min(size, int(Replicas(v.Workload)))]
	}
	return nil
}

// nameOf returns the name of the server, or of the proxy, that a node is.
func nameOf(node string) string {
	name, _, _ := strings.Cut(node, ".")
	return name
}

// UntilRemoval returns how long servers beyond the size still serve clients that use an older list; 0 if there are
// none.
func (v View) UntilRemoval() time.Duration {
	if v.List.Version == 0 || Replicas(v.Workload) <= names.Size(v.Memcached) {
		return 0
	}
	return max(v.Published.Add(status.RemovalDelay(v.Memcached)).Sub(v.Now), 0)
}
