package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"net/textproto"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/tests/cluster"
	"github.com/example/memcached-operator/tests/versions"
)

// TestProxy: clients use real servers through the proxy while the servers change.
func TestProxy(t *testing.T) {
	needRealPods(t)
	testEnv.Test(t, features.New("a proxy").
		Setup(step(func(w world) {
			w.createSpec("cache", `{size: 3, workload: StatefulSet, proxy: {size: 1, threads: 1, memory: 68Mi},
				metrics: {}, `+smallServer+`}`)
			w.awaitReady("cache")
			w.mustStoreKeys("cache")
		})).
		Assess("spreads keys over the servers", step(func(w world) {
			w.mustListServers("cache", "cache-proxy."+w.ns+".svc:11211")
			config := get[corev1.ConfigMap](w, "cache-proxy")
			for _, server := range contract.ParseServers(config.Data).After {
				if _, err := netip.ParseAddrPort(server.Address); err != nil {
					w.Errorf("a server of the proxy has no IP address: %v", err)
				}
			}
			c := memcachedClient{address: w.clientAddress("cache")}
			if l := w.load(func() {}, c, c); l.hits == 0 {
				w.Error("no key was found again")
			}
			for series, ok := range map[string]func(float64) bool{
				"memcached_up": is(1), "memcached_current_connections": positive,
				`memcached_proxy_requests_total{command="get"}`: positive, "memcached_proxy_buffer_limit_bytes": is(34 << 20),
			} {
				w.awaitSeriesOf("cache", "proxy", series, ok)
			}
			for name, items := range w.items("cache") {
				if items < keys/6 {
					w.Errorf("%s has %d of %d keys", name, items, keys)
				}
			}
		})).
		Assess("finds all keys while a server is evicted", step(func(w world) {
			servers := w.uids("cache")
			c := memcachedClient{address: w.clientAddress("cache")}
			l := w.load(func() {
				pod := get[corev1.Pod](w, "cache-1")
				w.must(w.SubResource("eviction").Create(w.ctx, pod, &policyv1.Eviction{}))
				w.eventually("the server is replaced", func() error {
					if now := w.uids("cache"); now["cache-1"] == servers["cache-1"] {
						return errors.New("the server still runs")
					}
					return nil
				})
				w.awaitReady("cache")
			}, c, c)
			if l.misses > 0 || l.refused > 0 {
				w.Errorf("%d misses and %d refused writes", l.misses, l.refused)
			}
			delete(servers, "cache-1")
			for name, uid := range servers {
				if now := w.uids("cache"); now[name] != uid {
					w.Errorf("%s was replaced too", name)
				}
			}
		})).Feature())
}

// TestNoOldValues: while servers are added and removed behind two proxies, no client reads a value older than one whose
// write or delete was acknowledged, whatever is killed meanwhile.
func TestNoOldValues(t *testing.T) {
	needRealPods(t)
	testEnv.Test(t, features.New("changes behind two proxies").
		Setup(step(func(w world) {
			w.createSpec("cache", `{size: 3, workload: StatefulSet, proxy: {size: 2, threads: 2, memory: 72Mi}, `+
				smallServer+`}`)
			w.awaitReady("cache")
		})).
		Assess("show no old value whatever is killed, and lose nothing otherwise", step(func(w world) {
			random := func(component string) string {
				pods := w.podsOf("cache", component)
				return pods[rand.IntN(len(pods))].Name
			}
			killContainer := func(component, container string) {
				if err := testCluster.KillContainer(w.ctx, w.ns, random(component), container); err != nil {
					w.Log(err) // the kubelet waits before it starts the container again
				}
			}
			for _, step := range []struct {
				patch string
				size  int
				kill  func() // nil for nothing
			}{
				{`{"size":4}`, 4, nil},
				{`{"size":1}`, 1, nil},
				{`{"size":3}`, 3, nil},
				{`{"image":"docker.io/library/memcached:1.6"}`, 3, nil},
				{`{"size":4}`, 4, func() { killContainer("proxy", "agent") }},
				{`{"size":3}`, 3, func() { killContainer("proxy", "memcached") }},
				{`{"size":4}`, 4, func() { killContainer("server", "memcached") }},
				{`{"size":3}`, 3, func() {
					w.must(client.IgnoreNotFound(w.Delete(w.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
						Namespace: w.ns, Name: random("proxy")}})))
				}},
				{`{"size":4}`, 4, func() {
					w.eventually("kill the operator", func() error { return operator.Kill(w.ctx) }) // once it leads
					w.must(operator.Stop(w.ctx))
					w.restart()
				}},
			} {
				if testing.Short() && step.kill != nil {
					return // these take minutes; tests/e2e/proxy tests the same with processes
				}
				w.changeUnderLoad(step.patch, step.size, step.kill)
			}
		})).Feature())
}

// changeUnderLoad changes the spec while clients use the proxies, and calls kill every few seconds meanwhile. It fails
// if a client reads an old value or, without kill, if a request fails, a key is lost, a server has too few keys, or
// another size replaces a proxy.
func (w world) changeUnderLoad(patch string, size int, kill func()) {
	w.Helper()
	var current atomic.Pointer[[]string]
	// As with the Service, clients find a proxy once it is ready. They keep their connections until it is deleted.
	look := func() {
		var addresses []string
		for _, pod := range w.podsOf("cache", "proxy") {
			address := net.JoinHostPort(pod.Status.PodIP, "11211")
			if readyCondition(&pod) != nil || current.Load() != nil && slices.Contains(*current.Load(), address) {
				addresses = append(addresses, address)
			}
		}
		current.Store(&addresses)
	}
	look()
	c := &versions.Clients{Keys: 10000, Proxies: func() []string { return *current.Load() }, Pause: time.Millisecond}
	stop := c.Start(6)
	w.merge("cache", patch)
	begin, next, proxies := time.Now(), time.Duration(0), w.uidsOf("cache", "proxy")
	w.eventually("wait until it is ready", func() error {
		look()
		if after := time.Since(begin); kill != nil && after > next && after < 20*time.Second {
			kill()
			next = after + 2*time.Second + rand.N(3*time.Second)
		}
		return w.ready("cache")
	})
	stop()
	w.Logf("%s after %.1f s: %s", patch, time.Since(begin).Seconds(), c)
	if n := c.Old.Load(); n > 0 {
		w.Errorf("%s: clients read %d values that were too old", patch, n)
	}
	if kill == nil && (c.Errors.Load() > 0 || c.Lost.Load() > 0) {
		w.Errorf("%s: %d requests failed, and %d keys were lost", patch, c.Errors.Load(), c.Lost.Load())
	}
	w.eventually("wait until all servers answer", func() error { // the kubelet may not have noticed yet that one died
		if n := len(w.items("cache")); n != size {
			return fmt.Errorf("got %d servers, want %d", n, size)
		}
		return nil
	})
	if kill != nil {
		return
	}
	for name, n := range w.items("cache") {
		if n < c.Keys/size/4 { // some are deleted
			w.Errorf("%s: %s has %d of %d keys", patch, name, n, c.Keys)
		}
	}
	if strings.Contains(patch, "size") {
		w.mustNotReplace(proxies, w.uidsOf("cache", "proxy"))
	}
}

// TestReadyWithProxy: when a Memcached becomes ready, its proxies use all servers, even while the node is busy.
func TestReadyWithProxy(t *testing.T) {
	needRealPods(t)
	for range runtime.NumCPU() + 1 { // otherwise proxies would load their lists too quickly to notice
		busy := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
		if err := busy.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = busy.Wait() }) // ended by the context
	}
	names := []string{"cache-a", "cache-b", "cache-c", "cache-d", "cache-e", "cache-f"}
	mustStoreOnceReady := func(w world) {
		waiting := slices.Clone(names)
		w.eventually("wait until all are ready", func() error {
			waiting = slices.DeleteFunc(waiting, func(name string) bool {
				ready := w.ready(name) == nil
				if ready {
					w.mustStoreKeys(name)
				}
				return ready
			})
			if len(waiting) > 0 {
				return fmt.Errorf("not ready: %v", waiting)
			}
			return nil
		})
	}
	testEnv.Test(t, features.New("many proxies at once").
		Setup(step(func(w world) {
			for _, name := range names {
				w.createSpec(name, `{size: 2, workload: StatefulSet, proxy: {size: 1, threads: 1, memory: 68Mi}, `+smallServer+`}`)
			}
		})).
		Assess("use all servers once ready", step(mustStoreOnceReady)).
		Assess("use a new server once ready", step(func(w world) {
			for _, name := range names {
				w.merge(name, `{"size":3}`)
			}
			mustStoreOnceReady(w)
		})).Feature())
}

// mustStoreKeys writes keys for all servers through the proxy of a ready Memcached: the proxy must use each server.
func (w world) mustStoreKeys(name string) {
	w.Helper()
	var conn *textproto.Conn
	w.eventually("connect to the Service", func() (err error) { // kube-proxy may not have noticed that the proxy is ready
		conn, err = memcachedClient{address: w.clientAddress(name)}.dial()
		return err
	})
	defer conn.Close()
	for i := range keys {
		if answer, err := ask(conn, "set first-%d 0 0 5\r\nvalue", i); err != nil || answer != "STORED" {
			w.Fatalf("the Memcached is Ready, but the proxy answers %q to a set: %v", answer, err)
		}
	}
}

// items returns the number of items on each server of a Memcached.
func (w world) items(name string) map[string]int {
	w.Helper()
	pods := w.servers(name)
	items := map[string]int{}
	for i := range pods {
		conn, err := memcachedClient{address: net.JoinHostPort(pods[i].Status.PodIP, "11211")}.dial()
		if err != nil {
			w.Logf("%s: %v", pods[i].Name, err)
			continue
		}
		count, err := stat(conn, "curr_items")
		w.must(errors.Join(err, conn.Close()))
		items[pods[i].Name] = int(count)
	}
	return items
}

// stat returns a number of memcached's statistics.
func stat(conn *textproto.Conn, name string) (value int64, err error) {
	line, err := ask(conn, "stats")
	for ; err == nil && line != "END"; line, err = conn.ReadLine() {
		if n, ok := strings.CutPrefix(line, "STAT "+name+" "); ok {
			if value, err = strconv.ParseInt(n, 10, 64); err != nil {
				return 0, err
			}
		}
	}
	return value, err
}

// restart starts a killed operator without waiting until its lease expires.
func (w world) restart() {
	w.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.OperatorNamespace,
		Name: "memcached-operator.cache.example.com"}}
	w.must(client.IgnoreNotFound(w.Delete(w.ctx, lease)))
	w.must(operator.Start(w.ctx, 1))
}
