package proxy

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/agent/mover"
)

// moveLimit is that of the agent.
const moveLimit rate.Limit = 20000

// moveEnv makes the test binary move items: an agent of its own, whose memory can be measured. The value has the files
// of a list of servers, in JSON.
const moveEnv = "MOVE_ITEMS"

func TestMain(m *testing.M) {
	text := os.Getenv(moveEnv)
	if text == "" {
		os.Exit(m.Run())
	}
	var files map[string]string
	err := json.Unmarshal([]byte(text), &files)
	if err == nil {
		err = move(context.Background(), contract.ParseServers(files), moveLimit)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// floor is the least that a proxy can do: one pool, and no phases.
const floor = `
function mcp_config_pools()
  local list = {}
  for line in io.lines("/etc/memcached/proxy/servers") do
    local name, address, port = line:match("^([^ ]+) (.-):(%d+)$")
    table.insert(list, mcp.backend(name, address, tonumber(port)))
  end
  return mcp.pool(list, { iothread = false })
end

function mcp_config_routes(pool)
  local route = mcp.funcgen_new()
  local handle = route:new_handle(pool)
  route:ready({ f = function(rctx)
    return function(request) return rctx:enqueue_and_wait(request, handle) end -- for each request
  end })
  mcp.attach(mcp.CMD_ANY_STORAGE, route)
end
`

// BenchmarkProxy measures reads through the proxy, side by side with a proxy that only has one pool: at rest, in the
// phase before items move, and while they move. An iteration measures each once. CPU is that of the proxy, and ratios
// are to the proxy with one pool.
func BenchmarkProxy(b *testing.B) {
	const keys, reads = 60000, 20000
	f := start(b, 3)
	command, err := memcached()
	require.NoError(b, err)
	simple := startProxy(b, command, f.addresses[:2], smallItems)
	simple.write("proxy.lua", strings.ReplaceAll(floor, "/etc/memcached/proxy", simple.directory))
	simple.restart()
	all := servers(f.addresses...)
	change := func(phase contract.Phase) contract.Servers {
		return contract.Servers{Phase: phase, Before: all[:2], After: all}
	}
	type figures struct {
		cpu   float64
		times []time.Duration
	}
	total := map[string]*figures{}
	measure := func(name string, p *proxyProcess, while func() bool) {
		before := cpuOf(b, p.Process.Pid)
		times := read(b, p.proxy, keys, reads, while)
		if total[name] == nil {
			total[name] = &figures{}
		}
		total[name].cpu += cpuOf(b, p.Process.Pid) - before
		total[name].times = append(total[name].times, times...)
	}
	always := func() bool { return true }
	for range b.N {
		f.use(contract.Servers{After: all[:2]})
		fill(b, f.proxy, keys, 100)
		measure("floor", simple, always)
		measure("rest", f.proxyProcess, always)
		f.use(change(contract.PreferBefore))
		measure("before", f.proxyProcess, always)
		f.use(change(contract.PreferAfter))
		moved := make(chan error, 1)
		m := mover.Mover{Servers: change(contract.PreferAfter), Limit: moveLimit}
		go func() { moved <- m.Run(b.Context(), slog.New(slog.DiscardHandler)) }()
		measure("moving", f.proxyProcess, func() bool { return m.Percent() < 99 })
		require.NoError(b, <-moved)
		f.use(contract.Servers{After: all})
		for _, s := range all {
			dial(b, s.Address).ask("flush_all")
		}
	}
	b.ReportMetric(0, "ns/op")
	least := total["floor"]
	slices.Sort(least.times)
	perRead := func(f *figures) float64 { return f.cpu / float64(len(f.times)) * 1e6 }
	for name, f := range total {
		slices.Sort(f.times)
		b.ReportMetric(perRead(f), name+"-µs-cpu/read")
		b.ReportMetric(perRead(f)/perRead(least), name+"-cpu-ratio")
		for _, percent := range []int{50, 99} {
			ratio := f.times[len(f.times)*percent/100].Seconds() / least.times[len(least.times)*percent/100].Seconds()
			b.ReportMetric(ratio, fmt.Sprintf("%s-p%d-ratio", name, percent))
		}
	}
}

// BenchmarkMove measures what moving 1 GiB from one server to another costs: an agent of the size that the operator
// gives it by default, and the servers.
func BenchmarkMove(b *testing.B) {
	const keys, size = 1 << 20, 1 << 10
	command, err := memcached()
	require.NoError(b, err)
	program, err := os.Executable()
	require.NoError(b, err)
	for range b.N {
		var pids []int
		var addresses []string
		for range 2 {
			cmd, address := run(b, append(slices.Clone(command), "-m", "2048"))
			pids, addresses = append(pids, cmd.Process.Pid), append(addresses, address)
		}
		fill(b, addresses[0], keys, size)
		all := servers(addresses...)
		text, err := json.Marshal(contract.Servers{Phase: contract.PreferAfter, Before: all[:1], After: all[1:]}.Files())
		require.NoError(b, err)
		cmd := exec.CommandContext(b.Context(), program)
		cmd.Env = append(os.Environ(), moveEnv+"="+string(text), "GOMAXPROCS=1",
			"GOMEMLIMIT="+contract.GoMemoryLimit(contract.MemoryLimit+4<<20))
		cmd.Stderr = os.Stderr
		cpu, begin := cpuOf(b, pids[0])+cpuOf(b, pids[1]), time.Now()
		require.NoError(b, cmd.Run())
		duration := time.Since(begin).Seconds()
		usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
		require.Contains(b, dial(b, addresses[1]).ask("stats"), fmt.Sprintf("STAT curr_items %d", keys))
		b.ReportMetric(duration, "s")
		b.ReportMetric(float64(usage.Maxrss)/1024, "agent-MiB")
		b.ReportMetric((cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()).Seconds()/duration, "agent-cpus")
		b.ReportMetric((cpuOf(b, pids[0])+cpuOf(b, pids[1])-cpu)/duration/2, "server-cpus")
	}
}

// cpuOf returns the seconds of processor time that a process has used.
func cpuOf(t testing.TB, pid int) float64 {
	t.Helper()
	p, err := procfs.NewProc(pid)
	require.NoError(t, err)
	stat, err := p.Stat()
	require.NoError(t, err)
	return stat.CPUTime()
}

// fill writes keys with values of this size.
func fill(t testing.TB, address string, keys, size int) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	w, value := bufio.NewWriterSize(conn, 1<<20), bytes.Repeat([]byte("x"), size)
	for i := range keys {
		_, _ = fmt.Fprintf(w, "set key-%d 0 0 %d noreply\r\n%s\r\n", i, size, value)
	}
	_, _ = fmt.Fprint(w, "mn\r\n")
	require.NoError(t, w.Flush())
	answer, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "MN\r\n", answer)
}

// read reads random keys with four clients, as long as while returns true, and returns how long the reads took.
func read(t testing.TB, address string, keys, reads int, while func() bool) []time.Duration {
	t.Helper()
	const clients = 4
	lists := make([][]time.Duration, clients)
	var running sync.WaitGroup
	for i := range clients {
		conn := dial(t, address).conn
		running.Go(func() {
			for n := 0; n < reads/clients && while(); n++ {
				begin := time.Now()
				err := conn.PrintfLine("mg key-%d v", (n*clients+i)*7919%keys)
				line, err2 := conn.ReadLine()
				if err = cmp.Or(err, err2); err == nil && strings.HasPrefix(line, "VA ") {
					_, err = conn.ReadLine()
				}
				if err != nil {
					t.Error(err)
					return
				}
				lists[i] = append(lists[i], time.Since(begin))
			}
		})
	}
	running.Wait()
	return slices.Concat(lists...)
}
