package agent

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/example/memcached-operator/tests/harness"
)

// TestDrain: the kubelet gets its answer once the operator lets the server stop, and not at once.
func TestDrain(t *testing.T) {
	t.Parallel()
	d := &drain{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+DrainPath, d.wait)
	mux.HandleFunc("POST "+StopPath, d.stop)
	server := httptest.NewUnstartedServer(mux)
	server.Config.ReadTimeout, server.Config.WriteTimeout = requestTimeout, requestTimeout
	server.Start()
	defer server.Close()
	stop := func() int {
		response, err := http.Post(server.URL+StopPath, "", nil)
		harness.Must(t, err)
		harness.Must(t, response.Body.Close())
		return response.StatusCode
	}
	if got := stop(); got != http.StatusConflict {
		t.Errorf("got status %d although the kubelet does not wait", got)
	}
	begin, answered := time.Now(), make(chan error, 1)
	go func() {
		response, err := http.Get(server.URL + DrainPath)
		if err == nil {
			err = response.Body.Close()
		}
		answered <- err
	}()
	harness.Eventually(t, "the kubelet waits", 10*time.Second, func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.waiting == 0 {
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
	if got := stop(); got != http.StatusConflict {
		t.Errorf("got status %d although the kubelet does not wait any more", got)
	}
	for range maxWaiting {
		if d.begin() == nil {
			t.Error("the kubelet cannot wait")
		}
	}
	if d.begin() != nil {
		t.Error("any number of requests can wait")
	}
}
