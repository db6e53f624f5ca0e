package agent

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/internal/testing/harness"
)

// TestListOfAll: a list is reported once all threads use it, by the answers that memcached 1.6.45 gave.
func TestListOfAll(t *testing.T) {
	t.Parallel()
	for stats, want := range map[string]string{
		"END\r\n": "",
		"STAT funcs_0123456789abcdef 4\r\nEND\r\n":                                  "0123456789abcdef",
		"STAT funcs_0123456789abcdef 3\r\nSTAT funcs_fedcba9876543210 1\r\nEND\r\n": "",
	} {
		if got := commonHash(stats); got != want {
			t.Errorf("%q: got the list %q, want %q", stats, got, want)
		}
	}
}

// TestUnreachable: a server is reported that refuses connections, that never answers, or that has no connection left.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	listen := func(answer string) string {
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		harness.Must(t, err)
		context.AfterFunc(t.Context(), func() { _ = listener.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Write([]byte(answer))
			}
		}()
		return listener.Addr().String()
	}
	refused, err := harness.FreeAddress()
	harness.Must(t, err)
	servers := []contract.Server{{Name: "a", Address: listen("VERSION 1.6.45\r\n")}, {Name: "refuses", Address: refused},
		{Name: "silent", Address: listen("")}, {Name: "full", Address: listen("ERROR Too many open connections\r\n")}}
	if got := unreachable(t.Context(), servers); !slices.Equal(got, []string{"full", "refuses", "silent"}) {
		t.Errorf("got %q", got)
	}
	var many []contract.Server
	for i := range 1000 {
		many = append(many, contract.Server{Name: strconv.Itoa(i), Address: servers[2].Address})
	}
	begin := time.Now()
	got := unreachable(t.Context(), many)
	if took := time.Since(begin); len(got) != maxChecks || got[0] != "0" || took > 2*checkTimeout {
		t.Errorf("got %q after %s", got, took)
	}
}

// FuzzListOfAll: no list is reported unless the answer names it, and no other.
func FuzzListOfAll(f *testing.F) {
	for _, stats := range []string{"", "END\r\n", "STAT funcs_0123456789abcdef 4\r\nEND\r\n",
		"STAT funcs_0123456789abcdef 3\r\nSTAT funcs_fedcba9876543210 1\r\nEND\r\n",
		"STAT funcs_ 3\r\nSTAT funcs_fedcba9876543210 1\r\nEND\r\n"} { // a list without a name once counted as none
		f.Add(stats)
	}
	f.Fuzz(func(t *testing.T, stats string) {
		named := strings.Count("\n"+stats, "\nSTAT funcs_")
		if got := commonHash(stats); got != "" && (named != 1 || !strings.Contains(stats, "STAT funcs_"+got)) {
			t.Errorf("got the list %q from an answer that names %d", got, named)
		}
	})
}
