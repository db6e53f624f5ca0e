package steps

import (
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

// Publication is the newest list of servers that this process has published for clients to discover.
type Publication struct {
	Version int64 // 0 for none
	At      time.Time
}

// NextList returns the next list of servers for clients to discover, and the number of servers that must run even if the
// spec asks for fewer, because clients may use them. The version is at least the time in seconds, so that it also grows
// if the list is lost with the Memcached. Where clients know a newer version than the list has, somebody restored an old
// list, which gets a new version.
func NextList(v View) (next contract.List, minServers int32) {
	if v.Memcached.Spec.Discovery == nil {
		return next, 0
	}
	current, newest := v.List(), v.newestVersion()
	next = contract.List{Version: current.Version, Nodes: v.nextNodes(current)}
	switch {
	case current.Version == 0 && len(next.Nodes) == 0:
		return next, 0
	case !slices.Equal(next.Nodes, current.Nodes), current.Version < newest && !v.Memcached.Spec.Paused:
		next.Version = min(max(newest+1, v.Now.Unix()), contract.MaxVersion)
	}
	isRemoved := func(node string) bool {
		return names.Ordinal(v.Memcached.Name, nameOf(node)) >= int(names.Size(v.Memcached))
	}
	if next.Version != current.Version || v.UntilRemoval() > 0 || slices.ContainsFunc(next.Nodes, isRemoved) {
		minServers = Replicas(v.Workload)
	}
	return next, minServers
}

// newestVersion returns the newest version that clients may know.
func (v View) newestVersion() int64 {
	newest := max(v.List().Version, v.Published.Version)
	for _, pod := range v.Servers {
		newest = max(newest, contract.ParseList(pod.Annotations[v1alpha1.DiscoveryAnnotation]).Version)
	}
	return newest
}

// nextNodes returns the servers that clients may use:
//
//   - A proxy is ready: its address. None is: the current list.
//   - A Service has no address yet: the current list.
//   - All servers of the spec are ready: all of them.
//   - Not all are ready: those of the current list, without servers beyond the size. If none is left, all of the spec.
//   - There is no list, though all servers were ready before, so the list was lost: the servers that exist.
//   - There is no list, and not all servers have been ready yet: none.
func (v View) nextNodes(current contract.List) []string {
	var nodes []string
	for _, address := range status.ListAddresses(v.Memcached, v.Service) {
		nodes = append(nodes, address.Node())
	}
	size, hasProxy := int(names.Size(v.Memcached)), v.Memcached.Spec.Proxy != nil
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
	case current.Version != 0 && slices.ContainsFunc(nodes, isListed):
		return slices.DeleteFunc(nodes, func(node string) bool { return !isListed(node) })
	case current.Version != 0:
		return nodes
	case status.Installed(v.Memcached):
		return nodes[:min(size, int(Replicas(v.Workload)))]
	}
	return nil
}

// nameOf returns the name of the server, or of the proxy, that a node is.
func nameOf(node string) string {
	name, _, _ := strings.Cut(node, ".")
	return name
}

// List is the list of servers that clients discover now.
func (v View) List() contract.List {
	if v.Discovery == nil {
		return contract.List{}
	}
	return contract.ParseList(v.Discovery.Data[contract.ListFile])
}

// Publication returns the newest list that this process has published, after an apply of the next list. A list that was
// not written is not published.
func (v View) Publication(next contract.List) Publication {
	if v.List().Version != next.Version || next.Version == v.Published.Version || v.Memcached.Spec.Paused {
		return v.Published
	}
	return Publication{next.Version, v.Now}
}

// UntilRemoval returns how long servers beyond the size still serve clients that use an older list; 0 if there are none.
// A process that has just started does not know since when the list is published.
func (v View) UntilRemoval() time.Duration {
	switch {
	case v.Memcached.Spec.Discovery == nil, Replicas(v.Workload) <= names.Size(v.Memcached):
		return 0
	case v.Published.Version == 0:
		return status.RemovalDelay(v.Memcached)
	}
	return max(v.Published.At.Add(status.RemovalDelay(v.Memcached)).Sub(v.Now), 0)
}

// publish makes kubelets give a new list to the agents at once, and looks again when servers may be removed.
func (s *Step) publish(v View) {
	version := v.List().Version
	if v.Memcached.Spec.Discovery == nil || version == 0 {
		return
	}
	for _, pod := range v.Servers {
		value := strconv.FormatInt(version, 10)
		if pod.Annotations[v1alpha1.DiscoveryAnnotation] != value && pod.DeletionTimestamp.IsZero() {
			s.Annotate = append(s.Annotate, Annotation{pod, v1alpha1.DiscoveryAnnotation, value})
		}
	}
	s.Wait = Soonest(s.Wait, v.UntilRemoval())
}
