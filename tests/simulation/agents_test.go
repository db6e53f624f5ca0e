package simulation

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/example/memcached-operator/agent"
	"github.com/example/memcached-operator/agent/mover"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

// agents answer the operator. They do not notice that it crashes.
type agents struct {
	world *world

	mu      sync.Mutex
	asked   map[string]int  // how often an agent was asked about the same thing
	stopped map[string]bool // the addresses of servers that may stop
	// loaded are the servers that each proxy uses, by the UID of its pod.
	loaded map[types.UID]mover.Servers
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
func (a *agents) ask(_ context.Context, address string) (r agent.Report, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	host, _, err := net.SplitHostPort(address)
	pod := a.pod(host)
	if isSilent := a.note(); err != nil || pod == nil || isSilent {
		return r, errNoAnswer
	}
	if pod.Labels[names.LabelComponent] == string(names.Proxies) {
		return a.reportProxy(pod)
	}
	return a.reportServer(pod)
}

// reportProxy answers for a proxy: at first, it uses no list of servers.
func (a *agents) reportProxy(pod *corev1.Pod) (r agent.Report, err error) {
	for _, obj := range a.world.now()["ConfigMap"] {
		config := obj.(*corev1.ConfigMap)
		if config.Name != names.Proxy(&v1alpha1.Memcached{ObjectMeta: a.world.object(a.world.key.Name)}) {
			continue
		}
		servers := mover.Parse(config.Data)
		list := servers.List()
		n := a.again(pod, list+servers.Mover)
		if n > 1 {
			r.List, a.loaded[pod.UID] = list, servers
		}
		if servers.Mover == pod.Name && servers.Phase != mover.NoChange {
			r.Percent = 50
			if n > 2 {
				r.Done, r.Percent = list, 100
			}
		}
	}
	return r, nil
}

// reportServer answers for a server. A new one is cold at first.
func (a *agents) reportServer(pod *corev1.Pod) (r agent.Report, err error) {
	r.Items = int64(min(a.again(pod, "items")*400, 1000))
	r.Memory = status.ReadMemory(&pod.Spec).Items << 20
	if value := pod.Annotations[v1alpha1.MemoryAnnotation]; value != "" {
		items, _ := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
		if a.again(pod, "memory "+value) > 1 {
			r.Applied, r.Memory = value, items<<20
		}
	}
	if value := pod.Annotations[v1alpha1.FlushAnnotation]; value != "" && a.again(pod, "flush "+value) > 1 {
		r.Flushed = value
	}
	return r, nil
}

// stop lets a server stop.
func (a *agents) stop(_ context.Context, address, _ string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.note() {
		return errNoAnswer
	}
	host, _, err := net.SplitHostPort(address)
	a.stopped[host] = true
	if server := a.pod(host); server != nil {
		a.checkUnused(server.Name)
	}
	return err
}

// checkUnused fails if a proxy uses a server that the operator stops, unless all items are dropped, or not all servers
// were ready yet since the Memcached was created.
func (a *agents) checkUnused(server string) {
	s := a.world.now()
	if mc := s.memcached(); mc == nil || mc.DeletionTimestamp != nil || mc.Spec.Proxy == nil ||
		!status.Installed(mc) || mc.Annotations[v1alpha1.FlushedAtAnnotation] != "" {
		return
	}
	for _, pod := range s["Pod"] {
		uses := a.loaded[pod.GetUID()]
		if slices.ContainsFunc(slices.Concat(uses.Before, uses.After),
			func(s mover.Server) bool { return s.Name == server }) {
			a.world.Errorf("the operator stops server %s, which proxy %s uses", server, pod.GetName())
		}
	}
}
