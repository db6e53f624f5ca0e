package mover

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/example/memcached-operator/agent/memcached"
	"github.com/example/memcached-operator/internal/testing/harness"
)

// largestItem is the size of the largest item of servers in tests.
const largestItem = 1 << 20

// answered returns a connection to a server that has sent a text, and sends no other.
func answered(text string) *conn {
	rest := text
	c := &conn{largest: largestItem, Conn: memcached.NewConn(harness.NewAnswering(func(string) string {
		defer func() { rest = "" }()
		return rest
	}))}
	_, _ = c.Write(nil)
	return c
}

// FuzzAnswer: whatever a server answers, the mover reads the values that it contains, and needs no memory for others.
func FuzzAnswer(f *testing.F) {
	for _, text := range []string{"", "HD\r\n", "HD s4 c9\r\n", "EN\r\n", "NS\r\nEX\r\nNF\r\n",
		"VA 3 f0 t-1 c9\r\na\nb\r\nHD\r\n",
		"VA 0 W\r\n\r\n", "VA\r\n", "VA x\r\n", "VA -3\r\n", "VA 3\r\nab", "SERVER_ERROR out of memory storing object\r\n",
		"CLIENT_ERROR bad command line format\r\n", "ERROR\r\n", "\r\n",
		"VA 2147483647\r\n"} { // once got 2 GiB of memory
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, left := answered(text), len(text)
		for {
			a, err := c.answer()
			if cap(a.value) > largestItem+1024 {
				t.Fatalf("%d bytes of memory for %d bytes", cap(a.value), len(text))
			}
			if err != nil {
				return
			}
			if left -= len(a.code) + len(a.value); left < 0 || !strings.Contains(text, a.code) ||
				!strings.Contains(text, string(a.value)) {
				t.Fatalf("%+v is not in the answer", a)
			}
			for flag, token := range a.flags {
				if !strings.Contains(a.line, string([]byte{flag})+token) {
					t.Fatalf("%+v has other flags than its line", a)
				}
			}
		}
	})
}

// FuzzDump: whatever a server answers, the mover finds no more keys than the server names.
func FuzzDump(f *testing.F) {
	for _, text := range []string{"", "EN\r\n", "mg a\r\nmg Zm9v b\r\nEN\r\n", "mg \r\nEN\r\n", "OK\r\n", "mg a",
		"mg a b c\r\nx\r\n", "BUSY currently processing crawler request\r\n", "ERROR locked try again later\r\n",
		"ERROR\r\n", "mg  b\r\nEN\r\n",
		"mg Zm\n9v b\r\nEN\r\n"} { // these were once taken for base64
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		found := 0
		err := dump(answered(text).Conn, func(listed string) error {
			found++
			if !strings.Contains(text, "mg "+listed) {
				t.Errorf("got the key %q", listed)
			}
			for _, name := range names(listed) {
				i := item{name: name}
				if key, flag, _ := strings.Cut(name, " "); key != i.key() || key == "" && listed != "" ||
					flag != "" && flag != "b" || strings.Contains(name, "\n") {
					t.Errorf("got the key %q, and %q in requests", i.key(), name)
				}
			}
			return nil
		})
		if found > strings.Count("\n"+text, "\nmg ") || err == nil && !strings.Contains(text, "EN") &&
			!strings.Contains(text, "ERROR") {
			t.Errorf("got %d keys, %v", found, err)
		}
	})
}

// FuzzExpiry: an item keeps the time to live that it has, which memcached counts in 32 bits; one that has expired may
// stay for a second.
func FuzzExpiry(f *testing.F) {
	for _, ttl := range []string{"", "-1", "0", "1", "x", "2592000", "2592001", "379996602", "379996603", "4294967295",
		"+1", "01"} {
		f.Add(ttl)
	}
	f.Fuzz(func(t *testing.T, ttl string) {
		now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		n, err := strconv.ParseInt(ttl, 10, 64)
		if n > math.MaxUint32 {
			t.Skip("memcached has no such time to live")
		}
		want := min(max(n, 1), math.MaxInt32-now.Unix()) // seconds, to memcached's last second at most; 0 for ever
		if err != nil || n < 0 {
			want = 0
		}
		got, err := strconv.ParseInt(expiry(ttl, now), 10, 64)
		if got > 30*24*60*60 {
			got -= now.Unix()
		}
		if err != nil || got != want {
			t.Errorf("got %q for %d s, %v", expiry(ttl, now), want, err)
		}
	})
}
