package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// MemoryFile is the file below PodPath with the value of the annotation MemoryAnnotation of the agent's pod.
const MemoryFile = "memory"

// shrinkTimeout is how long memcached may take to free the memory above a new limit.
const shrinkTimeout = time.Minute

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
	if err != nil || values["limit_maxbytes"] == megabytes*mebi {
		return err
	}
	// The hash table never shrinks. Beside less memory for items, it might not fit into the container.
	if table := values["hash_bytes"]; table > megabytes*mebi/HashTableShare {
		return fmt.Errorf("the hash table of memcached has %d MiB, too much for %d MiB of items", table/mebi, megabytes)
	}
	answer, err := s.stats.get(ctx, fmt.Sprintf("cache_memlimit %d", megabytes))
	if err == nil && !bytes.HasPrefix(answer, []byte("OK")) {
		err = fmt.Errorf("memcached answered %q to cache_memlimit", bytes.TrimSpace(answer))
	}
	if err != nil || values["limit_maxbytes"] < megabytes*mebi {
		return err
	}
	// memcached keeps its pages until each is asked for.
	fits := func(ctx context.Context) (bool, error) {
		values, err := s.stats.values(ctx, "stats slabs")
		if err != nil || values["total_malloced"] <= megabytes*mebi {
			return err == nil, err
		}
		_, err = s.stats.get(ctx, "slabs reassign -1 0") // which may answer BUSY
		return false, err
	}
	return wait.PollUntilContextTimeout(ctx, time.Millisecond, shrinkTimeout, true, fits)
}

// report says what the server holds.
func (s *cacheServer) report(ctx context.Context) (r Report, err error) {
	values, err := s.stats.values(ctx, "stats")
	s.mu.Lock()
	defer s.mu.Unlock()
	return Report{Items: values["curr_items"], Memory: values["limit_maxbytes"], Applied: s.applied,
		Problem: s.problem}, err
}
