package e2e

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/e2e-framework/pkg/features"
)

// TestProxy has clients that know one address talk to real servers through it, while these change.
func TestProxy(t *testing.T) {
	if under.Kind != "node" {
		t.Skip("this needs real pods that can be reached")
	}
	var before map[string]string
	testEnv.Test(t, features.New("a proxy").
		Setup(step(func(w world) {
			w.make("cache", `{size: 3, workload: StatefulSet, proxy: {size: 1, threads: 1, memory: 68Mi}, `+frugal+`}`)
			w.awaitReady("cache")
			w.storesAll("cache")
			before = w.uidsOf("cache", "proxy")
		})).
		Assess("spreads keys over the servers", step(func(w world) {
			w.lists("cache", "cache-proxy."+w.ns+".svc:11211")
			config, err := load[corev1.ConfigMap](w, "cache-proxy")
			w.must(err)
			for server := range strings.Lines(config.Data["servers"]) {
				if _, err := netip.ParseAddrPort(strings.TrimSpace(server)); err != nil {
					w.Errorf("the proxies have to look up a name: %v", err)
				}
			}
			l := w.traffic("cache", func() {})
			if l.hits == 0 {
				w.Error("no key was found again")
			}
			for name, items := range w.items("cache") {
				if items < keys/6 {
					w.Errorf("%s has %d of %d keys", name, items, keys)
				}
			}
		})).
		Assess("makes misses of reads of a server that is away, and errors of writes", step(func(w world) {
			l := w.traffic("cache", func() {
				_, err := w.kubectl("delete", "pod/cache-1")
				w.must(err)
				w.awaitReady("cache")
				w.storesAll("cache")
			})
			if l.misses == 0 || l.refused == 0 {
				w.Errorf("%d keys were missed and %d writes refused: the server was not away", l.misses, l.refused)
			}
		})).
		Assess("follows the servers to another size and back", step(func(w world) {
			w.traffic("cache", func() {
				w.merge("cache", `{"size":4}`)
				w.awaitReady("cache")
				w.eventually("have the new server used", func() error {
					if w.items("cache")["cache-3"] < keys/8 {
						return errors.New("it has few keys")
					}
					return nil
				})
			})
			l := w.traffic("cache", func() {
				w.merge("cache", `{"size":3}`)
				w.awaitReady("cache")
			})
			if l.hits == 0 {
				w.Error("no key was found again")
			}
			w.same(before, w.uidsOf("cache", "proxy"))
		})).Feature())
}

// storesAll writes keys of all servers through the proxy of a Memcached that is Ready: the proxy uses each server.
func (w world) storesAll(name string) {
	w.Helper()
	conn, err := caller{address: w.entry(name)}.dial()
	w.must(err)
	defer conn.Close()
	for i := range keys {
		if answer, err := ask(conn, "set first-%d 0 0 5\r\nvalue", i); err != nil || answer != "STORED" {
			w.Fatalf("Ready, and the proxy answers %q to a set: %v", answer, err)
		}
	}
}

// traffic has two clients use the proxy of a Memcached while something happens.
func (w world) traffic(name string, act func()) traffic {
	w.Helper()
	c := caller{address: w.entry(name)}
	return w.load(act, c, c)
}

// items says how many items each server of a Memcached holds.
func (w world) items(name string) map[string]int {
	w.Helper()
	pods, err := w.servers(name)
	w.must(err)
	items := map[string]int{}
	for i := range pods {
		conn, err := caller{address: net.JoinHostPort(pods[i].Status.PodIP, "11211")}.dial()
		if err != nil {
			w.Logf("%s: %v", pods[i].Name, err)
			continue
		}
		line, err := ask(conn, "stats")
		for ; err == nil && line != "END"; line, err = conn.ReadLine() {
			if n, ok := strings.CutPrefix(line, "STAT curr_items "); ok {
				count, err := strconv.Atoi(n)
				w.must(err)
				items[pods[i].Name] = count
			}
		}
		w.must(errors.Join(err, conn.Close()))
	}
	return items
}
