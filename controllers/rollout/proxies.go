package rollout

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/agent/mover"
	"github.com/example/memcached-operator/api/v1alpha1"
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

// Proxies are the proxies that run, and what they have confirmed.
type Proxies struct {
	pods   []corev1.Pod
	digest string // of their newest configuration
}

// NewProxies returns the proxies among pods that run, or are about to.
func NewProxies(pods []corev1.Pod, digest string) Proxies {
	return Proxies{slices.DeleteFunc(slices.Clone(pods), func(pod corev1.Pod) bool {
		return pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	}), digest}
}

// Annotation returns the value of the annotation that stores a confirmation.
func (p Proxies) Annotation(c Confirmation) string {
	return strings.TrimSpace(p.digest + " " + string(c))
}

// confirmation returns what a proxy has confirmed; ok says that its annotation has the newest digest.
func (p Proxies) confirmation(pod *corev1.Pod) (c Confirmation, ok bool) {
	digest, text, _ := strings.Cut(pod.Annotations[v1alpha1.ProxyConfigAnnotation], " ")
	if digest != p.digest {
		return Unasked, false
	}
	return Confirmation(text), true
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

// Unconfirmed returns the ready proxies that have yet to confirm what the servers wait for.
func (p Proxies) Unconfirmed(s mover.Servers) (list []*corev1.Pod) {
	for i := range p.pods {
		pod := &p.pods[i]
		c, ok := p.confirmation(pod)
		confirmed := c == Moved || c == Loaded && s.Mover != pod.Name
		if ok && !confirmed && pod.DeletionTimestamp.IsZero() && status.IsTrue(pod, corev1.PodReady) {
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

// Next returns the next step of the servers, so that no two proxies are ever more than one step apart. wanted are the
// servers to reach, size is their number once all are ready. Unless warm is set, items are not moved. A change that
// proxies know of is finished before the next one begins.
func (p Proxies) Next(s mover.Servers, wanted []string, size int, warm bool) mover.Servers {
	allLoaded := p.NotLoaded() == ""
	moverExists := slices.ContainsFunc(p.pods, func(pod corev1.Pod) bool { return pod.Name == s.Mover })
	moved := slices.ContainsFunc(p.pods, func(pod corev1.Pod) bool {
		c, _ := p.confirmation(&pod)
		return pod.Name == s.Mover && c == Moved
	})
	switch s.Phase {
	case mover.Purge, mover.PreferAfter:
		switch {
		case s.Phase == mover.Purge && len(wanted) != len(s.After):
			return mover.Servers{After: s.Before}
		case s.Phase == mover.Purge && moved && allLoaded:
			return mover.Servers{Phase: mover.PreferBefore, Before: s.Before, After: s.After}
		case moved && allLoaded:
			return mover.Servers{After: s.After}
		case !moverExists && allLoaded:
			s.Mover = p.mover()
		}
	case mover.PreferBefore:
		if allLoaded {
			s.Phase = mover.PreferAfter
		}
	default:
		switch {
		case !warm || len(s.After) == len(wanted):
			return mover.Servers{After: wanted}
		case !allLoaded:
		case len(s.After) == 0 || len(wanted) == 0:
			return mover.Servers{After: wanted}
		case len(wanted) == size:
			return mover.Servers{Phase: mover.Purge, Before: s.After, After: wanted, Mover: p.mover()}
		}
	}
	return s
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
