package proxy

import (
	"bufio"
	"cmp"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/internal/testing/harness"
)

// request is a row of docs/reference/proxy-requests.md.
type request struct{ text, class string }

// readRequests returns the rows of the page: all kinds of requests.
func readRequests(t testing.TB) (list []request) {
	t.Helper()
	root, err := harness.Repository()
	require.NoError(t, err)
	page, err := os.ReadFile(filepath.Join(root, "docs/reference/proxy-requests.md"))
	require.NoError(t, err)
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (\\w+) \\|").FindAllStringSubmatch(string(page), -1) {
		list = append(list, request{m[1], m[2]})
	}
	require.Greater(t, len(list), 40)
	return list
}

// fill replaces the words that stand for something.
func (r request) fill(key, binary, data, cas string) string {
	text := strings.NewReplacer("KEY", key, "BINARY", binary, "SIZE", strconv.Itoa(len(data)), "CAS", cas).Replace(r.text)
	if before, ok := strings.CutSuffix(text, " DATA"); ok {
		text = before + "\r\n" + data
	}
	return text
}

// steps are what a proxy sends to the old and to the new server for a request of each class, while the old one has an
// item.
var steps = map[string]string{
	"read":   "new:it old:it",
	"write":  "new:it old:md",
	"delete": "old:it new:it",
	"add":    "old:me",
	"change": "old:me new:me old:it",
	"touch":  "old:me new:me old:it old:ms",
}

// TestClasses: the proxy treats each request as the page says, also with values that it does not expect.
func TestClasses(t *testing.T) {
	t.Parallel()
	f := start(t, 0)
	var mu sync.Mutex
	var log []string
	reset := func() (last []string) {
		mu.Lock()
		defer mu.Unlock()
		last, log = log, nil
		return last
	}
	fake := func(name string, holds bool) contract.Server {
		address := serveFake(t, func(command, line string) string {
			mu.Lock()
			log = append(log, name+":"+line)
			mu.Unlock()
			return answerOf(command, line, holds)
		})
		return contract.Server{Name: name, Address: address}
	}
	before, after := fake("old", true), fake("new", false)
	f.use(contract.Servers{Phase: contract.PreferAfter, Before: []contract.Server{before},
		After: []contract.Server{after}})
	for _, r := range readRequests(t) {
		text := r.fill("key", "AAA=", "1", "5")
		command, _, _ := strings.Cut(text, "\r\n")
		withoutN := regexp.MustCompile(` N\d+`).ReplaceAllString(command, "") // with it, the old server could create an item
		reset()
		f.ask("%s", text)
		var got []string
		for _, line := range reset() {
			server, line, _ := strings.Cut(line, ":")
			if line == withoutN && line != "me key" {
				line = "it"
			}
			got = append(got, server+":"+line[:2])
		}
		want := steps[r.class]
		if command == "me key" {
			want = strings.ReplaceAll(want, "it", "me")
		}
		assert.Equal(t, want, strings.Join(got, " "), "%s, %s", r.text, r.class)
	}
}

// serveFake serves what looks like a memcached: answer gets the first word of each request, and its line.
func serveFake(t testing.TB, answer func(command, line string) string) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				r := bufio.NewReader(conn)
				for {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					line = strings.TrimSuffix(line, "\r\n")
					words := strings.Fields(line)
					size := ""
					switch words[0] {
					case "ms":
						size = words[2]
					case "set", "add", "replace", "append", "prepend", "cas":
						size = words[4]
					case "version":
						_, _ = io.WriteString(conn, "VERSION 1.6.45\r\n")
						continue
					}
					if n, err := strconv.Atoi(size); err == nil {
						if _, err := r.Discard(n + 2); err != nil {
							return
						}
					}
					if _, err := io.WriteString(conn, answer(words[0], line)); err != nil {
						return
					}
				}
			}()
		}
	}()
	return listener.Addr().String()
}

// hits and misses are the answers of a memcached that holds any key, with the CAS 5, and of one that holds none.
var (
	hits = map[string]string{"get": "VALUE key 0 1\r\n1\r\nEND", "me": "ME key exp=-1 la=0 cas=5 fetch=no cls=1 size=60",
		"incr": "1", "decr": "1", "touch": "TOUCHED", "delete": "DELETED", "mg": "HD", "ma": "HD", "ms": "HD", "md": "HD"}
	misses = map[string]string{"get": "END", "mg": "EN", "me": "EN", "delete": "NOT_FOUND", "md": "NF", "set": "STORED"}
)

// answerOf returns the answer of a memcached that holds any key, or none.
func answerOf(command, line string, holds bool) string {
	answers, otherwise := misses, "HD"
	if holds {
		answers, otherwise = hits, "STORED"
	}
	if command == "gets" || command == "gat" || command == "gats" {
		command = "get"
	}
	answer := cmp.Or(answers[command], otherwise)
	if holds && (command == "mg" || command == "ma") && strings.Contains(line, " v") {
		answer = "VA 1\r\n1"
	}
	return answer + "\r\n"
}
