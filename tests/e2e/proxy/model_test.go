package proxy

import (
	"context"
	"encoding/base64"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/textproto"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/internal/testing/harness"
)

// lasts is for how long TestModel changes the servers.
var lasts = flag.Duration("model", 15*time.Second, "how long the model test changes the servers")

// model are clients that send random requests to proxies and to one memcached, and compare the answers. Each client has
// keys of its own, so that the one memcached answers as the proxies must, whatever the others do.
type model struct {
	testing.TB
	proxies, single func() string
	requests        []request
	stop            chan struct{}

	operations, disconnected atomic.Int64
	mu                       sync.Mutex
	differences              []string
}

// TestModel: while the servers change, proxies in neighboring phases answer many clients as one memcached would, though
// the mover is stopped, paused, and replaced by another one, and proxies are killed.
func TestModel(t *testing.T) {
	t.Parallel()
	p := startPairOf(t, 3, largeItems)
	all, here := servers(p.addresses...), func(s contract.Servers) contract.Servers { return s }
	m := p.model(t, all)
	var running sync.WaitGroup
	for range 8 {
		running.Go(m.run)
	}
	changes := 0
	for begin := time.Now(); time.Since(begin) < *lasts && !m.differ(); changes++ {
		p.disturb(followUps(all)[changes%4], here, changes%3 == 2)
	}
	close(m.stop)
	running.Wait()
	t.Logf("%d changes of the servers, %d operations, %d disconnected, %d differences", changes, m.operations.Load(),
		m.disconnected.Load(), len(m.differences))
	assert.Empty(t, m.differences)
	assert.NotZero(t, m.operations.Load(), "operations")
}

// TestModelNotices: the model notices when the proxies treat a request wrongly, here "ms" with the mode "set", which
// Ruby's client sends. The proxies are far from the servers, so that an item often moves between two of their requests.
func TestModelNotices(t *testing.T) {
	t.Parallel()
	p := startPairOf(t, 3, largeItems)
	network, all := newNetwork(t, servers(p.addresses...), 5*time.Millisecond)
	m := p.model(t, all, `mode == "S" and not has("C")`, `mode == "S" and not has("C") and not has("M")`,
		`return command ~= mcp.CMD_CAS`, `return command ~= mcp.CMD_MS and command ~= mcp.CMD_CAS`)
	m.requests = slices.DeleteFunc(m.requests, func(r request) bool {
		return r.text != "get KEY" && r.text != "ms KEY SIZE MS DATA"
	})
	var running sync.WaitGroup
	for range 64 {
		running.Go(m.run)
	}
	for changes := 0; !m.differ() && changes < 40; changes++ {
		p.disturb(followUps(all)[changes%4], network.without, false)
	}
	close(m.stop)
	running.Wait()
	t.Logf("%d operations, %q", m.operations.Load(), m.differences)
	assert.NotEmpty(t, m.differences)
}

// largeItems is a Memcached whose items may have some MiB.
const largeItems = `{workload: StatefulSet, memory: 1Gi, maxItemSize: 8Mi, proxy: {memory: 256Mi}}`

// followUps returns changes of three servers that follow one another, again and again.
func followUps(all []contract.Server) []contract.Servers {
	swapped := []contract.Server{all[0], all[2]}
	return []contract.Servers{
		{Before: all[:2], After: all},
		{Before: all, After: all[:2]},
		{Before: all[:2], After: swapped},
		{Before: swapped, After: all[:2]},
	}
}

// disturb changes the servers as the operator does. While items move, the mover is stopped after a moment, and another
// one, which is a process, is paused again and again; with kills, a proxy is killed too. The function near returns the
// servers with their addresses for the mover.
func (p pair) disturb(s contract.Servers, near func(contract.Servers) contract.Servers, kills bool) {
	p.Helper()
	p.change(s, p.use, func(s contract.Servers) {
		ctx, cancel := context.WithTimeout(p.Context(), rand.N(100*time.Millisecond))
		_ = move(ctx, near(s), 300)
		cancel()
		cmd := moverProcess(p.TB, near(s), 0)
		require.NoError(p, cmd.Start())
		moved := make(chan error, 1)
		go func() { moved <- cmd.Wait() }()
		for len(moved) == 0 {
			time.Sleep(rand.N(50 * time.Millisecond))
			_ = cmd.Process.Signal(syscall.SIGSTOP) // it may have ended
			time.Sleep(rand.N(100 * time.Millisecond))
			_ = cmd.Process.Signal(syscall.SIGCONT)
			if kills && rand.IntN(20) == 0 {
				p.proxies[rand.IntN(2)].restart()
			}
		}
		require.NoError(p, <-moved)
	})
}

// model returns clients of the proxies, which use the first two servers. The texts change their program, as in
// makePatient.
func (p pair) model(t testing.TB, all []contract.Server, changes ...string) *model {
	t.Helper()
	p.makePatient(changes...)
	command, err := memcached()
	require.NoError(t, err)
	_, address := run(t, slices.Concat(command, []string{"-m", "1024", "-I", "8m"}))
	p.use(contract.Servers{After: all[:2]})
	return &model{TB: t, stop: make(chan struct{}), single: func() string { return address },
		proxies: func() string { return p.proxies[rand.IntN(2)].proxy },
		requests: slices.DeleteFunc(readRequests(t), func(r request) bool {
			return r.text == "md KEY I T3000" || r.text == "mg KEY N300 v" // the mover drops what is stale or not set
		})}
}

func (m *model) differ() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.differences) > 0
}

// clients numbers them.
var clients atomic.Int64

// run sends requests until the model is stopped. A key gets out of use once a request has had no answer.
func (m *model) run() {
	client := clients.Add(1)
	conns, generation := map[string]*textproto.Conn{}, 0
	defer func() {
		for _, conn := range conns {
			_ = conn.Close()
		}
	}()
	exchange := func(address, text string) (answer []string, err error) {
		conn := conns[address]
		if conn == nil {
			plain, err := net.Dial("tcp", address)
			if err != nil {
				return nil, err
			}
			conn = textproto.NewConn(plain)
			conns[address] = conn
		}
		late := time.AfterFunc(harness.Patience, func() { _ = conn.Close() })
		defer late.Stop()
		if answer, err = ask(conn, text); err != nil {
			_ = conn.Close()
			delete(conns, address)
		}
		return answer, err
	}
	for {
		select {
		case <-m.stop:
			return
		default:
		}
		number := rand.IntN(30)
		key := fmt.Sprintf("key-%d-%d-%d", client, generation, number)
		binary := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "\n%d\r\n %d \x00%d", client, generation, number))
		r, value := m.requests[rand.IntN(len(m.requests))], randomValue()
		if number < 8 { // its value is a number: an error of a server costs the proxy's connection
			value = strconv.Itoa(rand.IntN(1000))
			if notNumeric.MatchString(r.text) {
				continue
			}
		} else if numeric.MatchString(r.text) {
			continue
		}
		cas := [2]string{"999999999999", "999999999999"}
		sequence := []string{r.fill(key, binary, value, "CAS")}
		if strings.Contains(r.text, "CAS") && rand.IntN(4) > 0 {
			sequence = append([]string{"mg " + key + " c"}, sequence...)
		}
		if strings.HasPrefix(r.text, "m") && r.text != "me KEY" && rand.IntN(5) == 0 {
			sequence[len(sequence)-1] = quiet(sequence[len(sequence)-1])
		}
		var history []string
		for _, text := range sequence {
			want, err := exchange(m.single(), strings.ReplaceAll(text, "CAS", cas[0]))
			require.NoError(m, err)
			got, err := exchange(m.proxies(), strings.ReplaceAll(text, "CAS", cas[1]))
			if err != nil {
				m.disconnected.Add(1)
				generation++
				break
			}
			m.operations.Add(1)
			cas = [2]string{casOf(want, cas[0]), casOf(got, cas[1])}
			history = append(history, fmt.Sprintf("%.60q: %.60q", text, got))
			if want, got := inCommon(want), inCommon(got); !slices.Equal(want, got) {
				m.mu.Lock()
				m.differences = append(m.differences, fmt.Sprintf("%.200s: want %.60q", history, want))
				m.mu.Unlock()
			}
		}
	}
}

// numeric matches requests that need a number, and notNumeric those after which there may be none.
var numeric, notNumeric = regexp.MustCompile(`^(incr|decr|ma) `), regexp.MustCompile(`^(ap|pre)pend|M[AP]| x$`)

// quiet adds the flag q to a meta command.
func quiet(text string) string {
	line, value, ok := strings.Cut(text, "\r\n")
	if line += " q"; ok {
		line += "\r\n" + value
	}
	return line
}

// randomValue returns a number, or a text of up to 4 MiB, mostly a short one.
func randomValue() string {
	switch n := rand.IntN(1000); {
	case n < 600:
		return strconv.Itoa(n)
	case n < 998:
		return strings.Repeat("x", rand.IntN(1<<rand.IntN(14)))
	}
	return strings.Repeat("x", rand.IntN(4<<20))
}

// casUnique matches the number that identifies a version of an item, in the answers to gets and to meta commands, and
// seconds a time to live.
var casUnique, seconds = regexp.MustCompile(`( c|^VALUE \S+ \d+ \d+ )(\d+)`), regexp.MustCompile(`( t)(\d+)`)

func casOf(answer []string, otherwise string) string {
	for _, line := range answer {
		if m := casUnique.FindStringSubmatch(line); m != nil {
			return m[2]
		}
	}
	return otherwise
}

// inCommon returns an answer without what two servers need not have in common: an item that lives for about an hour may
// have lost minutes.
func inCommon(answer []string) (list []string) {
	for _, line := range answer {
		line = seconds.ReplaceAllStringFunc(casUnique.ReplaceAllString(line, "${1}N"), func(text string) string {
			n, _ := strconv.Atoi(text[2:])
			return fmt.Sprintf(" t~%d", len(strconv.Itoa(n+500))) // 300 s have three digits, and 3000 s four
		})
		if strings.HasPrefix(line, "ME ") {
			line = "ME"
		}
		list = append(list, line)
	}
	return list
}
