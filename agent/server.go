package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/example/memcached-operator/agent/contract"
)

const (
	// pageTimeout is how long memcached may take to give back a page. minPause and maxPause bound the time between two
	// requests: it doubles while memcached gives back none.
	pageTimeout        = 10 * time.Second
	minPause, maxPause = 5 * time.Millisecond, 500 * time.Millisecond
	// crawlTimeout is how long memcached may take to remove what was dropped.
	crawlTimeout, crawlInterval = time.Minute, 100 * time.Millisecond
)

const mebi = 1 << 20

// stopNotice is how long a server still accepts connections after the kubelet announced its end, so that clients and
// Services notice.
const stopNotice = 5 * time.Second

// cacheServer reports on the server in the same pod, and does what the operator asks for.
type cacheServer struct {
	client *client
	log    *slog.Logger
	drain  drain
	// flushed is the path of a file with the newest flush that memcached has done: an agent that is restarted does not
	// repeat it.
	flushed string
	crawled string // the newest flush whose items the crawler has removed

	mu            sync.Mutex // guards what follows
	memory, flush change
}

// change is what a mounted file asks for.
type change struct {
	applied string // the content that memcached was last given
	problem string // why memcached was not given the newest content; empty for nothing
}

// run gives memcached what the mounted files ask for, also after memcached was restarted, until ctx is done.
func (s *cacheServer) run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		files := readFiles[string](contract.PodPath, contract.FlushFile, contract.MemoryFile)
		s.follow(ctx, &s.flush, files[contract.FlushFile], s.flushOnce)
		s.follow(ctx, &s.memory, files[contract.MemoryFile], s.setMemory)
	}, readInterval)
}

// follow applies the content of a mounted file; without one, memcached is as its arguments say.
func (s *cacheServer) follow(ctx context.Context, c *change, wanted string,
	apply func(context.Context, string) error) {
	var err error
	if wanted != "" {
		err = apply(ctx, wanted)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		c.applied, c.problem = wanted, ""
	} else if err.Error() != c.problem && ctx.Err() == nil {
		c.applied, c.problem = "", err.Error()
		s.log.Error("memcached cannot be changed", "wanted", wanted, "error", err)
	}
}

// flushOnce makes memcached drop all items, once for each flush: the first word of wanted, a time that sorts as text.
func (s *cacheServer) flushOnce(ctx context.Context, wanted string) error {
	flush, _, _ := strings.Cut(wanted, " ")
	// Other forms of a time, as with another time zone, would not sort as text.
	if at, err := time.Parse(time.RFC3339, flush); err != nil || at.UTC().Format(time.RFC3339) != flush {
		return fmt.Errorf("the annotation of the pod has no time of a flush: %q", wanted)
	}
	last, err := os.ReadFile(s.flushed)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if string(last) < flush {
		// What is written first is no obstacle afterwards: memcached would drop items again and again.
		next := s.flushed + ".new"
		if err := os.WriteFile(next, []byte(flush), 0o600); err != nil {
			return err
		}
		// Without the 1, items that were used in this second can stay.
		// https://github.com/memcached/memcached/blob/1.6.45/items.c
		if err := s.client.expect(ctx, "flush_all 1", "OK"); err != nil {
			return err
		}
		if err := os.Rename(next, s.flushed); err != nil {
			return err
		}
	}
	if s.crawled < flush {
		if err := s.crawl(ctx); err != nil {
			s.log.Error("memcached still counts items that were dropped", "error", err)
		}
		s.crawled = flush
	}
	return nil
}

// crawl waits until the second of a flush is over, because memcached also drops what is written in the rest of it. Then
// it waits until the crawler of memcached, unless an argument disables it, has removed what was dropped, because
// memcached counts such items until then.
func (s *cacheServer) crawl(ctx context.Context) error {
	flushedAt, busy := int64(-1), true
	return wait.PollUntilContextTimeout(ctx, crawlInterval, crawlTimeout, true, func(ctx context.Context) (bool, error) {
		stats, err := s.client.stats(ctx, "stats")
		if err != nil {
			return false, err
		}
		switch second := stats.Number("uptime"); {
		case flushedAt < 0:
			flushedAt = second
		case second == flushedAt:
		case busy:
			busy = s.client.expect(ctx, "lru_crawler crawl all", "BUSY") == nil
		default:
			return stats.Number("lru_crawler_running") == 0, nil
		}
		return false, nil
	})
}

// setMemory sets the memory for items to what wanted asks for. More memory loses no item. With less, memcached drops
// items until the others fit.
func (s *cacheServer) setMemory(ctx context.Context, wanted string) error {
	megabytes, err := contract.ParseMemory(wanted)
	if err != nil {
		return err
	}
	stats, err := s.client.stats(ctx, "stats")
	if err != nil {
		return err
	}
	limit, before, table := megabytes*mebi, stats.Number("limit_maxbytes"), stats.Number("hash_bytes")
	// The hash table never shrinks. Beside less memory for items, it might not fit into the container.
	if limit < before && table > limit/contract.HashTableShare {
		return fmt.Errorf("the hash table of memcached has %d MiB, too much for %d MiB of items", table/mebi, megabytes)
	}
	if limit != before {
		if err := s.client.expect(ctx, fmt.Sprintf("cache_memlimit %d", megabytes), "OK"); err != nil {
			return err
		}
	}
	return s.freePages(ctx, limit)
}

// freePages waits until memcached has given back the pages above a limit in bytes. memcached keeps each page until it
// is asked for, and always one page of each slab class.
func (s *cacheServer) freePages(ctx context.Context, limit int64) error {
	least, since, pause := int64(math.MaxInt64), time.Now(), minPause
	for {
		stats, err := s.client.stats(ctx, "stats slabs")
		pages := stats.Number("total_malloced")
		switch {
		case err != nil || pages <= limit+stats.Number("active_slabs")*mebi:
			return err
		case pages < least:
			least, since, pause = pages, time.Now(), minPause
		case time.Since(since) >= pageTimeout:
			return fmt.Errorf("memcached still has %d MiB of items, and gives back no more", pages/mebi)
		}
		if err := s.client.expect(ctx, "slabs reassign -1 0", "OK", "BUSY"); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
			pause = min(2*pause, maxPause)
		}
	}
}

// report says what the server holds.
func (s *cacheServer) report(ctx context.Context) (r contract.Report, err error) {
	stats, err := s.client.stats(ctx, "stats")
	s.mu.Lock()
	defer s.mu.Unlock()
	return contract.Report{Items: stats.Number("curr_items"), Memory: stats.Number("limit_maxbytes"),
		Applied: s.memory.applied, Problem: s.memory.problem, Flushed: s.flush.applied, FlushProblem: s.flush.problem,
		Draining: s.drain.waiting.Load() > 0}, err
}

// drain keeps a server until the operator lets it stop.
type drain struct {
	waiting atomic.Int32  // requests of the kubelet
	stop    chan struct{} // each of them receives from it
}

// wait answers the kubelet once the server may stop.
func (d *drain) wait(w http.ResponseWriter, r *http.Request) {
	d.waiting.Add(1)
	defer d.waiting.Add(-1)
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{})
	_ = control.SetWriteDeadline(time.Time{})
	notice := time.After(stopNotice)
	var end <-chan time.Time // nil until the server may stop
	for {
		select {
		case <-d.stop:
			end = notice
		case <-end:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// letStop lets the server stop. The operator repeats the request until memcached has stopped.
func (d *drain) letStop(w http.ResponseWriter, _ *http.Request) {
	select {
	case d.stop <- struct{}{}:
	default:
		http.Error(w, "the kubelet does not stop the server", http.StatusConflict)
	}
}
