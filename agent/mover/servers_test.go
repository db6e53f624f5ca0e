package mover

import (
	"testing"
)

// TestFiles: Parse reads what Files writes.
func TestFiles(t *testing.T) {
	t.Parallel()
	two, three := []string{"10.0.0.1:11211", "[fd00::2]:11211"}, []string{"10.0.0.1:11211", "[fd00::2]:11211", "c:1"}
	for text, s := range map[string]Servers{
		"\n":                                {},
		"10.0.0.1:11211\n[fd00::2]:11211\n": {After: two},
		"phase 1\nold 10.0.0.1:11211\nold [fd00::2]:11211\n10.0.0.1:11211\n[fd00::2]:11211\nc:1\n": {
			Phase: PreferBefore, Before: two, After: three},
		"phase 2\nold 10.0.0.1:11211\nold [fd00::2]:11211\nold c:1\n10.0.0.1:11211\n[fd00::2]:11211\n": {
			Phase: PreferAfter, Before: three, After: two, Mover: "cache-proxy-a"},
	} {
		files := s.Files()
		if files["servers"] != text || files["mover"] != s.Mover || !Parse(files).Equal(s) {
			t.Errorf("got files %q and from them %+v, want %q and %+v", files, Parse(files), text, s)
		}
	}
}

// TestTarget: in each phase, the mover touches only items that are on a wrong server.
func TestTarget(t *testing.T) {
	t.Parallel()
	two, three := []string{"a", "b"}, []string{"a", "b", "c"}
	moved := 0
	for i := range 1000 {
		key := string(rune('a'+i%26)) + string(rune('a'+i/26))
		before, after := serverOf(two, key), serverOf(three, key)
		for _, server := range three {
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
