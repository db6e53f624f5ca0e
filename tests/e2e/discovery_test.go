package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/tests/cluster"
)

// TestDiscovery: clients discover exactly the servers that are ready and stay, and each list has a higher version than
// the one before. A server that is removed serves on after it has left the list.
func TestDiscovery(t *testing.T) {
	const delay = 10
	var lists []contract.List // published so far
	testEnv.Test(t, features.New("clients discover the servers").
		Setup(step(func(w world) {
			w.createSpec("cache", fmt.Sprintf(`{size: 2, workload: StatefulSet, discovery: {removalDelaySeconds: %d}, %s}`,
				delay, smallServer))
			w.awaitReady("cache")
		})).
		Assess("when all are ready", step(func(w world) { w.mustPublish("cache", &lists, 2) })).
		Assess("when servers are added", step(func(w world) {
			w.merge("cache", `{"size":3}`)
			w.awaitReady("cache")
			w.mustPublish("cache", &lists, 3)
		})).
		Assess("before servers are removed", step(func(w world) {
			events := w.watch(&corev1.ConfigMapList{}, &corev1.PodList{})
			w.merge("cache", `{"size":1}`)
			var left time.Time
			await(w, events, "the list is shorter", func(_ watch.EventType, config *corev1.ConfigMap) bool {
				left = time.Now()
				return config.Name == "cache-discovery" && strings.Count(config.Data["servers"], "cache-") == 1
			})
			await(w, events, "a server stops", func(_ watch.EventType, pod *corev1.Pod) bool {
				return pod.DeletionTimestamp != nil
			})
			if lasted := time.Since(left); lasted < delay*time.Second-time.Second {
				w.Errorf("a server was deleted %s after it left the list", lasted)
			}
			w.awaitReady("cache")
			w.mustPublish("cache", &lists, 1)
		})).
		Assess("when their addresses change", step(func(w world) {
			w.merge("cache", `{"serverAddresses":"ClusterIP"}`)
			w.awaitReady("cache")
			w.mustPublish("cache", &lists, 1)
		})).
		Assess("with another operator process, after somebody has restored an old list", step(func(w world) {
			w.must(operator.Stop(w.ctx))
			config := get[corev1.ConfigMap](w, "cache-discovery")
			config.Data[contract.ListFile] = lists[0].String()
			w.must(w.Update(w.ctx, config))
			w.must(operator.Start(w.ctx, 1))
			w.mustPublish("cache", &lists, 1)
			w.awaitReady("cache")
		})).Feature())
}

// mustPublish fails unless the ConfigMap, and each agent where pods are real, soon have a new list of so many servers,
// which are those in the status, with a higher version than the last one in lists, to which it is added.
func (w world) mustPublish(name string, lists *[]contract.List, size int) {
	w.Helper()
	last := contract.List{}
	if n := len(*lists); n > 0 {
		last = (*lists)[n-1]
	}
	var list contract.List
	w.eventually("publish the list", func() error {
		config, err := load[corev1.ConfigMap](w, name+"-discovery")
		if err != nil {
			return err
		}
		list = contract.ParseList(config.Data[contract.ListFile])
		servers := strings.Fields(config.Data["servers"])
		if status := w.memcached(name).Status.Servers; list.Version <= last.Version || len(list.Nodes) != size ||
			!slices.Equal(servers, status) {
			return fmt.Errorf("got %+v after version %d, and servers %q, with %q in the status", list, last.Version, servers,
				status)
		}
		return nil
	})
	*lists = append(*lists, list)
	if !cluster.RealPods(testCluster.Kind) {
		return
	}
	want := fmt.Sprintf("CONFIG cluster 0 %d\r\n%s\r\nEND\r\n", len(list.String()), list)
	service := get[corev1.Service](w, name+"-discovery")
	addresses := []string{net.JoinHostPort(service.Spec.ClusterIP, strconv.Itoa(int(service.Spec.Ports[0].Port)))}
	for _, pod := range w.servers(name) {
		addresses = append(addresses, net.JoinHostPort(pod.Status.PodIP, service.Spec.Ports[0].TargetPort.String()))
	}
	for _, address := range addresses {
		w.eventually("discover the list at "+address, func() error { return discovers(address, want) })
	}
}

// discovers returns an error unless config get cluster is answered by want.
func discovers(address, want string) error {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return err
	}
	deadlineErr := conn.SetDeadline(time.Now().Add(time.Second))
	_, writeErr := io.WriteString(conn, "config get cluster\r\nquit\r\n")
	got, readErr := io.ReadAll(conn)
	if err := errors.Join(deadlineErr, writeErr, readErr, conn.Close()); err != nil {
		return err
	}
	if string(got) != want {
		return fmt.Errorf("got %q, want %q", got, want)
	}
	return nil
}

// TestSource: proxies read the items of another cache, whose servers have names that DNS does not know.
func TestSource(t *testing.T) {
	needRealPods(t)
	t.Parallel()
	testEnv.Test(t, features.New("another cache").
		Setup(step(func(w world) {
			w.createSpec("other", `{size: 1, workload: StatefulSet, `+smallServer+`}`)
			w.awaitReady("other")
			w.mustStore("store in the other cache", memcachedClient{address: w.addressOf("other")})
			w.createSpec("cache", fmt.Sprintf(`{size: 1, workload: StatefulSet, proxy: {size: 1, threads: 1, memory: 68Mi,
				source: {servers: [other.example.com|%s|11211], until: %q}}, %s}`, w.servers("other")[0].Status.PodIP,
				time.Now().Add(time.Hour).UTC().Format(time.RFC3339), smallServer))
			w.awaitReady("cache")
		})).
		Assess("is read", step(func(w world) {
			w.eventually("read the item", func() error {
				conn, err := memcachedClient{address: w.clientAddress("cache")}.dial()
				if err != nil {
					return err
				}
				defer conn.Close()
				answer, err := ask(conn, "mg key v")
				if err == nil && answer != "VA 5" {
					err = errors.New(answer)
				}
				return err
			})
		})).Feature())
}
