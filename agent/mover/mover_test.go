package mover

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/agent/memcached"
)

// replace is a change in which all items of one server move to another.
func replace(source, target *fake) *Mover {
	return &Mover{Limit: rate.Inf, Servers: contract.Servers{Phase: contract.PreferAfter,
		Before: []contract.Server{{Name: "c-0", Address: source.address}},
		After:  []contract.Server{{Name: "c-1", Address: target.address}}}}
}

// run runs a mover until it ends, or until done returns true.
func run(t *testing.T, m *Mover, done func() bool) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			if done != nil && done() {
				cancel()
			}
		}
	}()
	return m.Run(ctx, slog.New(slog.DiscardHandler))
}

// pass runs one pass of a mover.
func pass(t *testing.T, m *Mover) (found int, err error) {
	t.Helper()
	found, _, err = m.pass(t.Context(), rate.NewLimiter(m.Limit, batch))
	return found, err
}

// mustMove runs passes until one finds nothing, and expects all items on the target.
func mustMove(t *testing.T, m *Mover, source, target *fake) {
	t.Helper()
	want := source.values()
	for found := 1; found > 0; {
		var err error
		if found, err = pass(t, m); err != nil {
			t.Fatal(err)
		}
	}
	if got := target.values(); !maps.Equal(got, want) {
		for key, value := range want {
			if moved, ok := got[key]; !ok || moved != value {
				t.Errorf("%q: %d bytes became %d", key, len(value), len(moved))
			}
		}
		t.Errorf("%d items became %d", len(want), len(got))
	}
	if left := source.values(); len(left) > 0 {
		t.Errorf("%d items are left", len(left))
	}
}

// TestKeys: an item moves whatever its key, and one key that memcached refuses keeps no other.
func TestKeys(t *testing.T) {
	t.Parallel()
	source, target := newFake(t), newFake(t)
	for _, key := range []string{"a", "a\r", "a b", "a\r\nb", "\x00\n\x7f", "mg x", "ä", strings.Repeat("k", 250)} {
		source.put(key, "value of "+key)
	}
	source.put("binary", "value")
	source.items["binary"].binary = true
	mustMove(t, replace(source, target), source, target)

	source, target = newFake(t), newFake(t)
	source.put("good", "value")
	source.put("bad", "value")
	source.instead = instead("mg bad", "CLIENT_ERROR bad command line format\r\n")
	for range 2 {
		if found, err := pass(t, replace(source, target)); err != nil {
			t.Errorf("found %d, %v", found, err)
		}
	}
	if got := target.values(); len(got) != 1 || got["good"] == "" {
		t.Errorf("got %v", got)
	}
	purge := replace(source, target)
	purge.Phase = contract.Purge
	target.put("bad", "left over")
	target.instead = instead("md bad", "CLIENT_ERROR bad command line format\r\n")
	if err := run(t, purge, nil); err != nil {
		t.Error(err)
	}
}

// TestChanged: of an item that a client changes while it is taken, the newer version moves.
func TestChanged(t *testing.T) {
	t.Parallel()
	source, target := newFake(t), newFake(t)
	source.put("key", "older")
	source.instead = func(request string) string {
		if strings.HasPrefix(request, "md key C") && source.values()["key"] == "older" {
			source.put("key", "newer")
		}
		return ""
	}
	if found, err := pass(t, replace(source, target)); err != nil || found != 1 {
		t.Errorf("found %d, %v", found, err)
	}
	if got := target.values(); len(source.values()) > 0 || len(got) != 1 || got["key"] != "newer" {
		t.Errorf("got %v", got)
	}
}

// TestChunks: only so many items have a placeholder, or are only in the memory of the mover, that clients wait for them
// but for a moment.
func TestChunks(t *testing.T) {
	t.Parallel()
	source, target := newFake(t), newFake(t)
	for i := range 70 {
		source.put("large-"+strconv.Itoa(i), strings.Repeat("x", 1<<20))
		source.put("small-"+strconv.Itoa(i), strings.Repeat("x", 1<<10))
	}
	var largest atomic.Int64 // bytes of items that have a placeholder together
	pending := int64(0)
	target.instead = func(request string) string {
		size := int64(1 << 10)
		if strings.Contains(request, " large-") {
			size = 1 << 20
		}
		switch {
		case strings.HasPrefix(request, "ms "):
			pending -= size
		case strings.HasPrefix(request, "mg ") && strings.Contains(request, " N"):
			pending += size
		}
		largest.Store(max(largest.Load(), pending))
		return ""
	}
	mustMove(t, replace(source, target), source, target)
	if n := largest.Load(); n > 1<<20 {
		t.Errorf("items of %d bytes had a placeholder together", n)
	}
}

// TestSilentDump: memcached may walk over empty buckets for a long time before it lists a key.
func TestSilentDump(t *testing.T) {
	t.Parallel()
	source, target := newFake(t), newFake(t)
	source.put("key", "value")
	source.instead = func(request string) string {
		if strings.HasPrefix(request, "lru_crawler") {
			time.Sleep(memcached.Timeout + 100*time.Millisecond)
		}
		return ""
	}
	mustMove(t, replace(source, target), source, target)
}

// TestProblem: a server that cannot list its keys, number versions, or take items is an error, and loses no item. The
// progress does not begin again with each pass.
func TestProblem(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(source, target *fake){
		"cannot move items: its setting dump_enabled": func(source, _ *fake) { source.settings["dump_enabled"] = "no" },
		"cannot move items: its setting cas_enabled":  func(_, target *fake) { target.settings["cas_enabled"] = "no" },
		"key dump not allowed": func(source, _ *fake) {
			source.instead = instead("lru_crawler", "ERROR key dump not allowed\r\n")
		},
		"has no memory for more items": func(_, target *fake) {
			target.settings["evictions"], target.settings["maxbytes"] = "off", "1048576"
		},
		"has no memory": func(_, target *fake) {
			target.instead = instead(" N", "EN\r\n")
		},
		`memcached answered \"HD\"`: func(_, target *fake) {
			target.instead = instead(" N", "HD\r\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, target := newFake(t), newFake(t)
			for i := range 100 {
				source.put("key-"+strconv.Itoa(i), "value")
			}
			spoil(source, target)
			m, last := replace(source, target), 0
			err := run(t, m, func() bool {
				if percent := m.Percent(); percent < last {
					t.Errorf("%d %% after %d %%", percent, last)
				} else {
					last = percent
				}
				return m.Problem() != ""
			})
			if err == nil {
				t.Error("the mover is done")
			}
			if problem := fmt.Sprintf("%q", m.Problem()); !strings.Contains(problem, name) {
				t.Errorf("got the problem %s, want %q", problem, name)
			}
			if n := len(source.values()); n != 100 {
				t.Errorf("%d of 100 items are left", n)
			}
		})
	}
}

// TestPlaceholders: another mover may have left placeholders, so that the move is not done before they have expired.
// Nothing can be left before the change.
func TestPlaceholders(t *testing.T) {
	t.Parallel()
	source, target := newFake(t), newFake(t)
	m, begin := replace(source, target), time.Now()
	if err := run(t, m, func() bool { return time.Since(begin) > leaseTime/2 }); err == nil {
		t.Errorf("the mover is done after %s, and placeholders last for %s", time.Since(begin), leaseTime)
	}
	m.Phase = contract.Purge
	if err := run(t, m, func() bool { return time.Since(begin) > leaseTime }); err != nil {
		t.Error(err)
	}
}

// TestTokens: an item that a client was told to renew moves. One that is stale, or that a client has yet to set, is
// dropped: without its token, which cannot move with it, other clients would take it for an item with an empty value.
func TestTokens(t *testing.T) {
	t.Parallel()
	source, target := newFake(t), newFake(t)
	for _, key := range []string{"valid", "renewed", "stale", "empty", "not set"} {
		source.put(key, "value")
	}
	source.items["renewed"].marks, source.items["renewed"].ttl = " Z", "10"
	source.items["stale"].marks = " W X"
	source.items["empty"].value = ""
	source.items["not set"].marks, source.items["not set"].value, source.items["not set"].ttl = " Z", "", "300"
	if _, err := pass(t, replace(source, target)); err != nil {
		t.Fatal(err)
	}
	got := target.values()
	if _, ok := got["empty"]; !ok || len(got) != 3 || got["valid"] != "value" || got["renewed"] != "value" {
		t.Errorf("got %v", got)
	}
	if left := source.values(); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// TestMemory: the mover needs the memory of one item, as large as it may be.
func TestMemory(t *testing.T) {
	const size = 32 << 20
	c := answered(fmt.Sprintf("VA %d f0 t-1 c1\r\n%s\r\n", size, strings.Repeat("x", size)))
	c.largest = size
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	a, err := c.answer()
	if err != nil {
		t.Fatal(err)
	}
	i := &item{name: "key"}
	if err := i.fill(a); err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriter(io.Discard)
	store(w, i)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > size+size/8 {
		t.Errorf("used %d MiB for an item of %d MiB", used>>20, size>>20)
	}
}

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

// TestAffected: a server that is added gets keys from all others, and a server that is replaced from one.
func TestAffected(t *testing.T) {
	t.Parallel()
	three := []contract.Server{{Name: "c-0", Address: "a"}, {Name: "c-1", Address: "b"}, {Name: "c-2", Address: "c"}}
	replaced := []contract.Server{three[0], {Name: "c-3", Address: "d"}, three[2]}
	for _, tt := range []struct {
		before, after    []contract.Server
		sources, targets string
	}{{three[:2], three, "a b", "c"}, {three, three[:2], "c", "a b"}, {three, replaced, "b", "d"}} {
		sources := strings.Join(affected(tt.before, tt.after), " ")
		if targets := strings.Join(affected(tt.after, tt.before), " "); sources != tt.sources || targets != tt.targets {
			t.Errorf("from %v to %v: keys move from %s to %s", tt.before, tt.after, sources, targets)
		}
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
