package steps

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
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

// Routing says which servers the proxies use. An annotation of the StatefulSet has the list that the proxies are told,
// their ConfigMap follows from it, and an annotation of each proxy's pod has what the proxy has confirmed, so that any
// operator process can go on.
type Routing struct {
	// List are the servers that the proxies are told, and Stored those in their ConfigMap, which follows.
	List, Stored contract.Servers
	// Moves says that the items of a server move before it is replaced.
	Moves bool

	proxies []corev1.Pod // that run, or are about to
	digest  string       // of their newest configuration; empty while their ConfigMap has another list than List
}

// newRouting returns which servers the proxies use. While their ConfigMap has another list than they are told, they
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
	r.proxies = running(v.Proxies)
	_, free := v.Service(names.Server(v.Memcached, names.Size(v.Memcached))) // of the spare server
	r.Moves = free && desired.MovesWhenReplaced(v.Memcached) && v.canMove()
	return r
}

// running returns the pods that run, or are about to.
func running(pods []corev1.Pod) []corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(pod corev1.Pod) bool { return !mayRun(&pod) })
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
func (r Routing) toAnnotate() (list []*corev1.Pod) {
	for i := range r.proxies {
		if _, ok := r.confirmation(&r.proxies[i]); !ok && r.proxies[i].DeletionTimestamp.IsZero() {
			list = append(list, &r.proxies[i])
		}
	}
	return list
}

// unconfirmed returns the ready proxies that have yet to confirm what the servers wait for.
func (r Routing) unconfirmed() (list []*corev1.Pod) {
	for i := range r.proxies {
		pod := &r.proxies[i]
		c, ok := r.confirmation(pod)
		confirmed := c == hasMoved || c == hasLoaded && r.List.Mover != pod.Name
		if ok && !confirmed && r.digest != "" && isReady(pod) {
			list = append(list, pod)
		}
	}
	return list
}

// isReady reports whether a pod is ready and not about to stop.
func isReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp.IsZero() && status.IsTrue(pod, corev1.PodReady)
}

// NotLoaded returns the name of a proxy that may still use an older list of servers; empty for none. A proxy that is
// being deleted may, until its pod is gone.
func (r Routing) NotLoaded() string {
	for i := range r.proxies {
		if c, _ := r.confirmation(&r.proxies[i]); c == notReported {
			return r.proxies[i].Name
		}
	}
	return ""
}

// isBusy reports whether the servers change, or a proxy may still use an older list of servers.
func (r Routing) isBusy() bool { return r.List.Phase != contract.NoChange || r.NotLoaded() != "" }

// inUse returns a function that reports whether a proxy may use a server.
func (r Routing) inUse() func(name string) bool {
	unknown, list := len(r.List.After) == 0 || r.NotLoaded() != "", slices.Concat(r.List.Before, r.List.After)
	return func(name string) bool {
		return unknown || slices.ContainsFunc(list, func(server contract.Server) bool { return server.Name == name })
	}
}

// mover returns the name of a ready proxy; empty for none.
func (r Routing) mover() (name string) {
	for i := range r.proxies {
		if pod := &r.proxies[i]; isReady(pod) && (name == "" || pod.Name < name) {
			name = pod.Name
		}
	}
	return name
}

// confirm asks proxies for what they have yet to confirm, and records it. It says how far a change of the servers is.
func (s *Step) confirm(v View) {
	hash := v.Routing.Stored.Hash()
	for _, pod := range v.Routing.unconfirmed() {
		r, ok := s.ask(v, pod)
		switch {
		case !ok:
			continue
		case r.Err != nil:
			s.Wait = Soonest(s.Wait, Later)
			s.Progress.Text = fmt.Sprintf("proxy %s does not answer the operator on port %d", pod.Name,
				names.ReportPort(v.Memcached))
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

// Move is the next step of the servers that the proxies use.
type Move struct {
	// List are the servers that the proxies are told.
	List contract.Servers
	// MinServers is the number of servers that must run, even if the spec asks for fewer.
	MinServers int32
}

// IsDone reports whether the proxies were told this step, and the servers run that it needs.
func (m Move) IsDone(v View) bool {
	return m.List.Equal(v.Routing.List) && Replicas(v.Workload) == max(m.MinServers, names.Size(v.Memcached))
}

// NextMove returns the next step of the servers that the proxies use. Proxies are never more than one step apart: each
// step waits until all have confirmed the one before. A change that proxies know of is finished before the next begins.
//
//	now           once                                         then
//	no change     items cannot move, or there are none         no change, with the wanted servers
//	              other servers are wanted, all have loaded    purge: the mover deletes what is on a wrong server
//	purge         the mover has done that, all have loaded     prefer before: proxies know of both lists
//	              another size is wanted                       no change, with the servers before
//	prefer before all have loaded                              prefer after: the mover moves the items
//	prefer after  the mover has done that, all have loaded     no change, with the servers after
//	any           it stalled, and whenMoveStalls is Proceed    no change, with the servers after
func NextMove(v View) (m Move) {
	mc, current := v.Memcached, v.Routing.List
	if mc.Spec.Proxy == nil {
		return m
	}
	servers := v.serverSet(desired.Ordinals(mc, slices.Concat(current.Before, current.After)))
	wanted, warm := v.wantedServers(servers, current.After)
	m.List = v.Routing.next(wanted, servers.size, warm)
	switch f := v.Flush(); {
	case current.Phase != contract.NoChange && mc.Spec.Proxy.WhenMoveStalls == v1alpha1.WhenMoveStallsProceed &&
		status.IsStalled(mc):
		m.List = contract.Servers{After: current.After}
	// Items must not move past a flush, and a flush must not drop what proxies note on servers while items move.
	case current.Phase == contract.NoChange && m.List.Phase != contract.NoChange && f.Pending && f.Cannot == "":
		m.List = current
	}
	if status.Installed(mc) && !mc.Spec.Paused {
		m.MinServers = int32(servers.minServers(desired.Ordinals(mc, slices.Concat(m.List.Before, m.List.After))))
		if !m.List.Equal(contract.Servers{After: wanted}) || !m.List.Equal(current) || v.Routing.NotLoaded() != "" {
			m.MinServers = max(m.MinServers, Replicas(v.Workload))
		}
	}
	return m
}

// next returns the next list; wanted are the servers to reach, as serverSet.wanted says, and size is the number of
// servers that the spec asks for. Unless warm is set, items are not moved.
func (r Routing) next(wanted []contract.Server, size int, warm bool) contract.Servers {
	s, allLoaded, moverExists, moved := r.List, r.NotLoaded() == "", false, false
	for i := range r.proxies {
		if pod := &r.proxies[i]; pod.Name == s.Mover {
			c, _ := r.confirmation(pod)
			moverExists, moved = true, c == hasMoved
		}
	}
	switch s.Phase {
	case contract.Purge, contract.PreferAfter:
		switch {
		case s.Phase == contract.Purge && len(s.After) != size:
			return contract.Servers{After: s.Before}
		case !allLoaded:
		case s.Phase == contract.Purge && moved:
			return contract.Servers{Phase: contract.PreferBefore, Before: s.Before, After: s.After}
		case moved:
			return contract.Servers{After: s.After}
		case !moverExists:
			s.Mover = r.mover()
		}
	case contract.PreferBefore:
		if allLoaded {
			s.Phase = contract.PreferAfter
		}
	default:
		switch {
		case !warm || slices.Equal(s.After, wanted):
			return contract.Servers{After: wanted}
		case !allLoaded:
		case len(s.After) == 0 || len(wanted) == 0:
			return contract.Servers{After: wanted}
		default:
			return contract.Servers{Phase: contract.Purge, Before: s.After, After: wanted, Mover: r.mover()}
		}
	}
	return s
}

// wantedServers returns the servers to reach next, and whether items can move there.
func (v View) wantedServers(servers serverSet, current []contract.Server) (list []contract.Server, warm bool) {
	using := desired.Ordinals(v.Memcached, current)
	// If no server has an item, misses are better than another distribution soon.
	if status.Installed(v.Memcached) && len(using) == 0 {
		for i := range servers.size {
			servers.ready[i] = status.ServerAddress(v.Memcached, int32(i), v.Service) != ""
		}
	}
	warm = v.canMove()
	wanted := servers.wanted(using, warm)
	if last := len(using) - 1; warm && len(wanted) <= last && !servers.serving[using[last]] {
		wanted = using[:last] // this one alone, so that the items of others move
	}
	removed := slices.DeleteFunc(slices.Clone(using), func(n int) bool { return slices.Contains(wanted, n) })
	// Nothing can be moved from a server that is down. From any other, the mover tries until it can.
	warm = warm && (len(removed) == 0 || slices.ContainsFunc(removed, func(n int) bool { return servers.serving[n] }))
	return v.addressed(wanted), warm
}

// serverSet returns the servers. Of those that terminate, the ones that proxies currently use can serve until their
// items have moved.
func (v View) serverSet(current []int) (servers serverSet) {
	servers = serverSet{size: int(names.Size(v.Memcached)), ready: map[int]bool{}, serving: map[int]bool{}}
	if set, ok := v.Workload.(*appsv1.StatefulSet); ok && v.Routing.Moves {
		servers.outdated = mustBeEmptied(set, v.Servers)
	}
	for i := range v.Servers {
		pod := &v.Servers[i]
		n := names.Ordinal(v.Memcached.Name, pod.Name)
		draining, waits := isDraining(pod), kubeletWaits(pod)
		serves := pod.DeletionTimestamp.IsZero() && !draining || draining && slices.Contains(current, n)
		// The control plane marks a server as not ready while its node shuts down.
		servers.ready[n] = serves && (waits || status.IsTrue(pod, corev1.PodReady)) &&
			status.ServerAddress(v.Memcached, int32(n), v.Service) != ""
		servers.serving[n] = !isDown(pod)
	}
	return servers
}

// canMove reports whether items can move: a server of an older template may be unable to, or one of the next template.
func (v View) canMove() bool {
	cannot := func(c corev1.Container) bool { return !desired.CanMove(c.Args) }
	return status.Installed(v.Memcached) && desired.CanMove(v.Memcached.Spec.ExtraArgs) &&
		!slices.ContainsFunc(v.Servers, func(p corev1.Pod) bool { return slices.ContainsFunc(p.Spec.Containers, cannot) })
}

// noAddress is that of a server without a Service: nothing listens there.
const noAddress = "127.0.0.1:1"

// addressed returns servers with the addresses of their Services. It omits those that cannot be ours, and repeated
// ones: somebody else may have changed the list.
func (v View) addressed(ordinals []int) (list []contract.Server) {
	most := int(max(Replicas(v.Workload), names.Size(v.Memcached)))
	for i, n := range ordinals {
		if n >= 0 && n <= most && !slices.Contains(ordinals[:i], n) {
			list = append(list, contract.Server{Name: names.Server(v.Memcached, int32(n)),
				Address: cmp.Or(status.ServerAddress(v.Memcached, int32(n), v.Service), noAddress)})
		}
	}
	return list
}

// serverSet are the servers of a StatefulSet, by their ordinals.
type serverSet struct {
	// size is the number of servers that the spec asks for.
	size int
	// ready are the servers that are ready, and outdated those whose items must be moved before they are replaced.
	ready, outdated map[int]bool
	// serving are the servers that are not down: they may hold items, even if they are not ready.
	serving map[int]bool
}

// wanted returns the ordinals of the servers that proxies should use next, in order. With warm, items move from the
// current servers to these, in one change: servers are removed from the end, or added to the end once all are ready, or
// one is replaced by another, at the same position. A server that is outdated, or beyond the size, is replaced by one
// that is not in use; minServers says that there is a spare one. Without warm, servers are removed, and added once they
// are ready and all with a lower ordinal are in use.
func (o serverSet) wanted(current []int, warm bool) []int {
	list := slices.Clone(current)
	unused := func(ordinal int) bool { return o.ready[ordinal] && !slices.Contains(list, ordinal) }
	if !warm {
		list = slices.DeleteFunc(list, func(ordinal int) bool { return ordinal >= o.size })
		for ordinal := 0; ordinal < o.size && (unused(ordinal) || slices.Contains(list, ordinal)); ordinal++ {
			if unused(ordinal) {
				list = append(list, ordinal)
			}
		}
		return list
	}
	if len(list) > o.size {
		return list[:o.size]
	}
	for ordinal := 0; ordinal < o.size && len(list) < o.size; ordinal++ {
		if unused(ordinal) {
			list = append(list, ordinal)
		}
	}
	if len(list) < o.size {
		return current // not all are ready
	}
	if len(list) > len(current) {
		return list
	}
	// Servers beyond the size last: they are the spare ones.
	for position, ordinal := range list {
		if ordinal < o.size && (!o.outdated[ordinal] || !o.ready[ordinal]) || ordinal >= o.size && o.hasOutdated(list) {
			continue
		}
		for other := range o.size + 1 {
			if unused(other) && !o.outdated[other] && (other < o.size || o.outdated[ordinal]) {
				list[position] = other
				return list
			}
		}
	}
	return list
}

// hasOutdated reports whether a server must be replaced. A spare one is removed instead, even if it is outdated itself.
func (o serverSet) hasOutdated(list []int) bool {
	return slices.ContainsFunc(list, func(ordinal int) bool { return ordinal < o.size && o.outdated[ordinal] })
}

// minServers returns the number of servers that must run for proxies that use these ones: one more than the size while
// one of them is outdated.
func (o serverSet) minServers(inUse []int) (n int) {
	if o.hasOutdated(inUse) {
		n = o.size + 1
	}
	for _, ordinal := range inUse {
		n = max(n, ordinal+1)
	}
	return n
}
