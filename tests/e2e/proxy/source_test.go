package proxy

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/example/memcached-operator/agent/contract"
)

// source returns the spec of a Memcached whose proxies read another cache.
func source(addresses []string, hash string, until time.Time) string {
	var servers []string
	for _, address := range addresses {
		host, port, _ := net.SplitHostPort(address)
		servers = append(servers, fmt.Sprintf("%q", host+"|"+host+"|"+port))
	}
	return fmt.Sprintf("{workload: StatefulSet, proxy: {source: {servers: [%s], hash: %s, until: %q}}}",
		strings.Join(servers, ", "), hash, until.UTC().Format(time.RFC3339))
}

// TestSourceHash: proxies find all items of another cache, where its clients have stored them.
func TestSourceHash(t *testing.T) {
	t.Parallel()
	const keys = 1000
	python := func(behaviors string) func(t *testing.T, addresses []string) {
		return func(t *testing.T, addresses []string) {
			root, err := clientsRoot()
			require.NoError(t, err)
			program := fmt.Sprintf("import pylibmc\nc = pylibmc.Client([%q, %q, %q], behaviors=%s)\n"+
				"for i in range(%d): assert c.set(f'key-{i}', f'value-{i}')\n", addresses[0], addresses[1], addresses[2], behaviors,
				keys)
			c := exec.Command("/usr/bin/python3", "-")
			c.Dir, c.SysProcAttr, c.Stdin = "/", &syscall.SysProcAttr{Chroot: root}, strings.NewReader(program)
			out, err := c.CombinedOutput()
			require.NoError(t, err, string(out))
		}
	}
	for name, c := range map[string]struct {
		hash string
		fill func(t *testing.T, addresses []string)
	}{
		"libmemcached": {"OneAtATime", python("{}")},
		"ketama":       {"Ketama", python("{'ketama_weighted': True}")},
		"PHP": {"Ketama", func(t *testing.T, addresses []string) {
			root, err := clientsRoot()
			require.NoError(t, err)
			program := bytes.NewBufferString(
				"<?php $c = new Memcached(); $c->setOption(Memcached::OPT_LIBKETAMA_COMPATIBLE, true);\n")
			for _, address := range addresses {
				host, port, _ := net.SplitHostPort(address)
				_, _ = fmt.Fprintf(program, "$c->addServer('%s', %s);\n", host, port)
			}
			_, _ = fmt.Fprintf(program, "for ($i = 0; $i < %d; $i++) $c->set(\"key-$i\", \"value-$i\") or exit(1);\n", keys)
			p := exec.Command(php[0], php[1:]...)
			p.Dir, p.SysProcAttr, p.Stdin = "/", &syscall.SysProcAttr{Chroot: root}, program
			out, err := p.CombinedOutput()
			require.NoError(t, err, string(out))
		}},
		"gomemcache": {"CRC32", func(t *testing.T, addresses []string) {
			cache := memcache.New(addresses...)
			for i := range keys {
				require.NoError(t, cache.Set(&memcache.Item{Key: fmt.Sprint("key-", i), Value: fmt.Append(nil, "value-", i)}))
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			foreign := start(t, 3)
			c.fill(t, foreign.addresses)
			f := startOf(t, 2, source(foreign.addresses, c.hash, time.Now().Add(time.Hour)))
			found := 0
			for i := range keys {
				if answer := f.ask("get key-%d", i); len(answer) == 3 && answer[1] == fmt.Sprint("value-", i) {
					found++
				}
			}
			t.Logf("%d of %d items found", found, keys)
			assert.Equal(t, keys, found)
			copied := 0
			for _, address := range f.addresses {
				copied += items(t, address)
			}
			assert.Equal(t, keys, copied, "copied items")
		})
	}
}

// fleetWithSource is a pair of proxies that read another cache, whose clients hash as libmemcached does by default.
func fleetWithSource(t testing.TB, servers int, until time.Time) (p pair, foreign *fleet) {
	t.Helper()
	foreign = start(t, 2)
	return startPairOf(t, servers, source(foreign.addresses, "OneAtATime", until)), foreign
}

// put stores an item on each server of the other cache: the proxies ask only the right one.
func (f *fleet) put(format string, args ...any) {
	f.Helper()
	for _, address := range f.addresses {
		require.Equal(f, []string{"STORED"}, dial(f.TB, address).ask(format, args...))
	}
}

// TestSourceItems: an item is copied with its flags and its remaining time, and only until the time in the spec. An
// item that expires here is not read again from the other cache if clients have written it here.
func TestSourceItems(t *testing.T) {
	t.Parallel()
	p, foreign := fleetWithSource(t, 2, time.Now().Add(time.Hour))
	month := int64(40 * 24 * 3600)
	foreign.put("set forever 7 0 5\r\nvalue")
	foreign.put("set long 0 %d 5\r\nvalue", time.Now().Unix()+month)
	foreign.put("set short 4294967295 100 0\r\n")
	foreign.put("set large 0 0 900000\r\n%s", strings.Repeat("x", 900000))
	foreign.put("set other 0 0 5\r\nvalue")
	for _, proxy := range p.proxies {
		assert.Equal(t, []string{"VA 5 f7 t-1", "value"}, proxy.ask("mg forever f t v"))
		assert.Equal(t, []string{"VALUE short 4294967295 0", "", "END"}, proxy.ask("get short"))
		assert.Len(t, proxy.ask("get large"), 3)
		for key, want := range map[string]int64{"long": month, "short": 100} {
			var left int64
			_, err := fmt.Sscanf(strings.Join(proxy.ask("mg %s t", key), ""), "HD t%d", &left)
			require.NoError(t, err)
			assert.InDelta(t, want, left, 30, key)
		}
		assert.Equal(t, []string{"EN"}, proxy.ask("mg none v"))
		assert.Equal(t, []string{"END"}, proxy.ask("get none"))
	}
	assert.Equal(t, []string{"STORED"}, p.ask("set other 0 1 5\r\nnewer"))
	p.eventually("let the item expire", func() []string { return p.ask("get other") }, "END")

	for _, server := range foreign.servers {
		require.NoError(t, server.Process.Kill())
	}
	assert.Equal(t, []string{"END"}, p.ask("get unknown"))
	assert.Equal(t, []string{"STORED"}, p.ask("set unknown 0 0 1\r\n1"))
	assert.Equal(t, []string{"VALUE unknown 0 1", "1", "END"}, p.ask("get unknown"))

	p, foreign = fleetWithSource(t, 1, time.Now().Add(-time.Second))
	foreign.put("set key 0 0 5\r\nvalue")
	assert.Equal(t, []string{"END"}, p.ask("get key"))
}

// sourceRequests are requests of each kind.
var sourceRequests = []string{"get %s", "gat 100 %s", "touch %s 100", "add %s 0 0 1\r\n7", "replace %s 0 0 1\r\n7",
	"append %s 0 0 1\r\n7", "prepend %s 0 0 1\r\n7", "incr %s 2", "decr %s 2", "delete %s", "mg %s v f t", "mg %s",
	"mg %s T100 v", "mg %s N100 v", "md %s", "md %s I T30", "ma %s v", "ma %s N0 J5 v", "ms %s 1\r\n7", "ms %s 1 ME\r\n7",
	"ms %s 1 MA\r\n7", "ms %s 1 MR\r\n7", "cas %s 0 0 1 999999\r\n7", "set %s 0 0 1\r\n7", "incr %s 1 noreply",
	"delete %s noreply"}

// TestSourceRequests: whatever clients request of an item that only the other cache has, they get the answer of a
// server that has the item, also after they have deleted it. Nothing is written to the other cache.
func TestSourceRequests(t *testing.T) {
	t.Parallel()
	p, foreign := fleetWithSource(t, 2, time.Now().Add(time.Hour))
	plain := dial(t, start(t, 1).addresses[0])
	written := func() (counts []string) {
		for _, address := range foreign.addresses {
			for _, line := range dial(t, address).ask("stats") {
				for _, name := range []string{"cmd_set", "cmd_touch", "delete_", "incr_", "decr_", "cas_", "curr_items"} {
					if strings.HasPrefix(line, "STAT "+name) {
						counts = append(counts, line)
					}
				}
			}
		}
		return counts
	}
	for i := range sourceRequests {
		foreign.put("set key-%d 5 0 1\r\n5", i)
		plain.ask("set key-%d 5 0 1\r\n5", i)
	}
	before := written()
	for i, request := range sourceRequests {
		key := fmt.Sprint("key-", i)
		for _, request := range []string{request, "mg %s v f t", "delete %s", request, "mg %s v f t"} {
			answer, want := p.ask(request, key), plain.ask(request, key)
			assert.Equal(t, want, answer, "%q after %q", request, sourceRequests[i])
		}
	}
	assert.Equal(t, before, written(), "the other cache was written to")
}

// TestSourceNoOldValues: no client reads a value of the other cache after a write or delete of the key was
// acknowledged, though servers change. Clients of proxies that do not note what was written find such values.
func TestSourceNoOldValues(t *testing.T) {
	t.Parallel()
	const keys = 300
	for name, breaks := range map[string]bool{"as configured": false, "without notes": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, foreign := fleetWithSource(t, 3, time.Now().Add(time.Hour))
			if breaks {
				p.makePatient(`hash(request:key()) end`, `math.random(1 << 60) end`)
			} else {
				p.makePatient()
			}
			all := servers(p.addresses...)
			p.use(contract.Servers{After: all[:2]})
			for i := range keys {
				foreign.put("set key-%d-0 0 0 1\r\n0", i)
			}
			c := p.clients(keys, 0)
			stop := c.Start(6)
			defer stop()
			for _, s := range followUps(all)[:2] {
				p.change(s, p.use, func(s contract.Servers) { require.NoError(t, move(t.Context(), s, rate.Inf)) })
			}
			stop()
			t.Log(c)
			assert.NotZero(t, c.Reads.Load(), "reads")
			if old := c.Old.Load(); (old > 0) != breaks {
				t.Errorf("%d values are older than an acknowledged write or delete", old)
			}
			if !breaks {
				assert.Zero(t, c.Lost.Load(), "lost keys")
			}
		})
	}
}

// TestSourceIsWarm: a cache that reads another one starts with all hits, and one that does not with none.
func TestSourceIsWarm(t *testing.T) {
	t.Parallel()
	const keys, seconds = 20000, 8
	foreign := start(t, 2)
	for _, address := range foreign.addresses {
		c := dial(t, address)
		for i := range keys {
			require.NoError(t, c.conn.PrintfLine("set key-%d 0 0 5 noreply\r\nvalue", i))
		}
		require.Equal(t, []string{"VALUE key-0 0 5", "value", "END"}, c.ask("get key-0"))
	}
	ratios := map[string][]string{}
	for name, spec := range map[string]string{"warm": source(foreign.addresses, "OneAtATime", time.Now().Add(time.Hour)),
		"cold": smallItems} {
		f := startOf(t, 3, spec)
		first := 0.0
		for second := range seconds {
			hits, reads := 0, 0
			for begin := time.Now(); time.Since(begin) < time.Second; reads++ {
				key := fmt.Sprint("key-", rand.IntN(keys))
				if answer := f.ask("get %s", key); len(answer) == 3 {
					hits++
				} else {
					f.ask("set %s 0 0 5\r\nvalue", key)
				}
			}
			ratio := float64(hits) / float64(reads)
			if second == 0 {
				first = ratio
			}
			ratios[name] = append(ratios[name], fmt.Sprintf("%.2f", ratio))
		}
		if (first == 1) != (name == "warm") {
			t.Errorf("%s: the ratio of the first second is %.2f", name, first)
		}
	}
	t.Logf("hit ratios by the second: warm %s, cold %s", ratios["warm"], ratios["cold"])
}

// TestSourceDuringMoves: while servers change, requests for keys of the other cache are answered as by a server that
// has the items, and requests for other keys as by one that does not.
func TestSourceDuringMoves(t *testing.T) {
	t.Parallel()
	p, foreign := fleetWithSource(t, 4, time.Now().Add(time.Hour))
	all, plain := servers(p.addresses...), dial(t, start(t, 1).addresses[0])
	for _, phase := range []contract.Phase{contract.PreferBefore, contract.PreferAfter} {
		p.use(contract.Servers{Before: all[:2], After: all[2:], Phase: phase})
		for i, request := range sourceRequests {
			for n := range 4 {
				key := fmt.Sprintf("key-%s-%d-%d", phase, i, n)
				if n%2 == 0 {
					foreign.put("set %s 5 0 1\r\n5", key)
					plain.ask("set %s 5 0 1\r\n5", key)
				}
				for _, next := range []string{request, "get %s", "delete %s", request, "get %s"} {
					answer, want := p.ask(next, key), plain.ask(next, key)
					assert.Equal(t, want, answer, "phase %s: %q after %q of %s", phase, next, request, key)
				}
			}
		}
	}
}

// TestSourceUnreachable: while a server is unavailable, clients get the same answers as without another cache.
func TestSourceUnreachable(t *testing.T) {
	t.Parallel()
	p, foreign := fleetWithSource(t, 1, time.Now().Add(time.Hour))
	foreign.put("set key 5 0 1\r\n5")
	without := start(t, 1)
	p.stop(0, syscall.SIGKILL)
	without.stop(0, syscall.SIGKILL)
	for _, request := range append([]string{"gets %s", "mg %s v q", "mg %s N10 v", "ms %s 1 q\r\n7"}, sourceRequests...) {
		assert.Equal(t, without.ask(request, "key"), p.ask(request, "key"), request)
	}
}

// TestSourceLeftPlaceholder: the placeholder of a proxy that was stopped does not stand for an item.
func TestSourceLeftPlaceholder(t *testing.T) {
	t.Parallel()
	p, _ := fleetWithSource(t, 1, time.Now().Add(time.Hour))
	plain := dial(t, start(t, 1).addresses[0])
	for i, request := range sourceRequests {
		key := fmt.Sprint("key-", i)
		dial(t, p.addresses[0]).ask("mg %s N100 E%d", key, uint64(1<<61))
		assert.Equal(t, plain.ask(request, key), p.ask(request, key), request)
	}
}
