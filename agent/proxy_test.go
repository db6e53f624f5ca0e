package agent

import (
	"context"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/agent/memcached"
	"github.com/example/memcached-operator/internal/testing/harness"
)

// TestCommonHash: a list is reported once all threads use it, by the answers that memcached 1.6.45 gave.
func TestCommonHash(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		stats memcached.Stats
		want  string
	}{
		{nil, ""},
		{memcached.Stats{"funcs_0123456789abcdef": "4", "slots_0123456789abcdef": "4"}, "0123456789abcdef"},
		{memcached.Stats{"funcs_0123456789abcdef": "3", "funcs_fedcba9876543210": "1"}, ""},
		{memcached.Stats{"funcs_": "3", "funcs_fedcba9876543210": "1"}, ""}, // a list without a name once counted as none
	} {
		if got := commonHash(tt.stats); got != tt.want {
			t.Errorf("%v: got the list %q, want %q", tt.stats, got, tt.want)
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
	if got := unreachable(t.Context(), servers); !slices.Equal(got, []string{"refuses", "silent", "full"}) {
		t.Errorf("got %q", got)
	}
	var many []contract.Server
	for i := range 1000 {
		many = append(many, contract.Server{Name: strconv.Itoa(i), Address: servers[2].Address})
	}
	begin := time.Now()
	got := unreachable(t.Context(), many)
	if took := time.Since(begin); len(got) != maxNames || got[0] != "0" || took > 2*checkTimeout {
		t.Errorf("got %q after %s", got, took)
	}
}
