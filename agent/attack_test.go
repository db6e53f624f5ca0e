package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/internal/testing/harness"
)

// subprocess is an environment variable that makes this test program an agent with these arguments.
const subprocess = "TEST_AGENT_ARGUMENTS"

func TestMain(m *testing.M) {
	args := os.Getenv(subprocess)
	if args == "" {
		os.Exit(m.Run())
	}
	if err := Run(context.Background(), []string{args}); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// startAgent runs an agent as deployed, and returns its process and the addresses of its metrics and of its report.
func startAgent(t *testing.T, o contract.Options) (process *os.Process, metrics, report string) {
	t.Helper()
	free := func(port *int) string {
		address, err := harness.FreeAddress()
		harness.Must(t, err)
		_, text, _ := net.SplitHostPort(address)
		*port, err = strconv.Atoi(text)
		harness.Must(t, err)
		return address
	}
	o.Port = 1
	metrics, report = free(&o.MetricsPort), free(&o.ReportPort)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOMEMLIMIT="+contract.GoMemoryLimit(contract.MemoryLimit),
		subprocess+"="+o.Args()[1])
	harness.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	harness.Eventually(t, "the agent answers", 10*time.Second, func() error { return scrape(metrics) })
	info, err := os.Stat(contract.RunPath)
	if runtime.GOOS == "linux" && (err != nil || info.Mode() != os.ModeDir|0o700) {
		t.Errorf("the folder of the agent is %v, %v", info, err)
	}
	return cmd.Process, metrics, report
}

// scrape fails unless the agent answers as it does to Prometheus.
func scrape(address string) error {
	client := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + address + "/metrics")
	if err != nil {
		return err
	}
	body, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	if !strings.Contains(string(body), "\nmemcached_up 0\n") {
		return fmt.Errorf("answers %s", response.Status)
	}
	return nil
}

// peakMemory is the most that a process had resident, in bytes.
func peakMemory(t *testing.T, p *os.Process) int {
	t.Helper()
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", p.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); fields[0] == "VmHWM:" {
			kibibytes, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			return kibibytes << 10
		}
	}
	t.Fatal("the agent has ended")
	return 0
}

// TestAttack: no client of the metrics port can stop the agent, or block Prometheus for long.
func TestAttack(t *testing.T) {
	t.Parallel()
	const slow = 100 * time.Millisecond
	send := func(text string) func(net.Conn) error {
		return func(conn net.Conn) error {
			_, err := io.WriteString(conn, text)
			return err
		}
	}
	// endless sends a text, and another one again and again, until the agent closes the connection.
	endless := func(first, next string, pause time.Duration) func(net.Conn) error {
		return func(conn net.Conn) error {
			err := send(first)(conn)
			for ; err == nil; time.Sleep(pause) {
				err = send(next)(conn)
			}
			return err
		}
	}
	const get, post = "GET /metrics HTTP/1.1\r\nHost: agent\r\n", "POST /metrics HTTP/1.1\r\nHost: agent\r\n"
	for name, tt := range map[string]struct {
		clients int
		attack  func(net.Conn) error
		times   int // that each client connects
	}{
		"large headers":             {60, send(get + "X: " + strings.Repeat("x", 900<<10)), 1},
		"idle connections":          {4000, send("GET "), 1},
		"requests kept open":        {3000, send("GET / HTTP/1.1\r\nHost: agent\r\n\r\n"), 1},
		"headers, byte by byte":     {1000, endless(get+"X: ", "x", slow), 1},
		"many headers":              {60, endless(get, "X: x\r\n", 0), 1},
		"bodies without an end":     {60, endless(post+"Transfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n", 0), 1},
		"a body, byte by byte":      {1000, endless(post+"Content-Length: 1000000\r\n\r\n", "x", slow), 1},
		"other protocols":           {60, endless("\x16\x03\x01\xff\xff", strings.Repeat("\xff", 4096), 0), 1},
		"many requests at a time":   {60, endless(get+"\r\n", get+"\r\n", 0), 1},
		"a flood of single scrapes": {60, send(get + "\r\n"), 100},
	} {
		t.Run(name, func(t *testing.T) {
			process, address, _ := startAgent(t, contract.Options{})
			deadline := time.Now().Add(30 * time.Second)
			var clients, connected sync.WaitGroup
			for range tt.clients {
				connected.Add(1)
				clients.Go(func() {
					done := sync.OnceFunc(connected.Done)
					for range tt.times {
						stranger := strangersDialer()
						stranger.Deadline = deadline
						conn, err := stranger.Dial("tcp", address)
						done()
						if err != nil {
							return // refused, which protects the agent
						}
						_ = conn.SetDeadline(deadline)
						_ = tt.attack(conn)
						_, _ = io.Copy(io.Discard, conn) // until the agent closes the connection
						_ = conn.Close()
					}
				})
			}
			connected.Wait()
			start := time.Now()
			harness.Eventually(t, "a scrape is answered during the attack", time.Until(deadline), func() error {
				return scrape(address)
			})
			t.Logf("a scrape was answered after %s", time.Since(start).Round(time.Millisecond))
			clients.Wait()
			if err := scrape(address); err != nil {
				t.Errorf("after the attack: %v", err)
			}
			peak := peakMemory(t, process)
			t.Logf("the agent had at most %d MiB", peak>>20)
			if peak >= contract.MemoryLimit {
				t.Errorf("the agent had %d MiB, and its container may have %d MiB", peak>>20, contract.MemoryLimit>>20)
			}
		})
	}
}

// strangersDialer connects from another address than other clients. The kernel chooses its ports when it connects: of
// those that it chooses earlier, agents in other tests may be about to listen on one.
func strangersDialer() net.Dialer {
	return net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)},
		Control: func(_, _ string, conn syscall.RawConn) error {
			const bindAddressNoPort = 24 // IP_BIND_ADDRESS_NO_PORT of Linux
			return conn.Control(func(fd uintptr) {
				_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, bindAddressNoPort, 1)
			})
		}}
}

// TestStranger: a client that opens hundreds of connections a second, and sends nothing, keeps nobody else out.
func TestStranger(t *testing.T) {
	t.Parallel()
	_, address, _ := startAgent(t, contract.Options{})
	flood, stop := context.WithCancel(t.Context())
	var stranger sync.WaitGroup
	for range 8 {
		stranger.Go(func() {
			dialer := strangersDialer()
			dialer.Timeout = time.Second
			for flood.Err() == nil {
				if conn, err := dialer.DialContext(flood, "tcp", address); err == nil {
					context.AfterFunc(t.Context(), func() { _ = conn.Close() })
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	defer stranger.Wait()
	defer stop()
	time.Sleep(2 * time.Second)
	for range 20 {
		client := http.Client{Timeout: 500 * time.Millisecond, Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Get("http://" + address + "/")
		if err != nil {
			t.Fatalf("another client gets no answer: %v", err)
		}
		_ = response.Body.Close()
	}
}

// TestPaths: the agent answers nothing but GET /metrics and GET /report, and to who knows the token of a drain, also
// the paths of the drain. It closes each connection.
func TestPaths(t *testing.T) {
	t.Parallel()
	_, metrics, with := startAgent(t, contract.Options{DrainToken: "abc"})
	_, _, without := startAgent(t, contract.Options{})
	for request, want := range map[string]int{
		"GET " + metrics + "/metrics":    http.StatusOK,
		"GET " + metrics + "/":           http.StatusNotFound,
		"GET " + metrics + "/metrics/x":  http.StatusNotFound,
		"POST " + metrics + "/metrics":   http.StatusMethodNotAllowed,
		"DELETE " + metrics + "/metrics": http.StatusMethodNotAllowed,

		"GET " + with + contract.ReportPath:         http.StatusServiceUnavailable, // memcached does not answer
		"POST " + with + contract.StopPath + "abc":  http.StatusConflict,
		"POST " + with + contract.StopPath + "ab":   http.StatusNotFound,
		"POST " + with + contract.StopPath:          http.StatusNotFound,
		"GET " + with + contract.DrainPath:          http.StatusNotFound,
		"GET " + with + contract.DrainPath + "abcd": http.StatusNotFound,
		"GET " + with + contract.StopPath + "abc":   http.StatusMethodNotAllowed,
		"POST " + without + contract.StopPath:       http.StatusNotFound,
		"GET " + without + contract.DrainPath:       http.StatusNotFound,
	} {
		method, url, _ := strings.Cut(request, " ")
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+url, nil)
		harness.Must(t, err)
		response, err := (&http.Client{Timeout: 10 * time.Second}).Do(r)
		harness.Must(t, err)
		harness.Must(t, response.Body.Close())
		if response.StatusCode != want || !response.Close {
			t.Errorf("%s: %s, connection closed %t, want %d", request, response.Status, response.Close, want)
		}
	}
}
