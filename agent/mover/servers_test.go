package mover

import (
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
