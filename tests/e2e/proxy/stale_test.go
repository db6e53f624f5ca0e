package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/agent/mover"
	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/tests/versions"
)

// TestNoOldValues: while servers are added and removed, no client reads a value older than one whose write or delete
// was acknowledged, though the proxies load their lists at different times, and proxies, servers and the mover are
// killed.
func TestNoOldValues(t *testing.T) {
	t.Parallel()
	for name, kill := range map[string]func(*fleet, []*proxyProcess){
		"undisturbed":    func(*fleet, []*proxyProcess) {},
		"proxies killed": func(_ *fleet, proxies []*proxyProcess) { proxies[rand.IntN(len(proxies))].restart() },
		"servers killed": func(f *fleet, _ []*proxyProcess) { i := rand.IntN(3); f.servers[i] = restart(f.TB, f.servers[i]) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startPair(t, 3)
			proxies := f.proxies
			all := servers(f.addresses...)
			grow := contract.Servers{Before: all[:2], After: all}
			shrink := contract.Servers{Before: all, After: all[:2]}
			for _, p := range proxies {
				p.use(contract.Servers{After: grow.Before})
			}
			c := &versions.Clients{Keys: 300, Proxies: func() []string { return []string{proxies[0].proxy, proxies[1].proxy} }}
			stop := c.Start(6)
			defer stop()
			rounds := 2
			if testing.Short() {
				rounds = 1
			}
			for range rounds {
				for _, change := range []contract.Servers{grow, shrink} {
					each := func(s contract.Servers) {
						for _, p := range proxies {
							p.use(s)
							kill(f.fleet, proxies)
						}
					}
					move := func(limit rate.Limit, timeout time.Duration) error {
						ctx, cancel := context.WithTimeout(t.Context(), timeout)
						defer cancel()
						m := mover.Mover{Servers: change, Limit: limit}
						return m.Run(ctx, slog.New(slog.DiscardHandler))
					}
					for _, phase := range []contract.Phase{contract.Purge, contract.PreferBefore, contract.PreferAfter} {
						change.Phase = phase
						each(change)
						if phase == contract.PreferBefore {
							continue
						}
						_ = move(2000, rand.N(50*time.Millisecond)) // is stopped on its way
						moved := make(chan error, 1)
						go func() { moved <- move(rate.Inf, time.Minute) }()
						time.Sleep(rand.N(10 * time.Millisecond))
						kill(f.fleet, proxies)
						require.NoError(t, <-moved)
					}
					each(contract.Servers{After: change.After})
				}
			}
			stop()
			t.Log(c)
			assert.NotZero(t, c.Reads.Load(), "reads")
			assert.Zero(t, c.Old.Load(), "values older than an acknowledged write or delete")
			if name != "servers killed" {
				assert.Zero(t, c.Lost.Load(), "lost keys")
			}
			harness.Eventually(t, "no placeholder is left", harness.Patience, f.hasPlaceholders)
			dial(t, f.addresses[0]).ask("ms placeholder 0 E%d\r\n", uint64(1<<62))
			assert.Error(t, f.hasPlaceholders(), "a placeholder is not noticed")
		})
	}
}

// hasPlaceholders returns an error if a server has an item with the CAS of a placeholder, as package mover says.
func (f *fleet) hasPlaceholders() error {
	for _, address := range f.addresses {
		conn := dial(f.TB, address).conn
		err := conn.PrintfLine("lru_crawler metadump all")
		for err == nil {
			var line string
			if line, err = conn.ReadLine(); err != nil || line == "END" {
				break
			}
			var cas uint64
			if _, number, ok := strings.Cut(line, " cas="); ok {
				_, err = fmt.Sscan(number, &cas)
			} else if line != "OK" {
				err = errors.New(line)
			}
			if err == nil && cas >= 1<<62 {
				err = fmt.Errorf("%s has %s", address, line)
			}
		}
		if err := errors.Join(err, conn.Close()); err != nil {
			return err
		}
	}
	return nil
}

// restart kills memcached, and starts another one in its place.
func restart(t testing.TB, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	return launch(t, cmd.Args)
}

func (f *proxyProcess) restart() { f.Cmd = restart(f.TB, f.Cmd) }
