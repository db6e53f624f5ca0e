package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/agent/memcached"
	"github.com/example/memcached-operator/agent/mover"
)

// moveLimit is the number of items that are moved in a second. Moving takes the processors of servers from clients.
const moveLimit rate.Limit = 20000

const (
	// checkInterval is the pause between two checks whether the servers answer, and checkTimeout is how long one may take.
	// A new server counts as available two seconds after it was ready, or later: no older report may remain by then.
	checkInterval = 1500 * time.Millisecond
	checkTimeout  = 2 * memcached.Timeout
	// maxChecks is the number of servers that are checked at the same time, and maxNames the number that a Report names.
	maxChecks, maxNames = 64, 16
)

// proxy reports on the proxy in the same pod, and moves items where the list of servers names this pod.
type proxy struct {
	pod    string
	log    *slog.Logger
	client *client

	mover       atomic.Pointer[mover.Mover] // nil for none
	unreachable atomic.Value                // names of servers, a []string; nil before the first check
}

// run moves items whenever the mounted files name this pod, and checks whether the servers answer, until ctx is done.
func (p *proxy) run(ctx context.Context) {
	go wait.UntilWithContext(ctx, func(ctx context.Context) {
		servers := readServers()
		p.unreachable.Store(unreachable(ctx, slices.Concat(servers.Before, servers.After)))
	}, checkInterval)
	for ctx.Err() == nil {
		p.follow(ctx, readServers())
	}
}

// follow does what a list of servers asks for, until there is another one.
func (p *proxy) follow(ctx context.Context, servers contract.Servers) {
	ctx, cancel := context.WithCancel(ctx)
	go wait.UntilWithContext(ctx, func(context.Context) {
		if !readServers().Equal(servers) {
			cancel()
		}
	}, readInterval)
	if servers.Mover == p.pod && servers.Phase != contract.NoChange {
		p.log.Info("moving items", "phase", servers.Phase, "before", servers.Before, "after", servers.After)
		m := &mover.Mover{Servers: servers, Limit: moveLimit}
		p.mover.Store(m)
		_ = m.Run(ctx, p.log) // its errors are logged
	}
	<-ctx.Done()
	p.mover.Store(nil)
}

func readServers() contract.Servers {
	return contract.ParseServers(readFiles[string](contract.ProxyPath, "servers", "mover"))
}

// unreachable returns the names of the first servers that do not answer.
func unreachable(ctx context.Context, servers []contract.Server) (names []string) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	errs := make([]error, len(servers))
	workqueue.ParallelizeUntil(context.Background(), maxChecks, len(servers), func(i int) {
		errs[i] = check(ctx, servers[i].Address)
	})
	for i, server := range servers {
		if errs[i] != nil && len(names) < maxNames {
			names = append(names, server.Name)
		}
	}
	return names
}

// check returns an error unless a server answers.
func check(ctx context.Context, address string) error {
	conn, err := memcached.Dial(ctx, address)
	if err != nil {
		return err
	}
	return errors.Join(conn.Expect("version", "VERSION "), conn.Close())
}

// report says what the proxy and this agent do with the list of servers.
func (p *proxy) report(ctx context.Context) (r contract.Report, err error) {
	stats, err := p.client.stats(ctx, "stats proxyfuncs")
	if err != nil {
		return r, err
	}
	r.ListHash = commonHash(stats)
	r.Unreachable, _ = p.unreachable.Load().([]string)
	if m := p.mover.Load(); m != nil {
		r.Percent, r.Problem = m.Percent(), m.Problem()
		if r.Percent == 100 {
			r.MovedHash = m.Hash()
		}
	}
	return r, nil
}

// commonHash returns the hash of the list that all threads of a proxy use, from the answer to stats proxyfuncs; empty
// while some use another one. Each list has a line with the number of threads that use it, until the last request that
// began with the list has ended.
func commonHash(stats memcached.Stats) string {
	var lists []string
	for name := range stats {
		if hash, ok := strings.CutPrefix(name, "funcs_"); ok {
			lists = append(lists, hash)
		}
	}
	if len(lists) != 1 {
		return ""
	}
	return lists[0]
}
