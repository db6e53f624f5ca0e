package steps

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

// confirmation is what a proxy has reported about the newest configuration. An annotation of its pod stores it, after
// the digest of that configuration.
type confirmation string

// Confirmations.
const (
	// notReported: the proxy has not reported yet.
	notReported confirmation = ""
	// hasLoaded: all threads of the proxy use the list of servers.
	hasLoaded confirmation = "loaded"
	// hasMoved: and the proxy's agent has deleted or moved all items.
	hasMoved confirmation = "moved"
)

// Routing says which servers the proxies use. An annotation of the StatefulSet records the list for the proxies, their
// ConfigMap follows from it, and an annotation of each proxy's pod has what the proxy has confirmed, so that any
// operator process can go on.
type Routing struct {
	// List is the recorded list, and Stored the one in the ConfigMap of the proxies, which follows.
	List, Stored contract.Servers
	// Moves says that the items of a server move before it is replaced.
	Moves bool

	proxies []*corev1.Pod // that run, or are about to
	digest  string        // of their newest configuration; empty while their ConfigMap has another list than List
}

// newRouting returns which servers the proxies use. While their ConfigMap has another list than the recorded one, they
// have confirmed nothing.
func newRouting(v View) (r Routing) {
	if v.Memcached.Spec.Proxy == nil {
		return r
	}
	if v.ProxyConfig != nil {
		r.Stored, r.digest = contract.ParseServers(v.ProxyConfig.Data), desired.Digest(v.ProxyConfig.Data)
	}
	r.List = desired.ReadProxyServers(v.annotations(), r.Stored)
	r.List.Before = v.addressed(desired.Ordinals(v.Memcached, r.List.Before))
	r.List.After = v.addressed(desired.Ordinals(v.Memcached, r.List.After))
	stored := r.Stored
	if r.List.Program, stored.Program = "", ""; !r.List.Equal(stored) {
		r.digest = ""
	}
	r.proxies = filter(v.Proxies, mayRun)
	_, free := v.Service(names.Server(v.Memcached, names.Size(v.Memcached))) // of the spare server
	r.Moves = free && desired.MovesWhenReplaced(v.Memcached) && v.canMove()
	return r
}

// noAddress is that of a server without a Service: nothing listens there.
const noAddress = "127.0.0.1:1"

// addressed returns servers with the addresses of their Services. It omits those that cannot be ours, and repeated
// ones: somebody else may have changed the list.
func (v View) addressed(ordinals []int) (list []contract.Server) {
	spare := int(max(Replicas(v.Workload), names.Size(v.Memcached)))
	for i, n := range ordinals {
		if n >= 0 && n <= spare && !slices.Contains(ordinals[:i], n) {
			list = append(list, contract.Server{Name: names.Server(v.Memcached, int32(n)),
				Address: cmp.Or(status.ServerAddress(v.Memcached, int32(n), v.Service), noAddress)})
		}
	}
	return list
}

// annotation returns the value of the annotation that stores a confirmation.
func (r Routing) annotation(c confirmation) string {
	return strings.TrimSpace(r.digest + " " + string(c))
}

// confirmation returns what a proxy has confirmed; ok says that its annotation has the newest digest.
func (r Routing) confirmation(pod *corev1.Pod) (c confirmation, ok bool) {
	digest, text, _ := strings.Cut(pod.Annotations[v1alpha1.ProxyConfigAnnotation], " ")
	if c = confirmation(text); digest != r.digest || c != hasLoaded && c != hasMoved {
		c = notReported
	}
	return c, digest == r.digest
}

// toAnnotate returns the proxies whose annotation does not have the newest digest: the kubelet refreshes their files
// once it has.
func (r Routing) toAnnotate() []*corev1.Pod {
	return filter(r.proxies, func(pod *corev1.Pod) bool {
		_, ok := r.confirmation(pod)
		return !ok && pod.DeletionTimestamp.IsZero()
	})
}

// unconfirmed returns the ready proxies that have yet to confirm what the servers wait for.
func (r Routing) unconfirmed() []*corev1.Pod {
	return filter(r.proxies, func(pod *corev1.Pod) bool {
		c, ok := r.confirmation(pod)
		confirmed := c == hasMoved || c == hasLoaded && r.List.Mover != pod.Name
		return ok && !confirmed && r.digest != "" && isReady(pod)
	})
}

// NotLoaded returns the name of a proxy that may still use an older list of servers; empty for none. A proxy that is
// being deleted may, until its pod is gone.
func (r Routing) NotLoaded() string {
	for _, pod := range r.proxies {
		if c, _ := r.confirmation(pod); c == notReported {
			return pod.Name
		}
	}
	return ""
}

// isBusy reports whether the servers change, or a proxy may still use an older list of servers.
func (r Routing) isBusy() bool { return r.List.Phase != contract.NoChange || r.NotLoaded() != "" }

// mayUse reports whether a proxy may use a server.
func (r Routing) mayUse(pod *corev1.Pod) bool {
	isServer := func(server contract.Server) bool { return server.Name == pod.Name }
	return len(r.List.After) == 0 || r.NotLoaded() != "" ||
		slices.ContainsFunc(r.List.Before, isServer) || slices.ContainsFunc(r.List.After, isServer)
}

// confirm asks proxies for what they have yet to confirm, and records it. It says how far a change of the servers is.
func (s *Step) confirm(v View) {
	hash := v.Routing.Stored.Hash()
	for _, pod := range v.Routing.unconfirmed() {
		r, ok := s.needs(v, "proxy", pod)
		if !ok {
			continue
		}
		s.Wait = Soonest(s.Wait, Soon)
		confirmed := hasLoaded
		if r.MovedHash == hash {
			confirmed = hasMoved
		}
		if pod.Name == v.Routing.Stored.Mover {
			work := "moving items"
			if v.Routing.Stored.Phase == contract.Purge {
				work = "deleting items of earlier changes"
			}
			s.Progress.Percent = min(max(r.Percent, 0), 100)
			work = fmt.Sprintf("%s, %d %%: %s", work, s.Progress.Percent, r.Problem)
			s.Progress.Text = cmp.Or(s.Progress.Text, strings.TrimSuffix(work, ": "))
		}
		switch value := v.Routing.annotation(confirmed); {
		case r.ListHash != hash:
			s.refresh(v, pod)
		case pod.Annotations[v1alpha1.ProxyConfigAnnotation] != value:
			s.annotate(pod, v1alpha1.ProxyConfigAnnotation, value)
		}
	}
}
