package simulator

import (
	"context"
	"errors"
	"net"
	"path"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
)

// Agents answer the operator. They do not notice that it crashes.
type Agents struct {
	*Cluster
	// Silent reports whether no agent answers. It is called for each request.
	Silent func() bool
	// WasReady reports whether all servers of a Memcached were ready at some time.
	WasReady func(*v1alpha1.Memcached) bool
	// Change changes what an agent reports; nil for nothing.
	Change func(*corev1.Pod, *contract.Report)
	// Stopped are the addresses of servers that may stop.
	Stopped map[string]bool

	mu     sync.Mutex
	asked  map[string]int          // how often an agent was asked about the same thing
	loaded map[types.UID]ProxyList // the servers that each proxy uses, by the UID of its pod
}

var errNoAnswer = errors.New("no answer (by the test)")

// pod returns the pod with an address, as the last round left it; nil for none.
func (a *Agents) pod(address string) (host string, pod *corev1.Pod) {
	host, _, _ = net.SplitHostPort(address)
	for _, obj := range a.Now()["Pod"] {
		if pod := obj.(*corev1.Pod); pod.Status.PodIP == host {
			return host, pod
		}
	}
	return host, nil
}

// again counts how often this was called for a pod and a value.
func (a *Agents) again(pod *corev1.Pod, value string) int {
	key := string(pod.UID) + " " + value
	a.asked[key]++
	return a.asked[key]
}

// Ask is the operator's request for a report. Whatever an agent is told, it has done when it is asked the second time.
func (a *Agents) Ask(_ context.Context, address string) (r contract.Report, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, pod := a.pod(address)
	if isSilent := a.Silent(); pod == nil || isSilent {
		return r, errNoAnswer
	}
	if pod.Labels[ComponentLabel] == ProxyComponent {
		r = a.reportProxy(pod)
	} else {
		r = a.reportServer(pod)
	}
	if a.Change != nil {
		a.Change(pod, &r)
	}
	return r, nil
}

// reportProxy answers for a proxy: at first, it uses no list of servers.
func (a *Agents) reportProxy(pod *corev1.Pod) (r contract.Report) {
	servers := a.Now().Proxies()
	n := a.again(pod, servers.Hash+servers.Mover)
	if n > 1 {
		r.ListHash, a.loaded[pod.UID] = servers.Hash, servers
	}
	if servers.Mover == pod.Name && servers.Phase != "" {
		r.Percent = 50
		if n > 2 {
			r.MovedHash, r.Percent = servers.Hash, 100
		}
	}
	return r
}

// reportServer answers for a server. A new one is cold at first.
func (a *Agents) reportServer(pod *corev1.Pod) (r contract.Report) {
	r.Items = int64(min(a.again(pod, "items")*400, 1000))
	r.Memory = startMemory(pod) << 20
	if value := pod.Annotations[v1alpha1.MemoryAnnotation]; value != "" && a.again(pod, "memory "+value) > 1 {
		r.Applied, r.Memory = value, ItemMemory(pod)<<20
	}
	if value := pod.Annotations[v1alpha1.FlushAnnotation]; value != "" && a.again(pod, "flush "+value) > 1 {
		r.Flushed = value
	}
	return r
}

// Stop lets a server stop, for those who know the token with which the kubelet asks its agent.
func (a *Agents) Stop(_ context.Context, address, token string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	host, server := a.pod(address)
	if isSilent := a.Silent(); server == nil || isSilent {
		return errNoAnswer
	}
	if token == "" || path.Base(drainPath(server)) != token {
		return errors.New("a wrong token (by the test)")
	}
	a.Stopped[host] = true
	a.checkUnused(server)
	return nil
}

// checkUnused fails if a proxy uses a pod that stops, unless all items are dropped, or not all servers were ready yet
// since the Memcached was created.
func (a *Agents) checkUnused(server *corev1.Pod) {
	s := a.Now()
	if mc := s.Memcached(); mc == nil || mc.DeletionTimestamp != nil || mc.Spec.Proxy == nil ||
		!a.WasReady(mc) || mc.Annotations[v1alpha1.FlushedAtAnnotation] != "" {
		return
	}
	for _, pod := range s["Pod"] {
		if uses := a.loaded[pod.GetUID()]; slices.Contains(slices.Concat(uses.Before, uses.After), server.Name) {
			a.Errorf("server %s stops, which proxy %s uses", server.Name, pod.GetName())
		}
	}
}
