package proxy

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/agent/mover"
	"github.com/example/memcached-operator/tests/versions"
)

// late is how much later the second proxy gets each list.
const late = time.Second

// pair is two proxies with the same servers, of which the second one is late.
type pair struct {
	*fleet
	proxies []*proxyProcess
}

func startPair(t testing.TB, servers int) pair {
	t.Helper()
	return startPairOf(t, servers, smallItems)
}

// startPairOf starts servers of a Memcached, and two proxies.
func startPairOf(t testing.TB, servers int, spec string) pair {
	t.Helper()
	f := startOf(t, servers, spec)
	command, err := memcached()
	require.NoError(t, err)
	return pair{f, []*proxyProcess{f.proxyProcess, startProxy(t, command, f.addresses, spec)}}
}

// use gives both proxies a list.
func (p pair) use(s contract.Servers) {
	p.Helper()
	p.proxies[0].use(s)
	time.Sleep(late)
	p.proxies[1].use(s)
}

// move changes the servers as the operator does: in phases, with items that move.
func (p pair) move(before, after []contract.Server, limit rate.Limit) {
	p.Helper()
	for _, phase := range []contract.Phase{contract.Purge, contract.PreferBefore, contract.PreferAfter} {
		s := contract.Servers{Phase: phase, Before: before, After: after}
		p.use(s)
		if phase != contract.PreferBefore {
			m := mover.Mover{Servers: s, Limit: limit}
			require.NoError(p.TB, m.Run(p.Context(), slog.New(slog.DiscardHandler)))
		}
	}
	p.use(contract.Servers{After: after})
}

// TestLateProxy: behind two proxies, of which one gets each list later, servers are added, removed and replaced. If
// items move, no key is lost, and no value is too old. Otherwise, both happen.
func TestLateProxy(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a minute, and a processor for itself")
	}
	t.Parallel()
	for name, moves := range map[string]bool{"items move": true, "items stay": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startPair(t, 4)
			all := servers(p.addresses...)
			p.use(contract.Servers{After: all[:3]})
			change := func(before, after []contract.Server) {
				if moves {
					p.move(before, after, 20000)
				} else {
					p.use(contract.Servers{After: after})
				}
			}
			var old, lost int64
			for _, step := range []struct {
				name string
				do   func()
			}{
				{"3 to 4 servers", func() { change(all[:3], all) }},
				{"4 to 3 servers", func() { change(all, all[:3]) }},
				{"every server replaced", func() {
					list, spare := slices.Clone(all[:3]), 3
					for position := range 4 { // the first position last gets the spare one of the others
						before, unused := slices.Clone(list), slices.Index(all, list[position%3])
						if position < 3 || moves {
							list[position%3] = all[spare]
						}
						if moves {
							change(before, list)
						}
						if position < 3 {
							p.servers[unused] = restart(t, p.servers[unused])
						}
						if moves {
							spare = unused
						} else {
							list = before
						}
					}
				}},
			} {
				c := &versions.Clients{Keys: 10000, Pause: time.Millisecond,
					Proxies: func() []string { return []string{p.proxies[0].proxy, p.proxies[1].proxy} }}
				stop := c.Start(6)
				step.do()
				stop()
				t.Logf("%s: %s", step.name, c)
				assert.NotZero(t, c.Reads.Load(), "reads")
				if old, lost = old+c.Old.Load(), lost+c.Lost.Load(); moves {
					assert.Zero(t, c.Errors.Load(), "errors")
				}
			}
			assert.Equal(t, moves, old == 0, "%d old values", old)
			assert.Equal(t, moves, lost == 0, "%d lost keys", lost)
		})
	}
}

// TestCounters: clients append to values and increment numbers, also of keys that are on their way to another server.
// Each change happens once.
func TestCounters(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a minute, and a processor for itself")
	}
	t.Parallel()
	const clients, keys = 6, 100
	p := startPair(t, 3)
	all := servers(p.addresses...)
	p.use(contract.Servers{After: all[:2]})
	var (
		running sync.WaitGroup
		changes atomic.Int64
		done    = make(chan struct{})
	)
	for i := range clients {
		running.Go(func() {
			var conns []client
			for _, proxy := range p.proxies {
				conns = append(conns, dial(t, proxy.proxy))
			}
			ask := func(format string, args ...any) []string { return conns[rand.IntN(2)].ask(format, args...) }
			for key := range keys {
				ask("set number-%d-%d 0 0 1\r\n0", i, key)
				ask("set text-%d-%d 0 0 0\r\n", i, key)
			}
			numbers, lengths := [keys]int{}, [keys]int{}
			for {
				select {
				case <-done:
					for key := range keys {
						want := fmt.Sprintf("VALUE text-%d-%d 0 %d", i, key, lengths[key])
						if answer := ask("get text-%d-%d", i, key); len(answer) != 3 || answer[0] != want {
							t.Errorf("got %q, want %s", answer, want)
						}
					}
					return
				default:
				}
				key := rand.IntN(keys)
				numbers[key]++
				if answer := ask("incr number-%d-%d 1", i, key); !slices.Equal(answer, []string{strconv.Itoa(numbers[key])}) {
					t.Errorf("got %q, want %d", answer, numbers[key])
					return
				}
				lengths[key]++
				if answer := ask("append text-%d-%d 0 0 1\r\nx", i, key); !slices.Equal(answer, []string{"STORED"}) {
					t.Errorf("got %q", answer)
					return
				}
				changes.Add(2)
				time.Sleep(time.Millisecond) // leave the processors to other tests
			}
		})
	}
	for range 2 {
		p.move(all[:2], all, 200)
		p.move(all, all[:2], 200)
	}
	close(done)
	running.Wait()
	t.Logf("%d changes", changes.Load())
	assert.NotZero(t, changes.Load(), "changes by clients")
}
