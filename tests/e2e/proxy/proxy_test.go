// Package proxy tests memcached's proxy as the operator configures it, with Debian's memcached. Proxy and servers are
// processes of this machine, so that a test can freeze a server.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/internal/testing/manifest"
	"github.com/example/memcached-operator/tests/cluster"
)

const miss = "END"

// unreachable is the answer to a write while the server is unavailable.
const unreachable = "SERVER_ERROR server unreachable"

// TestUnreachable: while a server is unavailable, the proxy answers reads of its keys with misses and writes with
// errors; it does not answer requests with noreply.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	reads := map[string][]string{
		"get %s": {miss}, "gets %s": {miss}, "gat 0 %s": {miss}, "gats 0 %s": {miss}, "mg %s v": {"EN"}, "mg %s v q": nil,
	}
	writes := []string{"set %s 0 0 1\r\n1", "add %s 0 0 1\r\n1", "replace %s 0 0 1\r\n1", "append %s 0 0 1\r\n1",
		"prepend %s 0 0 1\r\n1", "cas %s 0 0 1 1\r\n1", "incr %s 1", "decr %s 1", "touch %s 0", "delete %s",
		"ms %s 1\r\n1", "ms %s 1 q\r\n1", "md %s", "md %s q", "ma %s", "ma %s q"}
	silent := []string{"set %s 0 0 1 noreply\r\n1", "cas %s 0 0 1 1 noreply\r\n1", "incr %s 1 noreply",
		"touch %s 0 noreply", "delete %s noreply"}
	for state, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "frozen": syscall.SIGSTOP} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			f := start(t, 2)
			key, other := f.keyOf(0), f.keyOf(1)
			f.stop(0, signal)
			assert.Equal(t, []string{"VALUE " + other + " 0 5", "value", "END"}, f.ask("get %s %s", other, key))
			for request, want := range reads {
				assert.Equal(t, want, f.ask(request, key), request)
			}
			for _, request := range writes {
				assert.Equal(t, []string{unreachable}, f.ask(request, key), request)
			}
			for _, request := range silent {
				assert.Empty(t, f.ask(request, key), request)
			}
		})
	}
}

// TestAnswers: the proxy passes a server's answers to its clients unchanged, also errors.
func TestAnswers(t *testing.T) {
	t.Parallel()
	f := start(t, 1)
	large := "2000000%s\r\n" + strings.Repeat("x", 2000000)
	for _, request := range []string{"get key", "get none", "mg key v k Oopaque", "mg key v q", "mg none v", "mg none v q",
		"gat 0 key", "touch key 0", "touch none 0", "touch key 0 noreply", "add key 0 0 1\r\n1", "append key 0 0 1\r\n1",
		"cas key 0 0 1 0\r\n1", "incr key 1", "incr none 1", "decr key 1 noreply", "delete none", "delete key",
		"delete key noreply", "md none", "md key q", "ma key v", "ma key q", "ms key 1 q\r\n1", "ms key 1 ME\r\n1",
		"incr text 1", "incr text 1 noreply", "incr key one", "delete " + strings.Repeat("k", 251),
		"set key 0 0 " + fmt.Sprintf(large, ""), "set key 0 0 " + fmt.Sprintf(large, " noreply"),
		"ms key " + fmt.Sprintf(large, " q")} {
		var answers [][]string
		for _, address := range []string{f.addresses[0], f.proxy} {
			c := dial(t, address)
			c.ask("set key 0 0 1\r\n5")
			c.ask("set text 0 0 4\r\ntext")
			answers = append(answers, c.ask("%s", request))
		}
		assert.Equal(t, answers[0], answers[1], "%.30s", request)
	}
}

// TestUnsupported: a proxy closes the connection of a client that flushes, asks for what only one server has, or speaks
// the binary protocol. It flushes no server.
func TestUnsupported(t *testing.T) {
	t.Parallel()
	f := start(t, 1)
	dial(t, f.proxy).ask("set key 0 0 1\r\n5")
	get := "\x80\x00\x00\x03" + strings.Repeat("\x00", 7) + "\x03" + strings.Repeat("\x00", 12) + "key"
	for _, request := range []string{"flush_all", "verbosity 1", "nonsense", get} {
		conn := dial(t, f.proxy).conn
		require.NoError(t, conn.PrintfLine("%s", request))
		_, err := io.ReadAll(conn.R)
		require.NoErrorf(t, err, "%.9q: the connection stays", request)
	}
	assert.Equal(t, []string{"VALUE key 0 1", "5", "END"}, dial(t, f.proxy).ask("get key"))
}

// TestFrozen: a frozen server delays a client for about a second, once, and is used again when it continues. No other
// test runs at the same time, because it would disturb the measurement.
func TestFrozen(t *testing.T) {
	f := start(t, 3)
	var keys []string
	for i := range f.servers {
		keys = append(keys, f.keyOf(i))
	}
	f.stop(1, syscall.SIGSTOP)
	const clients, observed, slow, allowed = 6, 4 * time.Second, 200 * time.Millisecond, 2 * time.Second
	waits := make([]time.Duration, clients)
	var group sync.WaitGroup
	for i := range clients {
		c := dial(t, f.proxy)
		group.Go(func() {
			for begin, n := time.Now(), i; time.Since(begin) < observed; n++ {
				sent := time.Now()
				c.ask("get %s", keys[n%len(keys)])
				if wait := time.Since(sent); wait > slow {
					waits[i] += wait
				}
			}
		})
	}
	group.Wait()
	t.Logf("clients waited %v", waits)
	assert.Less(t, slices.Max(waits), allowed)
	assert.NotZero(t, slices.Max(waits), "the server was not frozen")

	require.NoError(t, f.servers[1].Process.Signal(syscall.SIGCONT))
	f.eventually("find the key again", func() []string { return f.ask("mg %s", keys[1]) }, "HD")
}

// TestList: the proxy uses the servers in its file, with IPv4 and IPv6 addresses, without a restart.
func TestList(t *testing.T) {
	t.Parallel()
	f := start(t, 2)
	f.list()
	f.eventually("use no server", func() []string { return f.ask("set key 0 0 1\r\n1") }, unreachable)
	assert.Equal(t, []string{miss}, f.ask("get key"))
	for i, prefix := range []string{"", "::ffff:"} {
		host, port, err := net.SplitHostPort(f.addresses[i])
		require.NoError(t, err)
		f.list(net.JoinHostPort(prefix+host, port))
		f.eventually("use the server", func() []string {
			f.ask("set key-%d 0 0 1\r\n1", i)
			return dial(t, f.addresses[i]).ask("mg key-%d", i)
		}, "HD")
	}
}

// memcached returns the command that runs a server or a proxy.
var memcached = sync.OnceValues(func() ([]string, error) {
	c, err := cluster.New("node")
	if err != nil {
		return nil, err
	}
	return c.MemcachedCommand(context.Background())
})

// TestListInUse: a proxy reports that it uses a list until the last request that began with the list has ended.
func TestListInUse(t *testing.T) {
	t.Parallel()
	f := start(t, 2)
	program, err := os.ReadFile(filepath.Join(f.directory, "proxy.lua"))
	require.NoError(t, err)
	f.write("proxy.lua", strings.ReplaceAll(string(program), "read_timeout(0.5)", "read_timeout(5)"))
	f.restart()
	f.client = dial(t, f.proxy)
	lists := func() string { return strings.Join(dial(t, f.proxy).ask("stats proxyfuncs"), " ") }
	before := contract.Servers{Program: f.program, After: servers(f.addresses...)}
	after := contract.Servers{Program: f.program, After: servers(f.addresses[:1]...)}
	require.Contains(t, lists(), before.Hash())

	key, conn, answered := f.keyOf(1), dial(t, f.proxy), make(chan struct{})
	f.stop(1, syscall.SIGSTOP)
	go func() {
		defer close(answered)
		conn.ask("get %s", key)
	}()
	harness.Eventually(t, "wait for the server", harness.Patience, func() error {
		if !slices.Contains(f.ask("stats"), "STAT proxy_req_active 1") {
			return errors.New("no request waits")
		}
		return nil
	})
	f.write("servers", after.Files()["servers"])
	harness.Eventually(t, "use the new list", harness.Patience, func() error {
		if !strings.Contains(lists(), after.Hash()) {
			return errors.New("the new list is not in use")
		}
		return nil
	})
	select {
	case <-answered:
		t.Fatal("the request ended before the proxy used the new list")
	default:
	}
	require.Contains(t, lists(), before.Hash())
	<-answered
	f.eventually("use no other list", func() []string { return []string{lists()} },
		fmt.Sprintf("STAT funcs_%[1]s 4 STAT slots_%[1]s 4 END", after.Hash()))
}

// fleet is a proxy and its servers.
type fleet struct {
	*proxyProcess
	servers   []*exec.Cmd
	addresses []string
}

// proxyProcess is a proxy, and a connection to it.
type proxyProcess struct {
	client
	*exec.Cmd
	proxy, directory string
	program          string // as the list of servers names it
}

// smallItems is a Memcached whose items have the default sizes.
const smallItems = `{workload: StatefulSet, proxy: {}}`

// start starts servers and a proxy in front of them.
func start(t testing.TB, servers int) *fleet { return startOf(t, servers, smallItems) }

// startOf starts servers of a Memcached, and a proxy in front of them.
func startOf(t testing.TB, servers int, spec string) *fleet {
	t.Helper()
	if !cluster.RealPods(os.Getenv("CLUSTER")) {
		t.Skip("kwok has no memcached")
	}
	command, err := memcached()
	require.NoError(t, err)
	f := &fleet{}
	for range servers {
		server, address := run(t, slices.Concat(command, memoryOf(t, spec)))
		f.servers, f.addresses = append(f.servers, server), append(f.addresses, address)
	}
	f.proxyProcess = startProxy(t, command, f.addresses, spec)
	return f
}

// memoryOf returns the arguments of a server that its memory needs.
func memoryOf(t testing.TB, spec string) []string {
	t.Helper()
	mc := manifest.Parse(t, manifest.Named("cache", spec))
	memory, item := resource.MustParse(mc.Spec.Memory), resource.MustParse(mc.Spec.MaxItemSize)
	return []string{"-m", strconv.FormatInt(memory.Value()>>20, 10), "-I", strconv.FormatInt(item.Value()>>10, 10) + "k"}
}

// startProxy starts a proxy of a Memcached in front of these servers.
func startProxy(t testing.TB, command, addresses []string, spec string) *proxyProcess {
	t.Helper()
	f := &proxyProcess{client: client{TB: t}, directory: t.TempDir()}
	mc := manifest.Parse(t, manifest.Named("cache", spec))
	current := desired.Current{ProxyServers: contract.Servers{After: servers(addresses...)}}
	for _, child := range desired.NewPlan(mc, desired.Resolve(mc, current, desired.Options{})).Children {
		switch child := child.(type) {
		case *corev1ac.ConfigMapApplyConfiguration:
			f.program = contract.ParseServers(child.Data).Program
			for name, text := range child.Data {
				f.write(name, strings.ReplaceAll(text, "/etc/memcached/proxy", f.directory))
			}
		case *appsv1ac.DeploymentApplyConfiguration:
			for _, arg := range child.Spec.Template.Spec.Containers[0].Args {
				command = append(command, strings.ReplaceAll(arg, "/etc/memcached/proxy", f.directory))
			}
		}
	}
	f.Cmd, f.proxy = run(t, command)
	f.client = dial(t, f.proxy)
	return f
}

// run starts memcached on a free port, and kills it when the test ends.
func run(t testing.TB, command []string) (*exec.Cmd, string) {
	t.Helper()
	address, err := harness.FreeAddress()
	require.NoError(t, err)
	host, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	return launch(t, append(command[:len(command):len(command)], "-u", "root", "-l", host, "-p", port)), address
}

// launch starts memcached, whose last arguments are its address and port.
func launch(t testing.TB, args []string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have exited
		_ = cmd.Wait()
	})
	address := net.JoinHostPort(args[len(args)-3], args[len(args)-1])
	harness.Eventually(t, "start memcached", harness.Patience, func() error {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	return cmd
}

// stop kills or freezes a server, and returns once none of its threads runs: a signal takes a moment to reach them all.
func (f *fleet) stop(server int, signal syscall.Signal) {
	f.Helper()
	process := f.servers[server].Process
	require.NoError(f, process.Signal(signal))
	harness.Eventually(f, "stop the server", harness.Patience, func() error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", process.Pid))
		for _, thread := range threads {
			stat, err := os.ReadFile(thread)
			_, state, _ := strings.Cut(string(stat), ") ")
			if err == nil && !strings.ContainsAny(state[:1], "TZX") {
				return fmt.Errorf("thread %s: %s", thread, stat)
			}
		}
		return err
	})
}

// use writes the list of servers, and waits until the proxy uses the list.
func (f *proxyProcess) use(s contract.Servers) {
	f.Helper()
	s.Program = f.program
	f.write("servers", s.Files()["servers"])
	want := fmt.Sprintf("STAT funcs_%s 4", s.Hash())
	harness.Eventually(f, "load the list", harness.Patience, func() error {
		answer := dial(f.TB, f.proxy).ask("stats proxyfuncs") // the proxy may have been restarted
		answer = slices.DeleteFunc(answer, func(line string) bool { return !strings.HasPrefix(line, "STAT funcs_") })
		if !slices.Equal(answer, []string{want}) {
			return fmt.Errorf("want %s, got %q", want, answer)
		}
		return nil
	})
}

// list writes the list of servers of the proxy.
func (f *proxyProcess) list(addresses ...string) {
	f.write("servers", contract.Servers{Program: f.program, After: servers(addresses...)}.Files()["servers"])
}

// servers gives names to servers.
func servers(addresses ...string) (list []contract.Server) {
	for i, address := range addresses {
		list = append(list, contract.Server{Name: fmt.Sprintf("cache-%d", i), Address: address})
	}
	return list
}

// write replaces a file of the proxy atomically, as the kubelet does.
func (f *proxyProcess) write(name, text string) {
	path := filepath.Join(f.directory, name)
	require.NoError(f, os.WriteFile(path+".new", []byte(text), 0o644))
	require.NoError(f, os.Rename(path+".new", path))
}

// keyOf returns a key that the proxy stores on this server.
func (f *fleet) keyOf(server int) string {
	direct := dial(f.TB, f.addresses[server])
	for n := range 1000 {
		key := fmt.Sprintf("key-%d", n)
		f.ask("set %s 0 0 5\r\nvalue", key)
		if slices.Equal(direct.ask("mg %s", key), []string{"HD"}) {
			return key
		}
	}
	f.Fatalf("the proxy stores no key on server %d", server)
	return ""
}

// eventually calls ask until it returns the wanted answer.
func (f *fleet) eventually(what string, ask func() []string, want string) {
	f.Helper()
	harness.Eventually(f, what, harness.Patience, func() error {
		if answer := ask(); !slices.Equal(answer, []string{want}) {
			return fmt.Errorf("the answer is %q", answer)
		}
		return nil
	})
}

// client is a connection to a server or a proxy.
type client struct {
	testing.TB
	conn *textproto.Conn
}

func dial(t testing.TB, address string) client {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(harness.Patience)))
	t.Cleanup(func() { _ = conn.Close() })
	return client{t, textproto.NewConn(conn)}
}

// ask sends a request and returns the lines of the answer.
func (c client) ask(format string, args ...any) []string {
	request := fmt.Sprintf(format, args...)
	answer, err := ask(c.conn, request)
	if err != nil {
		c.Errorf("%.30q: %v", request, err)
	}
	return answer
}

// ask sends a request and returns the lines of the answer. Because some requests have no answer, it sends another
// request that marks the end.
func ask(conn *textproto.Conn, request string) (answer []string, err error) {
	err = conn.PrintfLine("%s\r\nmn", request)
	for err == nil {
		var line string
		if line, err = conn.ReadLine(); line == "MN" {
			return answer, nil
		}
		answer = append(answer, line)
	}
	return answer, err
}
