package agent

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/agent/mover"
)

// moveLimit is the number of items that are moved in a second. Moving takes the processors of servers from clients.
const moveLimit rate.Limit = 20000

const (
	// checkInterval is the pause between two checks whether the servers answer, and checkTimeout is how long one may take:
	// the kernel repeats the first packet of a connection after a second.
	checkInterval = 3 * time.Second
	checkTimeout  = 2 * time.Second
	// maxChecks is the number of servers that are checked at the same time, and about the number that a Report names.
	maxChecks = 16
)

// proxy reports on the proxy in the same pod, and moves items where the list of servers names this pod.
type proxy struct {
	pod   string
	log   *slog.Logger
	stats *statsConn

	mu          sync.Mutex
	mover       *mover.Mover // nil for none
	stopMover   func()       // waits until the mover has stopped
	unreachable []string     // names of servers
}

// run moves items whenever the mounted files name this pod, and checks whether the servers answer, until ctx is done.
func (p *proxy) run(ctx context.Context) error {
	go wait.UntilWithContext(ctx, func(ctx context.Context) {
		servers, _ := readServers(contract.ProxyPath) // the error is logged below
		unreachable := unreachable(ctx, slices.Concat(servers.Before, servers.After))
		p.mu.Lock()
		defer p.mu.Unlock()
		p.unreachable = unreachable
	}, checkInterval)
	var current contract.Servers
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if servers, err := readServers(contract.ProxyPath); err != nil {
			p.log.Error("cannot read the list of servers", "error", err)
		} else if !servers.Equal(current) {
			current = servers
			p.start(ctx, servers)
		}
	}, readInterval)
	p.start(ctx, contract.Servers{})
	return nil
}

// unreachable returns the names of the first servers that do not answer.
func unreachable(ctx context.Context, servers []contract.Server) (names []string) {
	for some := range slices.Chunk(servers, maxChecks) {
		var mu sync.Mutex
		var group sync.WaitGroup
		for _, server := range some {
			group.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, checkTimeout)
				defer cancel()
				c, err := (&memcached{address: server.Address}).dial(ctx, nil, "")
				if err == nil {
					_ = c.Close()
					return
				}
				mu.Lock()
				defer mu.Unlock()
				names = append(names, server.Name)
			})
		}
		group.Wait()
		if len(names) >= maxChecks {
			break
		}
	}
	slices.Sort(names)
	return names
}

// readServers reads the files of a volume, all of the same version: the kubelet replaces the directory that ..data
// links to.
func readServers(dir string) (s contract.Servers, err error) {
	if dir, err = filepath.EvalSymlinks(filepath.Join(dir, "..data")); err != nil {
		return s, err
	}
	files := map[string]string{}
	for _, name := range []string{"servers", "mover"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return s, err
		}
		files[name] = string(text)
	}
	return contract.ParseServers(files), nil
}

// start stops the mover, waits until it has stopped, and starts another one if the servers name this pod.
func (p *proxy) start(ctx context.Context, servers contract.Servers) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mover != nil {
		p.stopMover()
		p.mover = nil
	}
	if servers.Mover != p.pod || servers.Phase == contract.NoChange {
		return
	}
	p.log.Info("moving items", "phase", servers.Phase, "before", servers.Before, "after", servers.After)
	ctx, cancel := context.WithCancel(ctx)
	m := &mover.Mover{Servers: servers, Limit: moveLimit}
	var running sync.WaitGroup
	running.Go(func() { _ = m.Run(ctx, p.log) }) // its errors are logged
	p.mover, p.stopMover = m, func() {
		cancel()
		running.Wait()
	}
}

// report says what the proxy and this agent do with the list of servers.
func (p *proxy) report(ctx context.Context) (r contract.Report, err error) {
	response, err := p.stats.get(ctx, "stats proxyfuncs")
	if err != nil {
		return r, err
	}
	r.ListHash = commonHash(string(response))
	p.mu.Lock()
	defer p.mu.Unlock()
	r.Unreachable = p.unreachable
	if p.mover == nil {
		return r, nil
	}
	if r.Percent, r.Problem = p.mover.Percent(), p.mover.Problem(); r.Percent == 100 {
		r.MovedHash = p.mover.Hash()
	}
	return r, nil
}

// commonHash returns the hash of the list that all threads of a proxy use, from the answer to stats proxyfuncs; empty
// while some use another one. Each list has a line with the number of threads that use it, until the last request that
// began with the list has ended.
func commonHash(stats string) string {
	var lists []string
	for line := range strings.Lines(stats) {
		if line, ok := strings.CutPrefix(line, "STAT funcs_"); ok {
			name, _, _ := strings.Cut(line, " ")
			lists = append(lists, name)
		}
	}
	if len(lists) != 1 {
		return ""
	}
	return lists[0]
}
