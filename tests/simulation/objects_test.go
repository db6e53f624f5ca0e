package simulation

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// Names in the objects of the operator, as docs/reference describes them.
const (
	componentLabel     = "app.kubernetes.io/component"
	proxyComponent     = "proxy"
	memcachedContainer = "memcached"
)

// readySince returns since when a pod has been ready, and whether it is.
func readySince(pod *corev1.Pod) (since time.Time, ready bool) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.LastTransitionTime.Time, c.Status == corev1.ConditionTrue
		}
	}
	return time.Time{}, false
}

// ordinalOf returns the number of a pod of a StatefulSet.
func ordinalOf(set, pod string) int {
	n, err := strconv.Atoi(pod[len(set)+1:])
	if err != nil {
		panic(err) // the simulation has named the pod
	}
	return n
}

// memcachedOf returns the container in which memcached runs.
func memcachedOf(pod *corev1.Pod) *corev1.Container {
	i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == memcachedContainer })
	return &pod.Spec.Containers[i]
}

// drainPath returns the path at which the kubelet asks the agent of a server before it stops memcached; empty for none.
func drainPath(pod *corev1.Pod) string {
	if hooks := memcachedOf(pod).Lifecycle; hooks != nil && hooks.PreStop != nil && hooks.PreStop.HTTPGet != nil {
		return hooks.PreStop.HTTPGet.Path
	}
	return ""
}

// startMemory returns the memory for items in MiB with which memcached starts.
func startMemory(pod *corev1.Pod) int64 {
	args := memcachedOf(pod).Args
	return mebibytes(args[slices.Index(args, "-m")+1])
}

// itemMemory returns the memory for items in MiB that memcached has: the agent sets it as an annotation asks.
func itemMemory(pod *corev1.Pod) int64 {
	if asked := pod.Annotations[v1alpha1.MemoryAnnotation]; asked != "" {
		return mebibytes(strings.Fields(asked)[0])
	}
	return startMemory(pod)
}

func mebibytes(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(err) // memcached or its agent would not understand that
	}
	return n
}

// wasReady reports whether all servers of the Memcached were ready at some time.
func (w *world) wasReady(mc *v1alpha1.Memcached) bool {
	return slices.ContainsFunc(w.history, func(s state) bool {
		then := s.memcached()
		return then != nil && then.UID == mc.UID &&
			meta.IsStatusConditionTrue(then.Status.Conditions, v1alpha1.ConditionReady)
	})
}

// proxyList is what proxy.lua and the mover read from the ConfigMap of the proxies.
type proxyList struct {
	digest        string // of the file servers, by which a proxy names the list that it uses
	phase         string
	mover         string   // the name of the proxy that moves items
	before, after []string // the names of the servers
}

// Phases of a change of servers.
const (
	purge       = "0"
	preferAfter = "2"
)

func readProxyList(files map[string]string) (list proxyList) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(files["servers"])) // never fails
	list.digest, list.mover = fmt.Sprintf("%016x", h.Sum64()), strings.TrimSpace(files["mover"])
	for line := range strings.Lines(files["servers"]) {
		switch words := strings.Fields(line); {
		case len(words) == 0, words[0] == "program":
		case words[0] == "phase":
			list.phase = words[1]
		case words[0] == "old":
			list.before = append(list.before, words[1])
		default:
			list.after = append(list.after, words[0])
		}
	}
	return list
}
