package steps

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/agent/mover"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

// Confirmation is what a proxy has reported about the newest configuration. An annotation of its pod stores it, after
// the digest of that configuration.
type Confirmation string

// Confirmations.
const (
	// Unasked: the proxy has not reported yet.
	Unasked Confirmation = ""
	// Loaded: all threads of the proxy use the list of servers.
	Loaded Confirmation = "loaded"
	// Moved: and the proxy's agent has deleted or moved all items.
	Moved Confirmation = "moved"
)

// Routing says which servers the proxies use.
type Routing struct {
	// List are the servers that the proxies are told, and Stored those in their ConfigMap, which follows.
	List, Stored mover.Servers
	// Proxies are those that run, and what they have confirmed.
	Proxies Proxies
	// Moves says that the items of a server move before it is replaced.
	Moves bool
}

func (r Routing) inUse() func(name string) bool { return r.Proxies.InUse(r.List) }

// confirm asks proxies for what they have yet to confirm, and records it. It says how far a change of the servers is.
func (s *Step) confirm(v View) {
	hash := v.Routing.Stored.List()
	for _, pod := range v.Routing.Proxies.Unconfirmed(v.Routing.List) {
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
		confirmed := Loaded
		if r.Done == hash {
			confirmed = Moved
		}
		if pod.Name == v.Routing.Stored.Mover {
			work := "moving items"
			if v.Routing.Stored.Phase == mover.Purge {
				work = "deleting items of earlier changes"
			}
			s.Progress.Percent = min(max(r.Percent, 0), 100)
			work = fmt.Sprintf("%s, %d %%: %s", work, s.Progress.Percent, r.Problem)
			s.Progress.Text = cmp.Or(s.Progress.Text, strings.TrimSuffix(work, ": "))
		}
		switch value := v.Routing.Proxies.Annotation(confirmed); {
		case r.List != hash:
			s.refresh(v, pod)
		case pod.Annotations[v1alpha1.ProxyConfigAnnotation] != value:
			s.annotate(pod, v1alpha1.ProxyConfigAnnotation, value)
		}
	}
}

// Proxies are the proxies that run, and what they have confirmed.
type Proxies struct {
	pods   []corev1.Pod
	digest string // of their newest configuration; empty while their ConfigMap has another one
}

// NewProxies returns the proxies among pods that run, or are about to.
func NewProxies(pods []corev1.Pod, digest string) Proxies {
	return Proxies{slices.DeleteFunc(slices.Clone(pods), func(pod corev1.Pod) bool { return !mayRun(&pod) }), digest}
}

// Annotation returns the value of the annotation that stores a confirmation.
func (p Proxies) Annotation(c Confirmation) string {
	return strings.TrimSpace(p.digest + " " + string(c))
}

// confirmation returns what a proxy has confirmed; ok says that its annotation has the newest digest.
func (p Proxies) confirmation(pod *corev1.Pod) (c Confirmation, ok bool) {
	digest, text, _ := strings.Cut(pod.Annotations[v1alpha1.ProxyConfigAnnotation], " ")
	if c = Confirmation(text); digest != p.digest || c != Loaded && c != Moved {
		c = Unasked
	}
	return c, digest == p.digest
}

// ToAnnotate returns the proxies whose annotation does not have the newest digest: the kubelet refreshes their files
// once it has.
func (p Proxies) ToAnnotate() (list []*corev1.Pod) {
	for i := range p.pods {
		if _, ok := p.confirmation(&p.pods[i]); !ok && p.pods[i].DeletionTimestamp.IsZero() {
			list = append(list, &p.pods[i])
		}
	}
	return list
}

// ToVoid returns the proxies that must not count on what they confirmed, because their ConfigMap has another
// configuration meanwhile.
func (p Proxies) ToVoid() []*corev1.Pod {
	if p.digest != "" {
		return nil
	}
	return p.ToAnnotate()
}

// Unconfirmed returns the ready proxies that have yet to confirm what the servers wait for.
func (p Proxies) Unconfirmed(s mover.Servers) (list []*corev1.Pod) {
	for i := range p.pods {
		pod := &p.pods[i]
		c, ok := p.confirmation(pod)
		confirmed := c == Moved || c == Loaded && s.Mover != pod.Name
		if ok && !confirmed && p.digest != "" && pod.DeletionTimestamp.IsZero() && status.IsTrue(pod, corev1.PodReady) {
			list = append(list, pod)
		}
	}
	return list
}

// NotLoaded returns the name of a proxy that may still use an older list of servers; empty for none. A proxy that is
// being deleted may, until its pod is gone.
func (p Proxies) NotLoaded() string {
	for i := range p.pods {
		if c, _ := p.confirmation(&p.pods[i]); c == Unasked {
			return p.pods[i].Name
		}
	}
	return ""
}

// InUse returns a function that reports whether a proxy may use a server.
func (p Proxies) InUse(s mover.Servers) func(name string) bool {
	unknown, list := len(s.After) == 0 || p.NotLoaded() != "", slices.Concat(s.Before, s.After)
	return func(name string) bool {
		return unknown || slices.ContainsFunc(list, func(server mover.Server) bool { return server.Name == name })
	}
}

// Next returns the next step of the servers, so that no two proxies are ever more than one step apart. wanted are the
// servers to reach next, as Wanted says. Unless warm is set, items are not moved. A change that proxies know of is
// finished before the next one begins; size is the number of servers that the spec asks for.
func (p Proxies) Next(s mover.Servers, wanted []mover.Server, size int, warm bool) mover.Servers {
	allLoaded := p.NotLoaded() == ""
	moverExists := slices.ContainsFunc(p.pods, func(pod corev1.Pod) bool { return pod.Name == s.Mover })
	moved := slices.ContainsFunc(p.pods, func(pod corev1.Pod) bool {
		c, _ := p.confirmation(&pod)
		return pod.Name == s.Mover && c == Moved
	})
	switch s.Phase {
	case mover.Purge, mover.PreferAfter:
		switch {
		case s.Phase == mover.Purge && len(s.After) != size:
			return mover.Servers{After: s.Before}
		case !allLoaded:
		case s.Phase == mover.Purge && moved:
			return mover.Servers{Phase: mover.PreferBefore, Before: s.Before, After: s.After}
		case moved:
			return mover.Servers{After: s.After}
		case !moverExists:
			s.Mover = p.mover()
		}
	case mover.PreferBefore:
		if allLoaded {
			s.Phase = mover.PreferAfter
		}
	default:
		switch {
		case !warm || slices.Equal(s.After, wanted):
			return mover.Servers{After: wanted}
		case !allLoaded:
		case len(s.After) == 0 || len(wanted) == 0:
			return mover.Servers{After: wanted}
		default:
			return mover.Servers{Phase: mover.Purge, Before: s.After, After: wanted, Mover: p.mover()}
		}
	}
	return s
}

// Ordinals are the servers of a StatefulSet, by their ordinals.
type Ordinals struct {
	// Size is the number of servers that the spec asks for.
	Size int
	// Ready are the servers that are ready, and Outdated those whose items must be moved before they are replaced.
	Ready, Outdated map[int]bool
	// Serving are the servers that are not down: they may hold items, even if they are not ready.
	Serving map[int]bool
}

// Wanted returns the ordinals of the servers that proxies should use next, in order. With warm, items move from the
// current servers to these, in one change: servers are removed from the end, or added to the end once all are ready, or
// one is replaced by another, at the same position. A server that is outdated, or beyond the size, is replaced by one
// that is not in use; MinServers says that there is a spare one. Without warm, servers are
// removed, and added once they are ready and all with a lower ordinal are in use.
func (o Ordinals) Wanted(current []int, warm bool) []int {
	list := slices.Clone(current)
	unused := func(ordinal int) bool { return o.Ready[ordinal] && !slices.Contains(list, ordinal) }
	if !warm {
		list = slices.DeleteFunc(list, func(ordinal int) bool { return ordinal >= o.Size })
		for ordinal := 0; ordinal < o.Size && (unused(ordinal) || slices.Contains(list, ordinal)); ordinal++ {
			if unused(ordinal) {
				list = append(list, ordinal)
			}
		}
		return list
	}
	if len(list) > o.Size {
		return list[:o.Size]
	}
	for ordinal := 0; ordinal < o.Size && len(list) < o.Size; ordinal++ {
		if unused(ordinal) {
			list = append(list, ordinal)
		}
	}
	if len(list) < o.Size {
		return current // not all are ready
	}
	if len(list) > len(current) {
		return list
	}
	// Servers beyond the size last: they are the spare ones.
	for position, ordinal := range list {
		if ordinal < o.Size && (!o.Outdated[ordinal] || !o.Ready[ordinal]) || ordinal >= o.Size && o.hasOutdated(list) {
			continue
		}
		for other := range o.Size + 1 {
			if unused(other) && !o.Outdated[other] && (other < o.Size || o.Outdated[ordinal]) {
				list[position] = other
				return list
			}
		}
	}
	return list
}

// hasOutdated reports whether a server must be replaced. A spare one is removed instead, even if it is outdated itself.
func (o Ordinals) hasOutdated(list []int) bool {
	return slices.ContainsFunc(list, func(ordinal int) bool { return ordinal < o.Size && o.Outdated[ordinal] })
}

// MinServers returns the number of servers that must run for proxies that use these ones: one more than the size while
// one of them is outdated.
func (o Ordinals) MinServers(inUse []int) (n int) {
	if o.hasOutdated(inUse) {
		n = o.Size + 1
	}
	for _, ordinal := range inUse {
		n = max(n, ordinal+1)
	}
	return n
}

// mover returns the name of a ready proxy; empty for none.
func (p Proxies) mover() (name string) {
	for i := range p.pods {
		pod := &p.pods[i]
		if pod.DeletionTimestamp.IsZero() && status.IsTrue(pod, corev1.PodReady) && (name == "" || pod.Name < name) {
			name = pod.Name
		}
	}
	return name
}
