package agent

import (
	"bufio"
	"bytes"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// memcachedConn is the agent's side of a connection to a memcached, which answers each request at once.
type memcachedConn struct {
	net.Conn // nil: the agent uses no other method
	answer   func(request string) string
	answers  bytes.Buffer // that the agent has not read yet
}

func (c *memcachedConn) Write(request []byte) (int, error) {
	c.answers.WriteString(c.answer(strings.TrimSuffix(string(request), "\r\n")))
	return len(request), nil
}

func (c *memcachedConn) SetDeadline(time.Time) error { return nil }

func newConnection(answer func(request string) string) *connection {
	c := &memcachedConn{answer: answer}
	return &connection{Conn: c, reader: bufio.NewReader(&c.answers)}
}

// FuzzStats: the agent reads what memcached answers up to the first line that is no statistic, and no further.
func FuzzStats(f *testing.F) {
	for _, answer := range []string{"", "\n", "END\r\n", "END", "OK\r\nEND\r\n", "STAT curr_items 7\r\n",
		"STAT version 1.6.45\r\nSTAT curr_items 7\r\nEND\r\nVERSION 1.6.45\r\n", "STAT \r\n\r\n",
		"STAT a 9223372036854775808\r\nSTAT b -1\r\nBUSY currently processing crawler request\r\n"} {
		f.Add(answer)
	}
	f.Fuzz(func(t *testing.T, answer string) {
		answer = answer[:min(len(answer), 4096)] // TestEndlessAnswers has longer ones
		lines := slices.Collect(strings.Lines(answer))
		n := 1 + slices.IndexFunc(lines, func(line string) bool {
			return strings.HasSuffix(line, "\n") && !strings.HasPrefix(line, "STAT ")
		})
		want := answer
		if n > 0 {
			want = strings.Join(lines[:n], "")
		}
		c := newConnection(func(string) string { return answer })
		if got, err := c.stats("stats"); string(got) != want || (err == nil) != (n > 0) {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
		if n == 0 {
			return
		}
		values, err := (&statsConn{conn: newConnection(func(string) string { return answer })}).values(t.Context(), "stats")
		if err != nil || len(values) > n {
			t.Errorf("got %v, %v from %d lines", values, err, n)
		}
		for name := range values {
			if !strings.Contains(want, name) {
				t.Errorf("the answer has no %q", name)
			}
		}
	})
}

// TestEndlessAnswers: a program that answers without an end in place of memcached does not exhaust the agent's memory.
func TestEndlessAnswers(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{"a line": strings.Repeat("x", 2*maxResponse),
		"a statistic": "STAT " + strings.Repeat("x", 2*maxResponse),
		"statistics":  strings.Repeat("STAT a 1\r\n", maxResponse)} {
		got, err := newConnection(func(string) string { return answer }).stats("stats")
		if err == nil || len(got) > maxResponse+len(answer)/maxResponse {
			t.Errorf("%s: got %d bytes, %v", name, len(got), err)
		}
		if err := newConnection(func(string) string { return answer }).expect("version", "VERSION "); err == nil ||
			len(err.Error()) > 100 {
			t.Errorf("%s: got the error %.200v", name, err)
		}
	}
}

// FuzzExpect: whatever memcached answers to a login, the error does not quote the password.
func FuzzExpect(f *testing.F) {
	for _, answer := range []string{"", "STORED\r\n", "STORED", "CLIENT_ERROR authentication failure\r\n",
		"\r\nSTORED\r\n",
		"ERROR\r\nEND\r\n"} {
		f.Add(answer)
	}
	f.Fuzz(func(t *testing.T, answer string) {
		const password = "TOPSECRET"
		answer = answer[:min(len(answer), 4096)]
		line, _, complete := strings.Cut(answer, "\n")
		err := newConnection(func(string) string { return answer }).expect("set x 0 0 13\r\napp "+password, "STORED")
		if want := complete && strings.HasPrefix(line, "STORED"); (err == nil) != want {
			t.Errorf("%q: got the error %v", answer, err)
		}
		if err != nil && strings.Contains(err.Error(), password) && !strings.Contains(answer, password) {
			t.Errorf("%q: the error %q quotes the password", answer, err)
		}
	})
}
