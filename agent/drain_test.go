package agent

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/internal/testing/harness"
)

// TestDrain: the kubelet gets its answer once the operator lets the server stop, and not at once.
func TestDrain(t *testing.T) {
	t.Parallel()
	d := &drain{stop: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+contract.DrainPath, d.wait)
	mux.HandleFunc("POST "+contract.StopPath, d.letStop)
	server := httptest.NewUnstartedServer(mux)
	server.Config.ReadTimeout, server.Config.WriteTimeout = requestTimeout, requestTimeout
	server.Start()
	defer server.Close()
	stop := func() int {
		response, err := http.Post(server.URL+contract.StopPath, "", nil)
		harness.Must(t, err)
		harness.Must(t, response.Body.Close())
		return response.StatusCode
	}
	if got := stop(); got != http.StatusConflict {
		t.Errorf("got status %d although the kubelet does not wait", got)
	}
	begin, answered := time.Now(), make(chan error, 1)
	go func() {
		response, err := http.Get(server.URL + contract.DrainPath)
		if err == nil {
			err = response.Body.Close()
		}
		answered <- err
	}()
	harness.Eventually(t, "the kubelet waits", 10*time.Second, func() error {
		if d.waiting.Load() == 0 {
			return http.ErrNotSupported
		}
		return nil
	})
	select {
	case err := <-answered:
		t.Fatalf("the kubelet was answered before the operator asked for that (%v)", err)
	case <-time.After(2 * requestTimeout):
	}
	for range 2 { // the operator may repeat its request
		if got := stop(); got != http.StatusOK {
			t.Errorf("got status %d", got)
		}
	}
	harness.Must(t, <-answered)
	if took := time.Since(begin); took < stopNotice {
		t.Errorf("the server was stopped after %s, before clients noticed", took)
	}
	if got := stop(); got != http.StatusConflict || d.waiting.Load() != 0 {
		t.Errorf("got status %d although the kubelet does not wait any more", got)
	}
}

// TestDrainToken: only who knows the token can wait until a server may stop, or let it stop.
func TestDrainToken(t *testing.T) {
	t.Parallel()
	with := startReportingAgent(t, contract.Options{DrainToken: "abc"})
	without := startReportingAgent(t, contract.Options{})
	for request, want := range map[string]int{
		"POST " + with + contract.StopPath + "abc": http.StatusConflict,
		"POST " + with + contract.StopPath + "ab":  http.StatusNotFound,
		"POST " + with + contract.StopPath:         http.StatusNotFound, "POST " + with + "/stop": http.StatusNotFound,
		"GET " + with + contract.DrainPath: http.StatusNotFound, "GET " + with + "/drain": http.StatusNotFound,
		"GET " + with + contract.DrainPath + "abcd": http.StatusNotFound,
		"GET " + with + contract.StopPath + "abc":   http.StatusMethodNotAllowed,
		"POST " + without + contract.StopPath:       http.StatusNotFound,
		"GET " + without + contract.DrainPath:       http.StatusNotFound,
	} {
		method, url, _ := strings.Cut(request, " ")
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+url, nil)
		harness.Must(t, err)
		response, err := (&http.Client{Timeout: time.Second}).Do(r)
		if err != nil {
			t.Errorf("%s: %v", request, err)
			continue
		}
		harness.Must(t, response.Body.Close())
		if response.StatusCode != want {
			t.Errorf("%s: got %s, want %d", request, response.Status, want)
		}
	}
}

// startReportingAgent runs an agent as deployed, and returns the address of its report.
func startReportingAgent(t *testing.T, o contract.Options) string {
	t.Helper()
	address, err := harness.FreeAddress()
	harness.Must(t, err)
	_, port, _ := net.SplitHostPort(address)
	o.Port = 1
	o.ReportPort, err = strconv.Atoi(port)
	harness.Must(t, err)
	startProcess(t, o)
	harness.Eventually(t, "the agent listens", 10*time.Second, func() error {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	return address
}
