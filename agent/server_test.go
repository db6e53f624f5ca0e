package agent

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/agent/memcached"
	"github.com/example/memcached-operator/internal/testing/harness"
)

// cache answers as a memcached with pages of 1 MiB does.
type cache struct {
	limit, pages, hashTable int // MiB
	classes                 int // keep a page each
	refuses                 string
	busy                    bool
	reads, flushedAt        int // requests for statistics, of which two arrive each second; the second of the last flush
	crawls                  int // in later seconds
	commands                []string
}

// besideServer returns the agent beside a server that answers in this way.
func besideServer(answer func(request string) string) *cacheServer {
	conn := memcached.NewConn(harness.NewAnswering(answer))
	return &cacheServer{client: &client{conn: conn}, log: slog.New(slog.DiscardHandler)}
}

// start returns the agent beside the cache.
func (c *cache) start() *cacheServer {
	return besideServer(func(request string) string { return c.answer(request) + "\r\n" })
}

func (c *cache) answer(request string) string {
	switch request {
	case "stats":
		c.reads++
		return fmt.Sprintf("STAT version 1.6.45\r\nSTAT uptime %d\r\nSTAT limit_maxbytes %d\r\nSTAT hash_bytes %d\r\n"+
			"STAT curr_items 7\r\nEND", c.uptime(), c.limit*mebi, c.hashTable*mebi)
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
		if c.uptime() > c.flushedAt {
			c.crawls++
		}
		return "OK"
	}
	c.commands = append(c.commands, request)
	c.flushedAt = c.uptime()
	if c.refuses != "" {
		return c.refuses
	}
	_, _ = fmt.Sscanf(request, "cache_memlimit %d", &c.limit)
	return "OK"
}

func (c *cache) uptime() int { return c.reads / 2 }

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
		"in bytes, 64 bits once overflowed to the memory of before": {cache: cache{limit: 64},
			wanted: "17592186044480 3", want: cache{limit: 64}, err: "has no memory in MiB"},
	} {
		s := tt.cache.start()
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

// TestFreePages: a memcached that gives back no page is asked for some time, and seldom.
func TestFreePages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		requests := 0
		s := besideServer(func(request string) string {
			requests++
			if request == "stats slabs" {
				return fmt.Sprintf("STAT active_slabs 1\r\nSTAT total_malloced %d\r\nEND\r\n", 100*mebi)
			}
			return "BUSY\r\n"
		})
		begin := time.Now()
		err := s.freePages(t.Context(), 64*mebi)
		took := time.Since(begin)
		if err == nil || took < pageTimeout || took > pageTimeout+maxPause || requests > 100 {
			t.Errorf("got %v after %s and %d requests", err, took, requests)
		}
	})
}

// TestFlush: memcached drops all items once for each flush, also if the agent is restarted meanwhile, and none if the
// agent cannot store what memcached has done. The flush ends in a later second than memcached began it, because
// memcached also drops what is written in that second.
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
		// These were once compared as texts, and later ones were not done.
		{wanted: "2026-01-02T05:04:05+01:00 1", err: "has no time of a flush", flushes: 2, crawls: 2},
		{wanted: "2026-01-02T3:04:05Z 1", err: "has no time of a flush", flushes: 2, crawls: 2},
		{wanted: "2026-01-02T03:04:05,5Z 1", err: "has no time of a flush", flushes: 2, crawls: 2},
		{wanted: second + " 2", file: full, err: "no such file", flushes: 2, crawls: 2},
		{wanted: second + " 2", flushes: 3, crawls: 3},
		{wanted: first + " 1", flushes: 3, crawls: 3}, // from an operator that leads no more
	} {
		c.refuses = tt.refuses
		if tt.restart {
			s = c.start()
		}
		s.flushed = cmp.Or(tt.file, filepath.Join(folder, "flushed"))
		err := s.flushOnce(t.Context(), tt.wanted)
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) ||
			len(c.commands) != tt.flushes || c.crawls != tt.crawls {
			t.Errorf("%+v: got %v, the commands %v and %d crawls", tt, err, c.commands, c.crawls)
		}
	}
	for _, command := range c.commands {
		if command != "flush_all 1" { // others keep items that were used in this second
			t.Errorf("got the command %q", command)
		}
	}
}

// TestDrain: the kubelet gets its answer once the operator lets the server stop, and not at once.
func TestDrain(t *testing.T) {
	t.Parallel()
	d := &drain{stop: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+contract.DrainPath, d.wait)
	mux.HandleFunc("POST "+contract.StopPath, d.letStop)
	server := httptest.NewUnstartedServer(mux)
	server.Config.ReadTimeout, server.Config.WriteTimeout = requestTimeout, requestTimeout
	server.Start()
	defer server.Close()
	stop := func() int {
		response, err := http.Post(server.URL+contract.StopPath, "", nil)
		harness.Must(t, err)
		harness.Must(t, response.Body.Close())
		return response.StatusCode
	}
	if got := stop(); got != http.StatusConflict {
		t.Errorf("got status %d although the kubelet does not wait", got)
	}
	begin, answered := time.Now(), make(chan error, 1)
	go func() {
		response, err := http.Get(server.URL + contract.DrainPath)
		if err == nil {
			err = response.Body.Close()
		}
		answered <- err
	}()
	harness.Eventually(t, "the kubelet waits", 10*time.Second, func() error {
		if d.waiting.Load() == 0 {
			return http.ErrNotSupported
		}
		return nil
	})
	select {
	case err := <-answered:
		t.Fatalf("the kubelet was answered before the operator asked for that (%v)", err)
	case <-time.After(2 * requestTimeout):
	}
	for range 2 { // the operator may repeat its request
		if got := stop(); got != http.StatusOK {
			t.Errorf("got status %d", got)
		}
	}
	harness.Must(t, <-answered)
	if took := time.Since(begin); took < stopNotice {
		t.Errorf("the server was stopped after %s, before clients noticed", took)
	}
	if got := stop(); got != http.StatusConflict || d.waiting.Load() != 0 {
		t.Errorf("got status %d although the kubelet does not wait any more", got)
	}
}
