package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/example/memcached-operator/agent/mover"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/rollout"
	"github.com/example/memcached-operator/controllers/status"
)

// proxyRetry is the delay before proxies are asked again, and silentRetry the one if one of them did not answer, which
// costs a worker agentTimeout.
const (
	proxyRetry  = 500 * time.Millisecond
	silentRetry = 10 * time.Second
)

// The servers behind proxies change in steps. An annotation of the StatefulSet has the list that the proxies are told,
// their ConfigMap follows from it, and an annotation of each proxy's pod has what the proxy has reported, so that any
// operator process can go on.

// noAddress is that of a server without a Service: nothing listens there.
const noAddress = "127.0.0.1:1"

// proxyServers returns the servers that the proxies are told, and the proxies. While the ConfigMap has another list,
// they have confirmed nothing.
func (o observation) proxyServers() (servers mover.Servers, proxies rollout.Proxies) {
	if o.mc.Spec.Proxy == nil {
		return servers, proxies
	}
	set, _ := o.workload().(*appsv1.StatefulSet)
	stored, digest := o.storedServers()
	servers = desired.ReadProxyServers(ptr.Deref(set, appsv1.StatefulSet{}).Annotations, stored)
	servers.Before = o.withAddresses(desired.Ordinals(o.mc, servers.Before))
	servers.After = o.withAddresses(desired.Ordinals(o.mc, servers.After))
	if servers.Program, stored.Program = "", ""; !servers.Equal(stored) {
		digest = ""
	}
	return servers, rollout.NewProxies(o.proxies, digest)
}

// storedServers returns the servers in the ConfigMap of the proxies, and its digest; empty without a ConfigMap.
func (o observation) storedServers() (s mover.Servers, digest string) {
	if config, ok := o.ownChild(proxyConfigKey(o.mc)).(*corev1.ConfigMap); ok {
		return mover.Parse(config.Data), desired.Digest(config.Data)
	}
	return s, ""
}

// nextProxyServers returns the next step of the servers that the proxies use, and the number of servers that must run,
// even if the spec asks for fewer.
func (o observation) nextProxyServers(ctx context.Context) (next mover.Servers, minServers int32, err error) {
	if o.mc.Spec.Proxy == nil {
		return next, 0, nil
	}
	if err := o.set.LookUp(ctx, proxyConfigKey(o.mc), o.children); err != nil {
		return next, 0, err
	}
	current, proxies := o.proxyServers()
	servers := o.ordinals(desired.Ordinals(o.mc, slices.Concat(current.Before, current.After)))
	replicas := int(replicas(o.workload()))
	installed := status.Installed(o.mc)
	wanted, warm := o.wantedServers(servers, current.After)
	next = proxies.Next(current, wanted, servers.Size, warm)
	if installed && (!next.Equal(current) || replicas > servers.Size) {
		// The informer cache may not show a proxy that has just been created.
		if o.proxies, err = o.currentPods(ctx, names.Proxies); err != nil {
			return next, 0, err
		}
		_, proxies = o.proxyServers()
		next = proxies.Next(current, wanted, servers.Size, warm)
	}
	if current.Phase != mover.NoChange && o.mc.Spec.Proxy.WhenMoveStalls == v1alpha1.WhenMoveStallsProceed &&
		status.IsStalled(o.mc) {
		next = mover.Servers{After: current.After}
	}
	// Items must not move past a flush, and a flush must not drop what proxies note on servers while items move.
	if flush, _ := o.flush(); current.Phase == mover.NoChange && next.Phase != mover.NoChange && flush.Pending() > 0 ||
		current.Phase != mover.NoChange && len(flush.Asked) > 0 {
		next = current
	}
	if installed && !o.mc.Spec.Paused {
		n := servers.MinServers(desired.Ordinals(o.mc, slices.Concat(next.Before, next.After)))
		if !next.Equal(mover.Servers{After: wanted}) || !next.Equal(current) || proxies.NotLoaded() != "" {
			n = max(n, replicas)
		}
		if n > max(replicas, servers.Size) { // an older list may name servers that were removed since
			err = o.isCurrent(ctx)
		}
		minServers = int32(n)
	}
	return next, minServers, err
}

// isCurrent returns a conflict if the informer cache has an outdated StatefulSet: another operator process may have
// written it. A server of the newest template would seem outdated, or one that the proxies are told would seem unused.
func (o observation) isCurrent(ctx context.Context) error {
	set, ok := o.workload().(*appsv1.StatefulSet)
	if !ok {
		return nil
	}
	live := &appsv1.StatefulSet{}
	if err := o.set.APIReader.Get(ctx, client.ObjectKeyFromObject(set), live); err != nil {
		return fmt.Errorf("look up StatefulSet %s: %w", set.Name, err)
	}
	const list = v1alpha1.ProxyServersAnnotation
	if live.UID != set.UID || live.Generation != set.Generation || live.Annotations[list] != set.Annotations[list] ||
		live.Status.UpdateRevision != set.Status.UpdateRevision {
		return apierrors.NewConflict(appsv1.Resource("statefulsets"), set.Name, errors.New("informer cache is outdated"))
	}
	return nil
}

// wantedServers returns the servers to reach next, and whether items can move there.
func (o observation) wantedServers(servers rollout.Ordinals, current []mover.Server) (list []mover.Server, warm bool) {
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
func (o observation) ordinals(current []int) (servers rollout.Ordinals) {
	servers = rollout.Ordinals{Size: int(names.Size(o.mc)), Ready: map[int]bool{}, Serving: map[int]bool{}}
	if set, ok := o.workload().(*appsv1.StatefulSet); ok && o.movesWhenReplaced() {
		servers.Outdated = rollout.OutdatedServing(set, o.servers)
	}
	for i := range o.servers {
		pod := &o.servers[i]
		n := names.Ordinal(o.mc.Name, pod.Name)
		draining, waits := rollout.IsDraining(pod), rollout.KubeletWaits(pod)
		serves := pod.DeletionTimestamp.IsZero() && !draining || draining && slices.Contains(current, n)
		// The control plane marks a server as not ready while its node shuts down.
		servers.Ready[n] = serves && (waits || status.IsTrue(pod, corev1.PodReady)) &&
			status.ServerAddress(o.mc, int32(n), o.service) != ""
		servers.Serving[n] = !rollout.IsDown(pod)
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

// askProxies asks proxies for their reports, stores what they confirm, and says how far a change of the servers is, and
// how long until proxies must be asked again.
func (r *MemcachedReconciler) askProxies(ctx context.Context, o observation,
	pods []*corev1.Pod) (change status.ChangeProgress, wait time.Duration, err error) {
	if len(pods) == 0 {
		return change, 0, nil
	}
	wait = proxyRetry
	_, proxies := o.proxyServers()
	servers, _ := o.storedServers()
	list := servers.List()
	reports, errs := r.askAgents(ctx, o.mc, pods)
	for i, pod := range pods {
		if errs[i] != nil {
			wait = silentRetry
			log.FromContext(ctx).Info("a proxy does not answer", "pod", pod.Name, "error", errs[i].Error())
			change.Text = fmt.Sprintf("proxy %s does not answer the operator on port %d", pod.Name, names.ReportPort(o.mc))
			continue
		}
		report, confirmed := reports[i], rollout.Loaded
		if report.Done == list {
			confirmed = rollout.Moved
		}
		if pod.Name == servers.Mover {
			work := "moving items"
			if servers.Phase == mover.Purge {
				work = "deleting items of earlier changes"
			}
			change.Percent = min(max(report.Percent, 0), 100)
			work = fmt.Sprintf("%s, %d %%: %s", work, change.Percent, report.Problem)
			change.Text = cmp.Or(change.Text, strings.TrimSuffix(work, ": "))
		}
		switch value := proxies.Annotation(confirmed); {
		case report.List != list:
			err = errors.Join(err, r.refresh(ctx, pod))
		case pod.Annotations[v1alpha1.ProxyConfigAnnotation] != value:
			err = errors.Join(err, r.annotate(ctx, pod, v1alpha1.ProxyConfigAnnotation, value))
		}
	}
	return change, wait, err
}
