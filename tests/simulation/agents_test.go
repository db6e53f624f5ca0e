package simulation

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

// agents answer the operator. They do not notice that it crashes.
type agents struct {
	world *world

	mu      sync.Mutex
	asked   map[string]int  // how often an agent was asked about the same thing
	stopped map[string]bool // the addresses of servers that may stop
	// loaded are the servers that each proxy uses, by the UID of its pod.
	loaded map[types.UID]proxyList
	// silentFrom is the first of some reconciles in which no agent answers; 0 for none.
	silentFrom int
	wereSilent bool         // an agent has not answered
	askedIn    map[int]bool // the reconciles in which the operator asked agents
}

// silent reports whether no agent answers.
func (a *agents) silent() bool {
	return a.world.isWithin(a.silentFrom)
}

// note notes that the operator asks an agent. It reports whether the agent is silent.
func (a *agents) note() bool {
	a.askedIn[a.world.reconciles] = true
	a.wereSilent = a.wereSilent || a.silent()
	return a.silent()
}

var errNoAnswer = errors.New("no answer (by the test)")

// pod returns the pod with an address, as the last round left it; nil for none.
func (a *agents) pod(host string) *corev1.Pod {
	for _, obj := range a.world.now()["Pod"] {
		if pod := obj.(*corev1.Pod); pod.Status.PodIP == host {
			return pod
		}
	}
	return nil
}

// again counts how often this was called for a pod and a value.
func (a *agents) again(pod *corev1.Pod, value string) int {
	key := string(pod.UID) + " " + value
	a.asked[key]++
	return a.asked[key]
}

// ask is the operator's request for a report. Whatever an agent is told, it has done when it is asked the second time.
func (a *agents) ask(_ context.Context, address string) (r contract.Report, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	host, _, err := net.SplitHostPort(address)
	pod := a.pod(host)
	if isSilent := a.note(); err != nil || pod == nil || isSilent {
		return r, errNoAnswer
	}
	if pod.Labels[componentLabel] == proxyComponent {
		return a.reportProxy(pod)
	}
	return a.reportServer(pod)
}

// reportProxy answers for a proxy: at first, it uses no list of servers.
func (a *agents) reportProxy(pod *corev1.Pod) (r contract.Report, err error) {
	for _, obj := range a.world.now()["ConfigMap"] {
		config := obj.(*corev1.ConfigMap)
		if config.Name != a.world.key.Name+"-proxy" {
			continue
		}
		servers := readProxyList(config.Data)
		n := a.again(pod, servers.digest+servers.mover)
		if n > 1 {
			r.ListHash, a.loaded[pod.UID] = servers.digest, servers
		}
		if servers.mover == pod.Name && servers.phase != "" {
			r.Percent = 50
			if n > 2 {
				r.MovedHash, r.Percent = servers.digest, 100
			}
		}
	}
	return r, nil
}

// reportServer answers for a server. A new one is cold at first.
func (a *agents) reportServer(pod *corev1.Pod) (r contract.Report, err error) {
	r.Items = int64(min(a.again(pod, "items")*400, 1000))
	r.Memory = startMemory(pod) << 20
	if value := pod.Annotations[v1alpha1.MemoryAnnotation]; value != "" && a.again(pod, "memory "+value) > 1 {
		r.Applied, r.Memory = value, itemMemory(pod)<<20
	}
	if value := pod.Annotations[v1alpha1.FlushAnnotation]; value != "" && a.again(pod, "flush "+value) > 1 {
		r.Flushed = value
	}
	return r, nil
}

// stop lets a server stop, for those who know the token with which the kubelet asks its agent.
func (a *agents) stop(_ context.Context, address, token string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.note() {
		return errNoAnswer
	}
	host, _, err := net.SplitHostPort(address)
	server := a.pod(host)
	if server == nil || err != nil {
		return errors.Join(errNoAnswer, err)
	}
	if token == "" || path.Base(drainPath(server)) != token {
		return errors.New("a wrong token (by the test)")
	}
	a.stopped[host] = true
	a.checkUnused(server)
	return nil
}

// checkUnused fails if a proxy uses a pod that stops, unless all items are dropped, or not all servers were ready yet
// since the Memcached was created.
func (a *agents) checkUnused(server *corev1.Pod) {
	s := a.world.now()
	if mc := s.memcached(); mc == nil || mc.DeletionTimestamp != nil || mc.Spec.Proxy == nil ||
		!a.world.wasReady(mc) || mc.Annotations[v1alpha1.FlushedAtAnnotation] != "" {
		return
	}
	for _, pod := range s["Pod"] {
		if uses := a.loaded[pod.GetUID()]; slices.Contains(slices.Concat(uses.before, uses.after), server.Name) {
			a.world.Errorf("server %s stops, which proxy %s uses", server.Name, pod.GetName())
		}
	}
}
