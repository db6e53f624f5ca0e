package agent

import "testing"

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
