package names

import (
	"fmt"
	"testing"
)

// FuzzOrdinal: a name is that of one server at most, and each server is found by its name.
func FuzzOrdinal(f *testing.F) {
	for _, server := range []string{"", "cache", "cache-0", "cache-10", "cache-01", "cache-+1", "cache--1",
		"cache-proxy-0",
		"cache-0-0", "other-0", "cache-9223372036854775808", "0"} {
		f.Add("cache", server)
	}
	f.Add("", "-0")
	f.Add("cache-0", "cache-0-1")
	f.Fuzz(func(t *testing.T, set, server string) {
		if n := Ordinal(set, server); n < -1 || n >= 0 && fmt.Sprintf("%s-%d", set, n) != server {
			t.Errorf("%q of %q has the ordinal %d", server, set, n)
		}
		if got := Ordinal(set, fmt.Sprintf("%s-%d", set, len(server))); got != len(server) {
			t.Errorf("server %d of %q has the ordinal %d", len(server), set, got)
		}
	})
}
