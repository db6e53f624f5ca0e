package simulator

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// State holds the objects of a namespace, by kind.
type State map[string][]client.Object

// Memcached returns the Memcached; nil for none.
func (s State) Memcached() *v1alpha1.Memcached {
	for _, obj := range s["Memcached"] {
		return obj.(*v1alpha1.Memcached)
	}
	return nil
}

// Proxies returns the list of servers that the proxies are told; an empty one without their ConfigMap.
func (s State) Proxies() (list ProxyList) {
	for _, obj := range s["ConfigMap"] {
		if strings.HasSuffix(obj.GetName(), "-proxy") {
			list = ReadProxyList(obj.(*corev1.ConfigMap).Data)
		}
	}
	return list
}

// Names in the objects of the operator, as docs/reference describes them.
const (
	ComponentLabel     = v1alpha1.ComponentLabel
	ProxyComponent     = "proxy"
	MemcachedContainer = "memcached"
)

// ReadySince returns since when a pod has been ready, and whether it is.
func ReadySince(pod *corev1.Pod) (since time.Time, ready bool) {
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

// MemcachedOf returns the container in which memcached runs.
func MemcachedOf(pod *corev1.Pod) *corev1.Container {
	i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == MemcachedContainer })
	return &pod.Spec.Containers[i]
}

// drainPath returns the path at which the kubelet asks the agent of a server before it stops memcached; empty for none.
func drainPath(pod *corev1.Pod) string {
	if hooks := MemcachedOf(pod).Lifecycle; hooks != nil && hooks.PreStop != nil && hooks.PreStop.HTTPGet != nil {
		return hooks.PreStop.HTTPGet.Path
	}
	return ""
}

// startMemory returns the memory for items in MiB with which memcached starts.
func startMemory(pod *corev1.Pod) int64 {
	args := MemcachedOf(pod).Args
	return mebibytes(args[slices.Index(args, "-m")+1])
}

// ItemMemory returns the memory for items in MiB that memcached has: the agent sets it as an annotation asks.
func ItemMemory(pod *corev1.Pod) int64 {
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

// ProxyList is what proxy.lua and the mover read from the ConfigMap of the proxies.
type ProxyList struct {
	Hash          string // of the file servers, by which a proxy names the list that it uses
	Phase         string
	Mover         string   // the name of the proxy that moves items
	Before, After []string // the names of the servers
}

// ReadProxyList reads the data of the ConfigMap of the proxies.
func ReadProxyList(files map[string]string) (list ProxyList) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(files["servers"])) // never fails
	list.Hash, list.Mover = fmt.Sprintf("%016x", h.Sum64()), strings.TrimSpace(files["mover"])
	for line := range strings.Lines(files["servers"]) {
		switch words := strings.Fields(line); {
		case len(words) == 0, words[0] == "program":
		case words[0] == "phase":
			list.Phase = words[1]
		case words[0] == "old":
			list.Before = append(list.Before, words[1])
		default:
			list.After = append(list.After, words[0])
		}
	}
	return list
}
