package mover

import (
	"testing"

	"github.com/example/memcached-operator/agent/contract"
)

// TestTarget: in each phase, the mover touches only items that are on a wrong server.
func TestTarget(t *testing.T) {
	t.Parallel()
	three := []contract.Server{{Name: "c-0", Address: "a"}, {Name: "c-1", Address: "b"}, {Name: "c-2", Address: "c"}}
	two := three[:2]
	moved := 0
	for i := range 1000 {
		key := string(rune('a'+i%26)) + string(rune('a'+i/26))
		before, after := addressOf(two, key), addressOf(three, key)
		for _, server := range []string{"a", "b", "c"} {
			purging := contract.Servers{Phase: contract.Purge, Before: two, After: three}
			moving := contract.Servers{Phase: contract.PreferAfter, Before: two, After: three}
			purged := (&Mover{Servers: purging}).target(server, key)
			if want := map[bool]string{false: server}[server == before]; purged != want {
				t.Errorf("phase 0, key %s of %s on %s: got target %q, want %q", key, before, server, purged, want)
			}
			got := (&Mover{Servers: moving}).target(server, key)
			if want := map[bool]string{true: after}[server == before && after != before]; got != want {
				t.Errorf("phase 2, key %s of %s on %s: got target %q, want %q", key, before, server, got, want)
			}
			if got != "" {
				moved++
			}
		}
	}
	if moved < 250 || moved > 420 {
		t.Errorf("%d of 1000 keys move from 2 to 3 servers, want about a third", moved)
	}
}

// TestJump: the results are those of other implementations of the jump hash.
func TestJump(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key           uint64
		servers, want int
	}{{1, 1, 0}, {42, 57, 43}, {0xDEAD10CC, 1, 0}, {0xDEAD10CC, 666, 361}, {256, 1024, 520}, {7, 0, 0}} {
		if got := jump(c.key, c.servers); got != c.want {
			t.Errorf("key %d of %d servers: got %d, want %d", c.key, c.servers, got, c.want)
		}
	}
}
