package proxy

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/example/memcached-operator/agent/contract"
)

var many = flag.Bool("many", false, "move 100,000 small items beside the large ones, while every server is replaced")

const (
	large     = 64 // items
	largeItem = 4 << 20
)

var smallValue = strings.Repeat("x", 100) // as fill writes it

func largeValue(i int) string { return strings.Repeat(string(rune('a'+i%26)), largeItem) }

// startLarge starts two proxies and their servers, which store large items.
func startLarge(t testing.TB, number int) pair {
	t.Helper()
	p := startPair(t, 0)
	p.makePatient()
	command, err := memcached()
	require.NoError(t, err)
	for range number {
		cmd, address := run(t, append(slices.Clone(command), "-m", "512", "-I", "8m"))
		p.servers, p.addresses = append(p.servers, cmd), append(p.addresses, address)
	}
	for _, proxy := range p.proxies {
		args := proxy.Args
		end := slices.Index(args, "-u") // launch needs the address and the port as the last arguments
		proxy.Args = slices.Concat(args[:end], []string{"-I", "8m"}, args[end:])
		proxy.restart()
		proxy.client = dial(t, proxy.proxy)
	}
	return p
}

// TestSlowMover: a mover that may use only a part of a processor moves large items under load. However slow it is, no
// item is lost, no value is old, and no request fails. No other test runs at the same time: it would be slow, too.
func TestSlowMover(t *testing.T) {
	if testing.Short() {
		t.Skip("make moves runs it every night")
	}
	// With few small items, many large ones are in one batch of the mover, which takes seconds with so little time.
	small, replaced, limit := 100, 1, 0.02
	if *many {
		small, replaced, limit = 100000, 3, 0.1
	}
	p := startLarge(t, 4)
	all := servers(p.addresses...)
	p.use(contract.Servers{After: all[:3]})
	fill(t, p.proxy, small, len(smallValue))
	for i := range large {
		stored := p.ask("set large-%d 0 0 %d\r\n%s", i, largeItem, largeValue(i))
		require.Equal(t, []string{"STORED"}, stored)
	}
	change := func(before, after []contract.Server) {
		p.change(contract.Servers{Before: before, After: after}, p.use,
			func(s contract.Servers) { require.NoError(t, moverProcess(t, s, limit).Run()) })
	}
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"3 to 4", func() { change(all[:3], all) }},
		{"4 to 3", func() { change(all, all[:3]) }},
		{fmt.Sprint(replaced, " replaced"), func() {
			list, spare := slices.Clone(all[:3]), 3
			for n := range replaced {
				before, old := slices.Clone(list), slices.Index(all, list[n])
				list[n], spare = all[spare], old
				change(before, list)
				p.servers[old] = restart(t, p.servers[old])
			}
			before := slices.Clone(list) // the first position had the spare server, which is removed
			list[0] = all[spare]
			change(before, list)
		}},
	} {
		c := p.clients(10000, time.Millisecond)
		stop, begin := c.Start(6), time.Now()
		step.do()
		seconds := time.Since(begin).Seconds()
		stop()
		t.Logf("%s in %.0f s: %s", step.name, seconds, c) // a client that reads a key on its way counts it as lost
		keptSmall, keptLarge := p.kept(small)
		assert.Equal(t, small, keptSmall, "small items")
		assert.Equal(t, large, keptLarge, "large items")
		assert.Zero(t, c.Old.Load(), "old values")
		assert.Zero(t, c.Errors.Load(), "errors")
	}
}

// kept returns how many items the cache still has unchanged.
func (p pair) kept(small int) (keptSmall, keptLarge int) {
	p.Helper()
	client := dial(p.TB, p.proxy)
	conn := client.conn
	for i := range small {
		_, _ = fmt.Fprintf(conn.W, "mg key-%d v\r\n", i)
		if (i+1)%1000 != 0 && i+1 < small { // pipelined, but not so many that both sides wait for the other one to read
			continue
		}
		require.NoError(p, conn.W.Flush())
		for range i%1000 + 1 {
			line, err := conn.ReadLine()
			require.NoError(p, err)
			if strings.HasPrefix(line, "VA ") {
				line, err = conn.ReadLine()
				require.NoError(p, err)
			}
			if line == smallValue {
				keptSmall++
			}
		}
	}
	for i := range large {
		if answer := client.ask("get large-%d", i); len(answer) == 3 && answer[1] == largeValue(i) {
			keptLarge++
		}
	}
	return keptSmall, keptLarge
}
