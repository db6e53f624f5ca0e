package agent

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// cache answers as a memcached with pages of 1 MiB does.
type cache struct {
	limit, pages, hashTable int // MiB
	classes                 int // keep a page each
	refuses                 string
	busy                    bool
	crawls                  int
	commands                []string
}

// start returns the agent beside the cache.
func (c *cache) start(t *testing.T) *cacheServer {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &memcached{address: listener.Addr().String()}
	m.candidates.Store(&candidates{[]*tls.Certificate{{}}, []string{""}})
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	go func() {
		defer close(done)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		for lines := bufio.NewScanner(conn); lines.Scan() && lines.Text() != "quit"; {
			_, _ = fmt.Fprintf(conn, "%s\r\n", c.answer(lines.Text()))
		}
	}()
	s := &cacheServer{stats: &statsConn{memcached: m}, log: slog.New(slog.DiscardHandler)}
	t.Cleanup(func() {
		if s.stats.conn != nil {
			_ = s.stats.conn.Close()
		}
	})
	return s
}

func (c *cache) answer(request string) string {
	switch request {
	case "version":
		return "VERSION 1.6.45"
	case "stats":
		return fmt.Sprintf("STAT version 1.6.45\r\nSTAT limit_maxbytes %d\r\nSTAT hash_bytes %d\r\nSTAT curr_items 7\r\nEND",
			c.limit*mebi, c.hashTable*mebi)
	case "stats slabs":
		return fmt.Sprintf("STAT active_slabs %d\r\nSTAT total_malloced %d\r\nEND", c.classes, c.pages*mebi)
	case "slabs reassign -1 0":
		if c.busy = !c.busy; c.busy {
			return "BUSY currently processing reassign request"
		}
		if c.pages <= c.classes {
			return "NOSPARE source class has no spare pages"
		}
		c.pages--
		return "OK"
	}
	if request == "lru_crawler crawl all" {
		if c.busy = !c.busy; c.busy {
			return "BUSY currently processing crawler request"
		}
		c.crawls++
		return "OK"
	}
	c.commands = append(c.commands, request)
	if c.refuses != "" {
		return c.refuses
	}
	_, _ = fmt.Sscanf(request, "cache_memlimit %d", &c.limit)
	return "OK"
}

// TestSetMemory: memcached gets the memory that the annotation asks for, and with less memory gives back its pages.
func TestSetMemory(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		cache  cache
		wanted string
		want   cache // afterwards
		err    string
	}{
		"as it is":         {cache: cache{limit: 64, pages: 60}, wanted: "64 3", want: cache{limit: 64, pages: 60}},
		"more":             {cache: cache{limit: 64, pages: 64}, wanted: "128 3", want: cache{limit: 128, pages: 64}},
		"less":             {cache: cache{limit: 128, pages: 128}, wanted: "64 3", want: cache{limit: 64, pages: 64}},
		"less, but enough": {cache: cache{limit: 128, pages: 40}, wanted: "64 3 done", want: cache{limit: 64, pages: 40}},
		"less than the pages of all classes": {cache: cache{limit: 64, pages: 64, classes: 40}, wanted: "16 3",
			want: cache{limit: 16, pages: 56}},
		"pages that an agent before this one left": {cache: cache{limit: 64, pages: 100}, wanted: "64 3",
			want: cache{limit: 64, pages: 64}},
		"more beside a large hash table": {cache: cache{limit: 64, hashTable: 32}, wanted: "128 3", want: cache{limit: 128}},
		"a large hash table": {cache: cache{limit: 1024, pages: 9, hashTable: 32}, wanted: "64 3",
			want: cache{limit: 1024, pages: 9}, err: "the hash table of memcached has 32 MiB, too much for 64 MiB of items"},
		"refused": {cache: cache{limit: 64, refuses: "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust"},
			wanted: "128 3", want: cache{limit: 64}, err: "memcached answered \"MEMLIMIT_ADJUST_FAILED"},
		"no number": {cache: cache{limit: 64}, wanted: "x 3", want: cache{limit: 64}, err: "has no memory in MiB"},
		"negative":  {cache: cache{limit: 64}, wanted: "-1", want: cache{limit: 64}, err: "has no memory in MiB"},
	} {
		s := tt.cache.start(t)
		err := s.setMemory(t.Context(), tt.wanted)
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: got the error %v, want %q", name, err, tt.err)
		}
		if tt.cache.limit != tt.want.limit || tt.cache.pages != tt.want.pages {
			t.Errorf("%s: got %+v, want %+v", name, tt.cache, tt.want)
		}
		report, err := s.report(t.Context())
		if err != nil || report.Items != 7 || report.Memory != int64(tt.want.limit)*mebi {
			t.Errorf("%s: got the report %+v, %v", name, report, err)
		}
	}
}

// TestFlush: memcached drops all items once for each flush, also if the agent is restarted meanwhile, or cannot store
// what memcached has done.
func TestFlush(t *testing.T) {
	t.Parallel()
	const first, second = "2026-01-02T03:04:05Z", "2026-01-02T03:04:06Z"
	folder := t.TempDir()
	full := filepath.Join(folder, "none", "flushed") // cannot be written
	c := cache{limit: 64}
	var s *cacheServer
	for _, tt := range []struct {
		wanted, refuses, file string
		restart               bool
		err                   string
		flushes, crawls       int
	}{
		{wanted: first + " 1", restart: true, refuses: "CLIENT_ERROR flush_all not allowed",
			err: "CLIENT_ERROR flush_all not allowed", flushes: 1},
		{wanted: first + " 1", flushes: 2, crawls: 1},
		{wanted: first + " 1 flushed", flushes: 2, crawls: 1},
		{wanted: first + " 1 warm", restart: true, flushes: 2, crawls: 2},
		{wanted: "now", err: "has no time of a flush", flushes: 2, crawls: 2},
		{wanted: second + " 2", file: full, err: "no such file", flushes: 3, crawls: 2},
		{wanted: second + " 2", file: full, err: "no such file", flushes: 3, crawls: 2},
		{wanted: second + " 2", flushes: 3, crawls: 3},
		{wanted: first + " 1", flushes: 3, crawls: 3}, // from an operator that leads no more
	} {
		c.refuses = tt.refuses
		if tt.restart {
			s = c.start(t)
		}
		s.flushed = cmp.Or(tt.file, filepath.Join(folder, "flushed"))
		err := s.flushOnce(t.Context(), tt.wanted)
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) ||
			len(c.commands) != tt.flushes || c.crawls != tt.crawls {
			t.Errorf("%+v: got %v, the commands %v and %d crawls", tt, err, c.commands, c.crawls)
		}
	}
}
