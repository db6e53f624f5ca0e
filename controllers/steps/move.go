package steps

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

// Move is the next list of servers for the proxies.
type Move struct {
	// List is the list to record, from which the configuration of the proxies follows.
	List contract.Servers
	// MinServers is the number of servers that must run, even if the spec asks for fewer.
	MinServers int32
}

// IsDone reports whether the workload has the list and the number of replicas of this move.
func (m Move) IsDone(v View) bool {
	return m.List.Equal(v.Routing.List) && Replicas(v.Workload) == max(m.MinServers, names.Size(v.Memcached))
}

// NextMove returns the next list of servers for the proxies. While items move, proxies are never more than one phase
// apart: each phase begins once all have loaded the list before. A change that proxies know of is finished before the
// next begins.
//
//	now           once                                         then
//	no change     items cannot move, or there are none         no change, with the wanted servers
//	              other servers are wanted, all have loaded    purge: the mover deletes what is on a wrong server
//	purge         the mover has done that, all have loaded     prefer before: proxies know of both lists
//	              another size is wanted                       no change, with the servers before
//	prefer before all have loaded                              prefer after, without a mover yet
//	prefer after  all have loaded, there is no mover           the same, with a mover, which moves the items
//	prefer after  the mover has done that, all have loaded     no change, with the servers after
//	any change    it stalled, and whenMoveStalls is Proceed    no change, with the servers after
//
// Items must not move past a flush, and a flush must not drop what proxies note on servers while items move: no change
// begins while there are servers to flush.
func NextMove(v View) (m Move) {
	mc, current := v.Memcached, v.Routing.List
	if mc.Spec.Proxy == nil {
		return m
	}
	servers := v.serverSet(desired.Ordinals(mc, slices.Concat(current.Before, current.After)))
	ordinals, warm := servers.wanted(desired.Ordinals(mc, current.After), v.canMove())
	wanted := v.addressed(ordinals)
	m.List = v.Routing.next(wanted, servers.size, warm)
	switch {
	case current.Phase != contract.NoChange && mc.Spec.Proxy.WhenMoveStalls == v1alpha1.WhenMoveStallsProceed &&
		status.IsStalled(mc):
		m.List = contract.Servers{After: current.After}
	case current.Phase == contract.NoChange && m.List.Phase != contract.NoChange && v.Flush().Value != "":
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
	s := r.List
	mover := slices.IndexFunc(r.proxies, func(pod *corev1.Pod) bool { return pod.Name == s.Mover })
	hasDone := func() bool {
		c, _ := r.confirmation(r.proxies[mover])
		return c == hasMoved
	}
	switch {
	case s.Phase == contract.NoChange && (!warm || slices.Equal(s.After, wanted)):
		return contract.Servers{After: wanted}
	case s.Phase == contract.Purge && len(s.After) != size:
		return contract.Servers{After: s.Before}
	case r.NotLoaded() != "":
	case s.Phase == contract.NoChange && (len(s.After) == 0 || len(wanted) == 0):
		return contract.Servers{After: wanted}
	case s.Phase == contract.NoChange:
		return contract.Servers{Phase: contract.Purge, Before: s.After, After: wanted, Mover: r.mover()}
	case s.Phase == contract.PreferBefore:
		s.Phase = contract.PreferAfter
	case mover < 0:
		s.Mover = r.mover()
	case hasDone() && s.Phase == contract.Purge:
		return contract.Servers{Phase: contract.PreferBefore, Before: s.Before, After: s.After}
	case hasDone():
		return contract.Servers{After: s.After}
	}
	return s
}

// mover returns the name of a ready proxy; empty for none.
func (r Routing) mover() string {
	if i := slices.IndexFunc(r.proxies, isReady); i >= 0 {
		return r.proxies[i].Name
	}
	return ""
}

// canMove reports whether items can move: a server of an older template may be unable to, or one of the next template.
func (v View) canMove() bool {
	cannot := func(c corev1.Container) bool { return !desired.CanMove(c.Args) }
	return status.Installed(v.Memcached) && desired.CanMove(v.Memcached.Spec.ExtraArgs) &&
		!slices.ContainsFunc(v.Servers, func(p *corev1.Pod) bool { return slices.ContainsFunc(p.Spec.Containers, cannot) })
}

// serverSet are the servers of a StatefulSet, by their ordinals.
type serverSet struct {
	// size is the number of servers that the spec asks for.
	size int
	// ready are the servers that are ready, and outdated those whose items must be moved before they are replaced or
	// stop.
	ready, outdated map[int]bool
	// serving are the servers that are not down: they may hold items, even if they are not ready.
	serving map[int]bool
}

// serverSet returns the servers. Of those that terminate, the ones that proxies currently use can serve until their
// items have moved.
func (v View) serverSet(current []int) serverSet {
	o := serverSet{size: int(names.Size(v.Memcached)), ready: map[int]bool{}, outdated: map[int]bool{},
		serving: map[int]bool{}}
	set, ok := v.Workload.(*appsv1.StatefulSet)
	hasAddress := func(n int) bool { return status.ServerAddress(v.Memcached, int32(n), v.Service) != "" }
	for _, pod := range v.Servers {
		n, draining := names.Ordinal(v.Memcached.Name, pod.Name), isDraining(pod)
		serves := pod.DeletionTimestamp.IsZero() && !draining || draining && slices.Contains(current, n)
		// The control plane marks a server as not ready while its node shuts down.
		o.ready[n] = serves && (kubeletWaits(pod) || status.IsTrue(pod, corev1.PodReady)) && hasAddress(n)
		o.serving[n] = !isDown(pod)
		o.outdated[n] = ok && v.Routing.Moves && o.serving[n] && metav1.IsControlledBy(pod, set) &&
			(draining || isOutdated(set, pod))
	}
	// If no server has an item, misses are better than another distribution soon.
	for n := 0; n < o.size && len(current) == 0 && status.Installed(v.Memcached); n++ {
		o.ready[n] = hasAddress(n)
	}
	return o
}

// wanted returns the ordinals of the servers that proxies should use next, in order, and whether items move there from
// the current ones. Nothing can be moved from a server that is down. From any other, the mover tries until it can.
func (o serverSet) wanted(current []int, canMove bool) (list []int, warm bool) {
	if !canMove {
		return o.wantedCold(current), false
	}
	list = o.wantedWarm(current)
	if last := len(current) - 1; len(list) <= last && !o.serving[current[last]] {
		list = current[:last] // this one alone, so that the items of others move
	}
	removed := slices.DeleteFunc(slices.Clone(current), func(n int) bool { return slices.Contains(list, n) })
	return list, len(removed) == 0 || slices.ContainsFunc(removed, func(n int) bool { return o.serving[n] })
}

// wantedCold returns the next servers where items do not move: servers are removed, and added once they are ready and
// all with a lower ordinal are in use.
func (o serverSet) wantedCold(current []int) []int {
	list := slices.DeleteFunc(slices.Clone(current), func(ordinal int) bool { return ordinal >= o.size })
	for ordinal := range o.size {
		inUse := slices.Contains(list, ordinal)
		if !inUse && !o.ready[ordinal] {
			break
		}
		if !inUse {
			list = append(list, ordinal)
		}
	}
	return list
}

// wantedWarm returns the next servers, to which items move from the current ones in one change: servers are removed
// from the end, or added to the end once all are ready, or one is replaced by another, at the same position. A server
// that is outdated, or beyond the size, is replaced by one that is not in use; minServers says that there is a spare
// one.
func (o serverSet) wantedWarm(current []int) []int {
	list := slices.Clone(current)
	unused := func(ordinal int) bool { return o.ready[ordinal] && !slices.Contains(list, ordinal) }
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
