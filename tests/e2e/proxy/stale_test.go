package proxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/internal/testing/harness"
)

// late is how much later the second proxy gets each list, if it is late.
const late = 300 * time.Millisecond

// TestNoOldValues: while servers are added, removed and replaced, no client reads a value older than one whose write or
// delete was acknowledged, though the proxies load their lists at different times, and proxies, servers and the mover
// are killed.
func TestNoOldValues(t *testing.T) {
	t.Parallel()
	for name, disturb := range map[string]func(pair){
		"undisturbed":     func(pair) {},
		"a proxy is late": func(pair) { time.Sleep(late) },
		"proxies killed":  func(p pair) { p.proxies[rand.IntN(len(p.proxies))].restart() },
		"servers killed":  func(p pair) { i := rand.IntN(3); p.servers[i] = restart(p.TB, p.servers[i]) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startPair(t, 3)
			all := servers(p.addresses...)
			p.use(contract.Servers{After: all[:2]})
			c := p.clients(300, 0)
			stop := c.Start(6)
			defer stop()
			rounds := 2
			if testing.Short() {
				rounds = 1
			}
			for range rounds {
				for _, s := range followUps(all) {
					p.change(s, func(s contract.Servers) {
						for _, proxy := range p.proxies {
							proxy.use(s)
							disturb(p)
						}
					}, func(s contract.Servers) {
						stopped, cancel := context.WithTimeout(t.Context(), rand.N(50*time.Millisecond))
						_ = move(stopped, s, 2000) // is stopped on its way
						cancel()
						moved := make(chan error, 1)
						go func() {
							ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
							defer cancel()
							moved <- move(ctx, s, rate.Inf)
						}()
						time.Sleep(rand.N(10 * time.Millisecond))
						disturb(p)
						require.NoError(t, <-moved)
					})
				}
			}
			stop()
			t.Log(c)
			assert.NotZero(t, c.Reads.Load(), "reads")
			assert.Zero(t, c.Old.Load(), "values older than an acknowledged write or delete")
			if name != "servers killed" {
				assert.Zero(t, c.Lost.Load(), "lost keys")
			}
			harness.Eventually(t, "no placeholder is left", harness.Patience, p.hasPlaceholders)
			dial(t, p.addresses[0]).ask("ms placeholder 0 E%d\r\n", uint64(1<<62))
			assert.Error(t, p.hasPlaceholders(), "a placeholder is not noticed")
		})
	}
}

// TestClientsNotice: if items do not move, the clients of TestNoOldValues find lost keys and old values.
func TestClientsNotice(t *testing.T) {
	t.Parallel()
	p := startPair(t, 3)
	all := servers(p.addresses...)
	p.use(contract.Servers{After: all})
	c := p.clients(300, time.Millisecond)
	stop := c.Start(6)
	for range 3 { // each key is on another server, and then again on the one that has its old value
		p.use(contract.Servers{After: []contract.Server{all[1], all[2], all[0]}})
		time.Sleep(late)
		p.use(contract.Servers{After: all})
		time.Sleep(late)
	}
	stop()
	assert.NotZero(t, c.Lost.Load(), "lost keys")
	assert.NotZero(t, c.Old.Load(), "old values")
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
