package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// MemoryFile is the file below PodPath with the value of the annotation MemoryAnnotation of the agent's pod.
const MemoryFile = "memory"

// pageTimeout is how long memcached may take to give back a page.
const pageTimeout = 10 * time.Second

const mebi = 1 << 20

// cacheServer reports on the server in the same pod, and changes its memory.
type cacheServer struct {
	stats *statsConn
	log   *slog.Logger

	mu      sync.Mutex // guards what follows
	applied string     // the content of MemoryFile that memcached has now
	problem string     // why memcached does not have it; empty for nothing
}

// run gives memcached the memory that the mounted file asks for, also after memcached was restarted, until ctx is done.
func (s *cacheServer) run(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		content, err := os.ReadFile(filepath.Join(PodPath, MemoryFile))
		wanted := strings.TrimSpace(string(content))
		if errors.Is(err, os.ErrNotExist) || err == nil && wanted == "" {
			return // memcached has what its arguments say
		}
		if err == nil {
			err = s.setMemory(ctx, wanted)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if err == nil {
			s.applied, s.problem = wanted, ""
		} else if err.Error() != s.problem && ctx.Err() == nil {
			s.applied, s.problem = "", err.Error()
			s.log.Error("cannot change the memory of memcached", "wanted", wanted, "error", err)
		}
	}, readInterval)
	return nil
}

// setMemory sets the memory for items to the first word of wanted, in MiB. More memory loses no item. With less,
// memcached drops items until the others fit.
func (s *cacheServer) setMemory(ctx context.Context, wanted string) error {
	number, _, _ := strings.Cut(wanted, " ")
	megabytes, err := strconv.ParseInt(number, 10, 64)
	if err != nil || megabytes <= 0 {
		return fmt.Errorf("the annotation of the pod has no memory in MiB: %q", wanted)
	}
	values, err := s.stats.values(ctx, "stats")
	if err != nil {
		return err
	}
	limit := megabytes * mebi
	// The hash table never shrinks. Beside less memory for items, it might not fit into the container.
	if table := values["hash_bytes"]; limit < values["limit_maxbytes"] && table > limit/HashTableShare {
		return fmt.Errorf("the hash table of memcached has %d MiB, too much for %d MiB of items", table/mebi, megabytes)
	}
	if limit != values["limit_maxbytes"] {
		if err := s.request(ctx, fmt.Sprintf("cache_memlimit %d", megabytes), "OK"); err != nil {
			return err
		}
	}
	return s.freePages(ctx, limit)
}

// freePages waits until memcached has given back the pages above a limit in bytes. memcached keeps each page until it
// is asked for, and always one page of each slab class.
func (s *cacheServer) freePages(ctx context.Context, limit int64) error {
	least, since := int64(math.MaxInt64), time.Now()
	return wait.PollUntilContextCancel(ctx, time.Millisecond, true, func(ctx context.Context) (bool, error) {
		values, err := s.stats.values(ctx, "stats slabs")
		pages := values["total_malloced"]
		switch {
		case err != nil || pages <= limit+values["active_slabs"]*mebi:
			return err == nil, err
		case pages < least:
			least, since = pages, time.Now()
		case time.Since(since) > pageTimeout:
			return false, fmt.Errorf("memcached still has %d MiB of items, and gives back no more", pages/mebi)
		}
		return false, s.request(ctx, "slabs reassign -1 0", "OK", "BUSY")
	})
}

// request returns an error unless the answer of memcached begins with one of these words.
func (s *cacheServer) request(ctx context.Context, request string, words ...string) error {
	answer, err := s.stats.get(ctx, request)
	if err == nil && !slices.ContainsFunc(words, func(word string) bool { return bytes.HasPrefix(answer, []byte(word)) }) {
		err = fmt.Errorf("memcached answered %q to %s", bytes.TrimSpace(answer), request)
	}
	return err
}

// report says what the server holds.
func (s *cacheServer) report(ctx context.Context) (r Report, err error) {
	values, err := s.stats.values(ctx, "stats")
	s.mu.Lock()
	defer s.mu.Unlock()
	return Report{Items: values["curr_items"], Memory: values["limit_maxbytes"], Applied: s.applied,
		Problem: s.problem}, err
}
