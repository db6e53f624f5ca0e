package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/textproto"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/example/memcached-operator/agent/mover"
)

// TestNoOldValues: while servers are added and removed, no client reads a value older than one whose write or delete
// was acknowledged, though the proxies load their lists at different times, and proxies, servers and the mover are
// killed.
func TestNoOldValues(t *testing.T) {
	t.Parallel()
	for name, kill := range map[string]func(*fleet, []*proxyProcess){
		"undisturbed":    func(*fleet, []*proxyProcess) {},
		"proxies killed": func(_ *fleet, proxies []*proxyProcess) { proxies[rand.IntN(len(proxies))].restart() },
		"servers killed": func(f *fleet, _ []*proxyProcess) { i := rand.IntN(3); f.servers[i] = restart(f.T, f.servers[i]) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := start(t, 3)
			command, err := memcached()
			require.NoError(t, err)
			proxies := []*proxyProcess{f.proxyProcess, startProxy(t, command, f.addresses)}
			grow := mover.Change{Before: f.addresses[:2], After: f.addresses}
			shrink := mover.Change{Before: f.addresses, After: f.addresses[:2]}
			for _, p := range proxies {
				p.change("", grow)
			}
			u := &users{proxies: []string{proxies[0].proxy, proxies[1].proxy}}
			stop := u.start(6)
			defer stop()
			for range 2 {
				for _, change := range []mover.Change{grow, shrink} {
					each := func(phase string, c mover.Change) {
						for _, p := range proxies {
							p.change(phase, c)
							kill(f, proxies)
						}
					}
					m := mover.Mover{Change: change, Limit: 2000}
					require.Eventually(t, func() bool { return m.Purge(t.Context()) == nil }, 10*time.Second, time.Second)
					each("1", change)
					each("2", change)
					ctx, cancel := context.WithTimeout(t.Context(), rand.N(50*time.Millisecond))
					_ = m.Move(ctx, slog.New(slog.DiscardHandler)) // is stopped on its way
					cancel()
					moved := make(chan error, 1)
					m.Limit = rate.Inf
					go func() { moved <- m.Move(t.Context(), slog.New(slog.DiscardHandler)) }()
					time.Sleep(rand.N(10 * time.Millisecond))
					kill(f, proxies)
					require.NoError(t, <-moved)
					each("", mover.Change{Before: change.After})
				}
			}
			stop()
			t.Logf("%d reads, %d hits, %d writes, %d errors", u.reads.Load(), u.hits.Load(), u.writes.Load(), u.errors.Load())
			assert.Zero(t, u.old.Load(), "values older than an acknowledged write or delete")
		})
	}
}

// restart kills memcached, and starts another one in its place.
func restart(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	return launch(t, cmd.Args)
}

func (f *proxyProcess) restart() { f.Cmd = restart(f.T, f.Cmd) }

// slots is the number of keys in use.
const slots = 300

// users are clients that write and read versions of keys.
type users struct {
	proxies []string
	least   [slots]atomic.Int64 // by slot: the least version that a client may read from now on
	// names has the number of the key that is in a slot. A key whose write had no success gets out of use: the write may
	// take effect later, after another one.
	names                            [slots]atomic.Int64
	reads, hits, writes, errors, old atomic.Int64
}

// start starts clients, and returns a function that stops them.
func (u *users) start(clients int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for i := range clients {
		running.Go(func() {
			c := &user{users: u, conns: map[string]*textproto.Conn{}, versions: map[int]int64{}}
			for ctx.Err() == nil {
				if rand.IntN(3) > 0 {
					c.read(rand.IntN(slots))
				} else {
					c.write(rand.IntN(slots/clients)*clients + i) // no other client writes this key
				}
			}
		})
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// user is one client.
type user struct {
	*users
	conns    map[string]*textproto.Conn
	versions map[int]int64 // of the keys that it writes
}

// ask sends a request to one of the proxies, and returns the lines of the answer.
func (u *user) ask(format string, args ...any) ([]string, error) {
	address := u.proxies[rand.IntN(len(u.proxies))]
	conn := u.conns[address]
	if conn == nil {
		var err error
		if conn, err = textproto.Dial("tcp", address); err != nil {
			return nil, err
		}
		u.conns[address] = conn
	}
	answer, err := ask(conn, fmt.Sprintf(format, args...))
	if err != nil {
		_ = conn.Close()
		delete(u.conns, address)
	}
	return answer, err
}

func (u *users) key(slot int) string { return fmt.Sprintf("key-%d-%d", slot, u.names[slot].Load()) }

func (u *user) read(slot int) {
	least := u.least[slot].Load() // before the key, whose versions only grow
	key := u.key(slot)
	answer, err := u.ask("get %s", key)
	u.reads.Add(1)
	switch {
	case err != nil:
		u.errors.Add(1)
	case strings.HasPrefix(answer[0], "VALUE "):
		u.hits.Add(1)
		if version, err := strconv.ParseInt(answer[1], 10, 64); err != nil || version < least {
			u.old.Add(1)
		}
	}
}

// write writes a version, or deletes the key: then only a later version may be read.
func (u *user) write(slot int) {
	u.versions[slot]++
	version, key := u.versions[slot], u.key(slot)
	var answer []string
	var err error
	if rand.IntN(4) == 0 {
		answer, err = u.ask("delete %s", key)
	} else {
		answer, err = u.ask("set %s 0 0 %d\r\n%d", key, len(strconv.FormatInt(version, 10)), version)
	}
	u.writes.Add(1)
	if err != nil || strings.HasPrefix(answer[0], "SERVER_ERROR") {
		u.errors.Add(1)
		u.least[slot].Store(0)
		u.names[slot].Add(1)
		return
	}
	u.least[slot].Store(version)
}
