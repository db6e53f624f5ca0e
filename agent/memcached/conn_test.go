package memcached

import (
	"slices"
	"strings"
	"testing"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// answering returns a connection to a server with one answer.
func answering(answer string) *Conn {
	return NewConn(harness.NewAnswering(func(string) string { return answer }))
}

// FuzzStats: a response ends with the first line that is no statistic, and has no other values than its own.
func FuzzStats(f *testing.F) {
	for _, answer := range []string{"", "\n", "END\r\n", "END", "OK\r\nEND\r\n", "STAT curr_items 7\r\n",
		"STAT version 1.6.45\r\nSTAT curr_items 7\r\nEND\r\nVERSION 1.6.45\r\n", "STAT \r\n\r\n",
		"STAT a 9223372036854775808\r\nSTAT b -1\r\nBUSY currently processing crawler request\r\n"} {
		f.Add(answer)
	}
	f.Fuzz(func(t *testing.T, answer string) {
		answer = answer[:min(len(answer), 4096)] // TestEndless has longer ones
		lines := slices.Collect(strings.Lines(answer))
		n := 1 + slices.IndexFunc(lines, func(line string) bool {
			return strings.HasSuffix(line, "\n") && !strings.HasPrefix(line, "STAT ")
		})
		want := strings.Join(lines[:n], "")
		if got, err := answering(answer).Request("stats"); string(got) != want || (err == nil) != (n > 0) {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
		stats, err := answering(answer).Stats("stats")
		if (err == nil) != (n > 0 && lines[n-1] == "END\r\n") || len(stats) > n {
			t.Errorf("got %v, %v from %d lines", stats, err, n)
		}
		for name, value := range stats {
			if !strings.Contains(want, name) || !strings.Contains(want, value) {
				t.Errorf("the answer has no %q %q", name, value)
			}
		}
	})
}

// TestEndless: a program that answers without an end in place of memcached does not exhaust the agent's memory.
func TestEndless(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{"a line": strings.Repeat("x", 2*maxResponse),
		"a statistic": "STAT " + strings.Repeat("x", 2*maxResponse),
		"statistics":  strings.Repeat("STAT a 1\r\n", maxResponse)} {
		c := answering(answer)
		if got, err := c.Stats("stats"); err == nil || len(err.Error()) > 100 {
			t.Errorf("%s: got %d values, %.200v", name, len(got), err)
		}
		if left, err := c.Reader.Discard(2 * maxResponse); name == "statistics" && err != nil {
			t.Errorf("%s: more than the maximum was read: %d bytes were left", name, left)
		}
	}
}

// TestExpect: an answer must begin with one of the words. The error does not quote the request, which has a password.
func TestExpect(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{"STORED\r\n": "", "BUSY now\r\n": "", "STORED": "EOF", "": "EOF",
		"\r\nSTORED\r\n":                   `memcached answered ""`,
		"CLIENT_ERROR unauthenticated\r\n": `memcached answered "CLIENT_ERROR unauthenticated"`} {
		got := ""
		if err := answering(answer).Expect("set x 0 0 10\r\na password", "STORED", "BUSY"); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", answer, got, want)
		}
	}
}
