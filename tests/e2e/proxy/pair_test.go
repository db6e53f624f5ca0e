package proxy

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/agent/mover"
	"github.com/example/memcached-operator/tests/versions"
)

// pair is two proxies with the same servers. The second one gets each list of servers once the first one uses the list.
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
	for _, proxy := range p.proxies {
		proxy.use(s)
	}
}

// change changes the servers as the operator does, in phases: use gives the proxies a list, and run moves items.
func (p pair) change(s contract.Servers, use, run func(contract.Servers)) {
	p.Helper()
	for _, phase := range []contract.Phase{contract.Purge, contract.PreferBefore, contract.PreferAfter} {
		s.Phase = phase
		use(s)
		if phase != contract.PreferBefore {
			run(s)
		}
	}
	use(contract.Servers{After: s.After})
}

// move moves items as the agent does.
func move(ctx context.Context, s contract.Servers, limit rate.Limit) error {
	m := mover.Mover{Servers: s, Limit: limit}
	return m.Run(ctx, slog.New(slog.DiscardHandler))
}

// clients returns clients that use keys through both proxies.
func (p pair) clients(keys int, pause time.Duration) *versions.Clients {
	return &versions.Clients{Keys: keys, Pause: pause,
		Proxies: func() []string { return []string{p.proxies[0].proxy, p.proxies[1].proxy} }}
}

// makePatient lets proxies wait longer for servers and for items on their way. Otherwise, where other programs take the
// processors for half a second, a server is unreachable and its keys are missing, which these tests would count. It
// changes other texts of the program, too: each to the next one.
func (p pair) makePatient(changes ...string) {
	p.Helper()
	changes = append(changes, "connect_timeout(0.25)", "connect_timeout(10)", "read_timeout(0.5)", "read_timeout(10)",
		"sleep(0.002", "sleep(0.02")
	for _, proxy := range p.proxies {
		name := filepath.Join(proxy.directory, "proxy.lua")
		program, err := os.ReadFile(name)
		require.NoError(p, err)
		text := string(program)
		for change := range slices.Chunk(changes, 2) {
			require.Contains(p, text, change[0])
			text = strings.ReplaceAll(text, change[0], change[1])
		}
		proxy.write("proxy.lua", text)
		proxy.restart()
		proxy.client = dial(p.TB, proxy.proxy)
	}
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
