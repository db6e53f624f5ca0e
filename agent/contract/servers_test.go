package contract

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestFiles: ParseServers reads what Files writes.
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
		if files["servers"] != text || files["mover"] != s.Mover || !ParseServers(files).Equal(s) {
			t.Errorf("got files %q and from them %+v, want %q and %+v", files, ParseServers(files), text, s)
		}
	}
}

// FuzzParse: whatever somebody writes into the files, ParseServers finds no other words than theirs, and reads what
// Files writes of them.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"", "\n", "c-0 10.0.0.1:11211\nc-1 [fd00::2]:11211\n",
		"phase 1\nold c-0 10.0.0.1:11211\nc-0 10.0.0.1:11211\nc-2 10.0.0.3:11211\n", "phase\na 1\nphase 1 2\nphase 3",
		"old phase 2\nold a 1\n", "a\u0085b c\rd\n"} {
		f.Add(text, "")
		f.Add(text, " cache-proxy-a\n")
	}
	f.Fuzz(func(t *testing.T, text, mover string) {
		s := ParseServers(map[string]string{"servers": text, "mover": mover})
		if again := ParseServers(s.Files()); !reflect.DeepEqual(again, s) || !again.Equal(s) || again.Hash() != s.Hash() {
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
