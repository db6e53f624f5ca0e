package agent

import (
	"strings"
	"testing"
)

// TestListOfAll: a list is reported once all threads use it, by the answers that memcached 1.6.45 gave.
func TestListOfAll(t *testing.T) {
	t.Parallel()
	for stats, want := range map[string]string{
		"END\r\n": "",
		"STAT funcs_0123456789abcdef 4\r\nEND\r\n":                                  "0123456789abcdef",
		"STAT funcs_0123456789abcdef 3\r\nSTAT funcs_fedcba9876543210 1\r\nEND\r\n": "",
	} {
		if got := listOfAll(stats); got != want {
			t.Errorf("%q: got the list %q, want %q", stats, got, want)
		}
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
		if got := listOfAll(stats); got != "" && (named != 1 || !strings.Contains(stats, "STAT funcs_"+got)) {
			t.Errorf("got the list %q from an answer that names %d", got, named)
		}
	})
}
