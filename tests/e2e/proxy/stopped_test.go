package proxy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/tests/versions"
)

// TestStoppedMover: the mover is stopped 20 times while it moves items, each time for as long as a limit of its
// processor time may stop it. Clients use hot keys meanwhile. They read no old value, no request fails, and a key is
// missing only while it is on its way: so few reads miss it that a client that reads again finds it. No other test runs
// at the same time, because reading needs the processors.
func TestStoppedMover(t *testing.T) {
	if testing.Short() {
		t.Skip("make moves runs it every night")
	}
	const (
		hot, others = 300, 20000
		stops       = 20
		stopped     = 300 * time.Millisecond
		running     = 30 * time.Millisecond
	)
	p := startPair(t, 4)
	p.makePatient()
	all := servers(p.addresses...)
	// The mover is far from the servers: each item is nowhere for as long as a request takes, and not only for a moment.
	network, _ := newNetwork(t, all, time.Millisecond)
	p.use(contract.Servers{After: all[:2]})
	fill(t, p.proxy, others, len(smallValue))
	c := &versions.Clients{Keys: hot, Pause: time.Millisecond,
		Proxies: func() []string { return []string{p.proxies[0].proxy, p.proxies[1].proxy} }}
	stopClients := c.Start(6)
	var keys []string
	for i := range 1000 {
		keys = append(keys, fmt.Sprintf("key-%d", i))
	}
	pollers, stopPollers := p.startPollers(keys)
	moved := func() int { return items(t, p.addresses[2]) + items(t, p.addresses[3]) } // to these, or from these
	run := func(s contract.Servers) {
		cmd := moverProcess(t, network.with(s), 0)
		require.NoError(t, cmd.Start())
		atLastStop := 0
		if s.Phase == contract.PreferAfter {
			for range stops / 2 {
				time.Sleep(rand.N(2 * running))
				require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
				atLastStop = moved()
				time.Sleep(stopped)
				require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
			}
		}
		require.NoError(t, cmd.Wait())
		if s.Phase == contract.PreferAfter {
			difference := math.Abs(float64(moved() - atLastStop))
			assert.Greater(t, difference, float64(hot), "the mover had moved all items when it was last stopped")
		}
	}
	p.change(all[:2], all, run)
	p.change(all, all[:2], run)
	stopClients()
	stopPollers()
	kept, _ := p.kept(others)
	t.Logf("clients: %s; %d of %d other items kept", c, kept, others)
	t.Logf("1,000 of the other items: gaps, misses of reads, p50, p99, max: %s", gapsOf(pollers))
	assert.Equal(t, others, kept)
	assert.Zero(t, c.Old.Load(), "old values")
	assert.Zero(t, c.Errors.Load(), "errors")
	assert.Less(t, c.Lost.Load()*1000, c.Reads.Load(), "a thousandth of the reads may miss a key on its way")
}

// items returns the number of items that a server holds.
func items(t testing.TB, address string) int {
	t.Helper()
	for _, line := range dial(t, address).ask("stats") {
		if text, ok := strings.CutPrefix(line, "STAT curr_items "); ok {
			n, err := strconv.Atoi(text)
			require.NoError(t, err)
			return n
		}
	}
	t.Fatalf("%s does not say how many items it has", address)
	return 0
}
