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
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/example/memcached-operator/tests/harness"
)

// subprocess is an environment variable that makes this test program an agent with these arguments.
const subprocess = "TEST_AGENT_ARGUMENTS"

func TestMain(m *testing.M) {
	args := os.Getenv(subprocess)
	if args == "" {
		os.Exit(m.Run())
	}
	if err := Run(context.Background(), strings.Fields(args)); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// startAgent runs an agent as deployed, and returns its process and the address of its metrics.
func startAgent(t *testing.T) (*os.Process, string) {
	t.Helper()
	address, err := harness.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(address)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOMEMLIMIT="+GoMemoryLimit(MemoryLimit),
		subprocess+"=--port=1 --metrics-port="+port)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	harness.Eventually(t, "the agent answers", 10*time.Second, func() error { return scrape(address) })
	return cmd.Process, address
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
	for name, tt := range map[string]struct {
		clients int
		request string
	}{
		"large headers":      {60, "GET /metrics HTTP/1.1\r\nHost: agent\r\nX: " + strings.Repeat("x", 900<<10)},
		"idle connections":   {4000, "GET "},
		"requests kept open": {3000, "GET / HTTP/1.1\r\nHost: agent\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			process, address := startAgent(t)
			deadline := time.Now().Add(30 * time.Second)
			var clients, connected sync.WaitGroup
			for range tt.clients {
				connected.Add(1)
				clients.Go(func() {
					conn, err := net.DialTimeout("tcp", address, time.Until(deadline))
					connected.Done()
					if err != nil {
						return // refused, which protects the agent
					}
					defer func() { _ = conn.Close() }()
					_ = conn.SetDeadline(deadline)
					_, _ = io.WriteString(conn, tt.request)
					_, _ = io.Copy(io.Discard, conn) // until the agent closes the connection
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
			if peak >= MemoryLimit {
				t.Errorf("the agent had %d MiB, and its container may have %d MiB", peak>>20, MemoryLimit>>20)
			}
		})
	}
}

// TestServesOnlyMetrics: nothing but GET /metrics is answered.
func TestServesOnlyMetrics(t *testing.T) {
	t.Parallel()
	_, address := startAgent(t)
	for request, want := range map[string]int{
		"GET /metrics": http.StatusOK, "GET /": http.StatusNotFound, "GET /metrics/x": http.StatusNotFound,
		"POST /metrics": http.StatusMethodNotAllowed, "DELETE /metrics": http.StatusMethodNotAllowed,
	} {
		method, path, _ := strings.Cut(request, " ")
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want || !response.Close {
			t.Errorf("%s: %s, connection closed %t, want %d", request, response.Status, response.Close, want)
		}
	}
}
