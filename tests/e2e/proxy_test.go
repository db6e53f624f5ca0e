package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

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
			w.make("cache", `{size: 3, workload: StatefulSet, proxy: {size: 1, threads: 1, memory: 32Mi}, `+frugal+`}`)
			w.awaitReady("cache")
			w.storesAll("cache")
			before = w.proxies("cache")
		})).
		Assess("spreads keys over the servers", step(func(w world) {
			w.lists("cache", "cache-proxy."+w.ns+".svc:11211")
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
		Assess("makes misses of a server that is away", step(func(w world) {
			l := w.traffic("cache", func() {
				_, err := w.kubectl("delete", "pod/cache-1")
				w.must(err)
				w.awaitReady("cache")
				w.storesAll("cache")
			})
			if l.misses == 0 {
				w.Error("no key was missed: the server was not away")
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
			w.same(before, w.proxies("cache"))
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

// proxies are the uids of the proxies of a Memcached, by name.
func (w world) proxies(name string) map[string]string {
	w.Helper()
	pods, err := w.podsOf(name, "proxy")
	w.must(err)
	uids := map[string]string{}
	for i := range pods {
		uids[pods[i].Name] = string(pods[i].UID)
	}
	return uids
}

// keys is how many keys the clients use.
const keys = 300

// traffic is what clients saw.
type traffic struct{ hits, misses int }

// traffic has two clients read keys through the proxy of a Memcached, and write those that they miss, while something
// happens and for a while after that. Each request must be answered, and not by an error, over the same connections.
func (w world) traffic(name string, act func()) (sum traffic) {
	w.Helper()
	address, stop := w.entry(name), make(chan struct{})
	var mu sync.Mutex
	var failures []error
	var clients sync.WaitGroup
	for range 2 {
		conn, err := net.DialTimeout("tcp", address, 5*time.Second)
		w.must(err)
		clients.Go(func() {
			defer conn.Close()
			l, err := through(textproto.NewConn(conn), stop)
			mu.Lock()
			defer mu.Unlock()
			sum.hits, sum.misses = sum.hits+l.hits, sum.misses+l.misses
			if err != nil {
				failures = append(failures, err)
			}
		})
	}
	defer func() {
		close(stop)
		clients.Wait()
		w.Logf("%d hits and %d misses", sum.hits, sum.misses)
		if len(failures) > 0 {
			w.Errorf("%d requests failed: %v", len(failures), failures)
		}
	}()
	act()
	time.Sleep(2 * time.Second) // the clients go on
	return sum                  // which the deferred function completes
}

// through reads and writes over one connection until it is told to stop, or a request fails.
func through(conn *textproto.Conn, stop <-chan struct{}) (l traffic, err error) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return l, nil
		case <-time.After(time.Millisecond):
		}
		key := fmt.Sprintf("key-%d", i%keys)
		answer, err := ask(conn, "get %s", key)
		switch {
		case err != nil:
			return l, fmt.Errorf("get %s: %w", key, err)
		case strings.HasPrefix(answer, "VALUE "):
			l.hits++
			for err == nil && answer != "END" {
				answer, err = conn.ReadLine()
			}
		case answer == "END":
			l.misses++
			answer, err = ask(conn, "set %s 0 0 5\r\nvalue", key)
			if err == nil && answer != "STORED" && answer != "NOT_STORED" {
				err = errors.New(answer)
			}
		default:
			err = errors.New(answer)
		}
		if err != nil {
			return l, fmt.Errorf("%s: %w", key, err)
		}
	}
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
