package controllers

import (
	"cmp"
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/agent/mover"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
	"github.com/example/memcached-operator/controllers/steps"
)

// The servers behind proxies change in steps. An annotation of the StatefulSet has the list that the proxies are told,
// their ConfigMap follows from it, and an annotation of each proxy's pod has what the proxy has reported, so that any
// operator process can go on.

// noAddress is that of a server without a Service: nothing listens there.
const noAddress = "127.0.0.1:1"

// routing returns which servers the proxies use. While their ConfigMap has another list than they are told, they have
// confirmed nothing.
func (o observation) routing() (r steps.Routing) {
	if o.mc.Spec.Proxy == nil {
		return r
	}
	digest := ""
	if config, ok := o.ownChild(proxyConfigKey(o.mc)).(*corev1.ConfigMap); ok {
		r.Stored, digest = mover.Parse(config.Data), desired.Digest(config.Data)
	}
	set, _ := o.workload().(*appsv1.StatefulSet)
	r.List = desired.ReadProxyServers(ptr.Deref(set, appsv1.StatefulSet{}).Annotations, r.Stored)
	r.List.Before = o.withAddresses(desired.Ordinals(o.mc, r.List.Before))
	r.List.After = o.withAddresses(desired.Ordinals(o.mc, r.List.After))
	stored := r.Stored
	if r.List.Program, stored.Program = "", ""; !r.List.Equal(stored) {
		digest = ""
	}
	r.Proxies = steps.NewProxies(o.proxies, digest)
	r.Moves = o.movesWhenReplaced()
	return r
}

// nextProxyServers returns the next step of the servers that the proxies use, and the number of servers that must run,
// even if the spec asks for fewer. What differs from the current ones follows from what the API server has.
func (o observation) nextProxyServers(ctx context.Context,
	v steps.View) (next mover.Servers, minServers int32, err error) {
	next, minServers = o.decideProxyServers(v)
	if o.mc.Spec.Proxy == nil || !status.Installed(o.mc) ||
		next.Equal(v.Routing.List) && replicas(o.workload()) == max(minServers, names.Size(o.mc)) {
		return next, minServers, nil
	}
	if o, err = o.live(ctx); err != nil {
		return next, 0, err
	}
	next, minServers = o.decideProxyServers(o.view(desired.Secrets{}, false, v.Now))
	return next, minServers, nil
}

func (o observation) decideProxyServers(v steps.View) (next mover.Servers, minServers int32) {
	if o.mc.Spec.Proxy == nil {
		return next, 0
	}
	current, proxies := v.Routing.List, v.Routing.Proxies
	servers := o.ordinals(desired.Ordinals(o.mc, slices.Concat(current.Before, current.After)))
	wanted, warm := o.wantedServers(servers, current.After)
	next = proxies.Next(current, wanted, servers.Size, warm)
	if current.Phase != mover.NoChange && o.mc.Spec.Proxy.WhenMoveStalls == v1alpha1.WhenMoveStallsProceed &&
		status.IsStalled(o.mc) {
		next = mover.Servers{After: current.After}
	}
	// Items must not move past a flush, and a flush must not drop what proxies note on servers while items move.
	if f := v.Flush(); current.Phase == mover.NoChange && next.Phase != mover.NoChange && f.Pending && f.Cannot == "" {
		next = current
	}
	if status.Installed(o.mc) && !o.mc.Spec.Paused {
		n := servers.MinServers(desired.Ordinals(o.mc, slices.Concat(next.Before, next.After)))
		if !next.Equal(mover.Servers{After: wanted}) || !next.Equal(current) || proxies.NotLoaded() != "" {
			n = max(n, int(replicas(o.workload())))
		}
		minServers = int32(n)
	}
	return next, minServers
}

// wantedServers returns the servers to reach next, and whether items can move there.
func (o observation) wantedServers(servers steps.Ordinals, current []mover.Server) (list []mover.Server, warm bool) {
	using := desired.Ordinals(o.mc, current)
	// If no server has an item, misses are better than another distribution soon.
	if status.Installed(o.mc) && len(using) == 0 {
		for i := range servers.Size {
			servers.Ready[i] = status.ServerAddress(o.mc, int32(i), o.service) != ""
		}
	}
	warm = o.canMove()
	wanted := servers.Wanted(using, warm)
	if last := len(using) - 1; warm && len(wanted) <= last && !servers.Serving[using[last]] {
		wanted = using[:last] // this one alone, so that the items of others move
	}
	removed := slices.DeleteFunc(slices.Clone(using), func(n int) bool { return slices.Contains(wanted, n) })
	// Nothing can be moved from a server that is down. From any other, the mover tries until it can.
	warm = warm && (len(removed) == 0 || slices.ContainsFunc(removed, func(n int) bool { return servers.Serving[n] }))
	return o.withAddresses(wanted), warm
}

// ordinals returns the servers. Of those that terminate, the ones that proxies currently use can serve until their
// items have moved.
func (o observation) ordinals(current []int) (servers steps.Ordinals) {
	servers = steps.Ordinals{Size: int(names.Size(o.mc)), Ready: map[int]bool{}, Serving: map[int]bool{}}
	if set, ok := o.workload().(*appsv1.StatefulSet); ok && o.movesWhenReplaced() {
		servers.Outdated = steps.OutdatedServing(set, o.servers)
	}
	for i := range o.servers {
		pod := &o.servers[i]
		n := names.Ordinal(o.mc.Name, pod.Name)
		draining, waits := steps.IsDraining(pod), steps.KubeletWaits(pod)
		serves := pod.DeletionTimestamp.IsZero() && !draining || draining && slices.Contains(current, n)
		// The control plane marks a server as not ready while its node shuts down.
		servers.Ready[n] = serves && (waits || status.IsTrue(pod, corev1.PodReady)) &&
			status.ServerAddress(o.mc, int32(n), o.service) != ""
		servers.Serving[n] = !steps.IsDown(pod)
	}
	return servers
}

// canMove reports whether items can move: a server of an older template may be unable to, or one of the next template.
func (o observation) canMove() bool {
	cannot := func(c corev1.Container) bool { return !desired.CanMove(c.Args) }
	return status.Installed(o.mc) && desired.CanMove(o.mc.Spec.ExtraArgs) &&
		!slices.ContainsFunc(o.servers, func(p corev1.Pod) bool { return slices.ContainsFunc(p.Spec.Containers, cannot) })
}

// movesWhenReplaced reports whether the items of a server are moved before the server is replaced: over a spare server,
// whose Service may have the name of a foreign one.
func (o observation) movesWhenReplaced() bool {
	if !desired.MovesWhenReplaced(o.mc) || !o.canMove() {
		return false
	}
	_, free := o.service(names.Server(o.mc, names.Size(o.mc)))
	return free
}

// withAddresses returns servers with the addresses of their Services. It omits those that cannot be ours, and repeated
// ones: somebody else may have changed the list.
func (o observation) withAddresses(ordinals []int) (list []mover.Server) {
	for i, n := range ordinals {
		if n >= 0 && n <= max(int(replicas(o.workload())), int(names.Size(o.mc))) && !slices.Contains(ordinals[:i], n) {
			list = append(list, mover.Server{Name: names.Server(o.mc, int32(n)),
				Address: cmp.Or(status.ServerAddress(o.mc, int32(n), o.service), noAddress)})
		}
	}
	return list
}
