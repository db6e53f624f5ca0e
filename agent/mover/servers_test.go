package mover

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestFiles: Parse reads what Files writes.
func TestFiles(t *testing.T) {
	t.Parallel()
	three := []Server{{"c-0", "10.0.0.1:11211"}, {"c-1", "[fd00::2]:11211"}, {"c-2", "10.0.0.3:11211"}}
	two := three[:2]
	for text, s := range map[string]Servers{
		"\n": {},
		"c-0 10.0.0.1:11211\nc-1 [fd00::2]:11211\n": {After: two},
		"phase 1\nold c-0 10.0.0.1:11211\nold c-1 [fd00::2]:11211\n" +
			"c-0 10.0.0.1:11211\nc-1 [fd00::2]:11211\nc-2 10.0.0.3:11211\n": {
			Phase: PreferBefore, Before: two, After: three},
		"phase 2\nold c-0 10.0.0.1:11211\nold c-1 [fd00::2]:11211\nold c-2 10.0.0.3:11211\n" +
			"c-0 10.0.0.1:11211\nc-1 [fd00::2]:11211\n": {
			Phase: PreferAfter, Before: three, After: two, Mover: "cache-proxy-a"},
	} {
		files := s.Files()
		if files["servers"] != text || files["mover"] != s.Mover || !Parse(files).Equal(s) {
			t.Errorf("got files %q and from them %+v, want %q and %+v", files, Parse(files), text, s)
		}
	}
}

// FuzzParse: whatever somebody writes into the files, Parse finds no other words than theirs, and reads what Files
// writes of them.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"", "\n", "c-0 10.0.0.1:11211\nc-1 [fd00::2]:11211\n",
		"phase 1\nold c-0 10.0.0.1:11211\nc-0 10.0.0.1:11211\nc-2 10.0.0.3:11211\n", "phase\na 1\nphase 1 2\nphase 3",
		"old phase 2\nold a 1\n", "a\u0085b c\rd\n"} {
		f.Add(text, "")
		f.Add(text, " cache-proxy-a\n")
	}
	f.Fuzz(func(t *testing.T, text, mover string) {
		s := Parse(map[string]string{"servers": text, "mover": mover})
		if again := Parse(s.Files()); !reflect.DeepEqual(again, s) || !again.Equal(s) || again.List() != s.List() {
			t.Errorf("%+v became %+v", s, again)
		}
		if !strings.Contains(mover, s.Mover) || !strings.Contains(text, string(s.Phase)) {
			t.Errorf("got the mover %q and the phase %q", s.Mover, s.Phase)
		}
		list := slices.Concat(s.Before, s.After)
		for _, server := range list {
			if !strings.Contains(text, server.Name) || !strings.Contains(text, server.Address) {
				t.Errorf("got %+v", server)
			}
		}
		if lines := strings.Count(text, "\n") + 1; len(list) > lines {
			t.Errorf("got %d servers from %d lines", len(list), lines)
		}
	})
}

// TestTarget: in each phase, the mover touches only items that are on a wrong server.
func TestTarget(t *testing.T) {
	t.Parallel()
	three := []Server{{"c-0", "a"}, {"c-1", "b"}, {"c-2", "c"}}
	two := three[:2]
	moved := 0
	for i := range 1000 {
		key := string(rune('a'+i%26)) + string(rune('a'+i/26))
		before, after := addressOf(two, key), addressOf(three, key)
		for _, server := range []string{"a", "b", "c"} {
			purged := (&Mover{Servers: Servers{Phase: Purge, Before: two, After: three}}).target(server, key)
			if want := map[bool]string{false: server}[server == before]; purged != want {
				t.Errorf("phase 0, key %s of %s on %s: got target %q, want %q", key, before, server, purged, want)
			}
			got := (&Mover{Servers: Servers{Phase: PreferAfter, Before: two, After: three}}).target(server, key)
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
