package proxy

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/agent/mover"
)

var measure = flag.Bool("measure", false, "measure gaps with 100,000 small items beside the large ones, while every "+
	"server is replaced, and also with a mover that has as much processor time as it needs")

const (
	large     = 64 // items
	largeItem = 4 << 20
	// polled is the number of small keys, and of large ones, that pollers read: fewer than move, so that each is read
	// about a thousand times a second.
	polled = 200
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

// TestGaps measures how long acknowledged keys are missing while they move, under load, with a mover that may use only
// a part of a processor. However slow it is, no item is lost, no value is old, and no request fails. No other test runs
// at the same time, because it would disturb the measurement.
func TestGaps(t *testing.T) {
	if testing.Short() {
		t.Skip("make moves runs it every night")
	}
	// With few small items, many large ones are in one batch of the mover, which takes seconds with so little time.
	small, replaced, limits := 100, 1, []float64{0.02}
	if *measure {
		small, replaced, limits = 100000, 3, []float64{0, 0.1}
	}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "CPU\tchange\tseconds\tkept small\tkept large\tload\tsmall: gaps\tmisses\tp50\tp99\tmax\t"+
		"large: gaps\tmisses\tp50\tp99\tmax")
	for _, limit := range limits {
		name := "unlimited"
		if limit > 0 {
			name = fmt.Sprintf("%.0fm", limit*1000)
		}
		t.Run(name, func(t *testing.T) {
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
				name  string
				moves func(key string) bool
				do    func()
			}{
				{"3 to 4", func(key string) bool { return mover.Position(key, 4) == 3 }, func() { change(all[:3], all) }},
				{"4 to 3", func(key string) bool { return mover.Position(key, 4) == 3 }, func() { change(all, all[:3]) }},
				{fmt.Sprint(replaced, " replaced"), func(key string) bool { return mover.Position(key, 3) < replaced }, func() {
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
				row := p.measure(small, step.moves, step.do)
				_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", name, step.name, row)
			}
		})
	}
	require.NoError(t, w.Flush())
	t.Log("\n" + table.String())
}

// measure changes the servers under load, and returns what it measured, as columns.
func (p pair) measure(small int, moves func(key string) bool, do func()) string {
	p.Helper()
	pollers := map[string][]*poller{}
	var stops []func()
	for kind, number := range map[string]int{"key": small, "large": large} {
		var keys []string
		for i := range number {
			if key := fmt.Sprintf("%s-%d", kind, i); moves(key) && len(keys) < polled {
				keys = append(keys, key)
			}
		}
		var stop func()
		pollers[kind], stop = p.startPollers(keys)
		stops = append(stops, stop)
	}
	c := p.clients(10000, time.Millisecond)
	stopClients := c.Start(6)
	begin := time.Now()
	do()
	seconds := time.Since(begin).Seconds()
	stopClients()
	for _, stop := range stops {
		stop()
	}
	keptSmall, keptLarge := p.kept(small)
	assert.Equal(p, small, keptSmall, "small items")
	assert.Equal(p, large, keptLarge, "large items")
	assert.Zero(p, c.Old.Load(), "old values: %s", c)
	assert.Zero(p, c.Errors.Load(), "errors: %s", c)
	// A client that reads in a gap counts the key as lost, though it comes back.
	load := fmt.Sprintf("%d requests, %d missed, %d old, %d errors", c.Reads.Load()+c.Writes.Load(), c.Lost.Load(),
		c.Old.Load(), c.Errors.Load())
	return fmt.Sprintf("%.0f\t%d\t%d\t%s\t%s\t%s", seconds, keptSmall, keptLarge, load, gapsOf(pollers["key"]),
		gapsOf(pollers["large"]))
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
