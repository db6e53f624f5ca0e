// Package mover moves items between memcached servers while the servers behind proxies change, so that no item is lost
// and no older value comes back.
// For each item, the mover first puts a placeholder on the new server, which is empty and has a lease for CAS. Then it
// removes the item from the old server, and replaces the placeholder with it. Whatever a client does meanwhile, changes
// or removes the placeholder, so that the item does not replace a newer one.
package mover

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/time/rate"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/agent/memcached"
)

const (
	// pause is the time between two passes, and retry the time after an error.
	pause, retry = 100 * time.Millisecond, time.Second
	// batch is the number of items that are moved together. The rate limit allows as many at once.
	batch = 64
)

// Mover does what a phase asks for. No more than one may run at a time for the same servers.
type Mover struct {
	contract.Servers
	// Limit is the number of items that are moved or deleted in a second.
	Limit rate.Limit

	visited, items int64 // in this pass
	percent        atomic.Int64
	problem        atomic.Value // a string
}

// Percent says how much of the items has been visited: 100 once Run has returned nil. It never decreases: a pass that
// fails and begins again is no progress. The first pass finds almost all items.
func (m *Mover) Percent() int { return int(m.percent.Load()) }

// Problem says why the last pass failed; empty if it did not.
func (m *Mover) Problem() string {
	problem, _ := m.problem.Load().(string)
	return problem
}

// Run deletes or moves items until none is left, or ctx is done. In phase Purge, no proxy may know the change yet; in
// phase PreferAfter, all proxies must be in it, and may leave it once Run has returned nil. Run continues what another
// mover began, and repeats what failed.
func (m *Mover) Run(ctx context.Context, log *slog.Logger) error {
	limiter := rate.NewLimiter(m.Limit, batch)
	stopped := time.Now() // when another mover, or a pass, may have left placeholders
	for {
		found, leaseTime, err := m.pass(ctx, limiter)
		wait, problem := pause, ""
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			log.Error("cannot move items", "error", err)
			stopped, wait, problem = time.Now(), retry, err.Error()
		case found == 0:
			if wait = time.Until(stopped.Add(leaseTime)); wait <= 0 || m.Phase == contract.Purge {
				m.percent.Store(100)
				return nil
			}
		}
		m.problem.Store(problem)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// jump returns the position of the server for a key in a list of this many servers; 0 if there is none. It is the jump
// hash of Lamping and Veach (https://arxiv.org/abs/1406.2294), with which few keys move when the number changes. It
// follows a key from one server on to all: with one more server, the key jumps there with the right probability.
func jump(key uint64, servers int) int {
	position, next := 0, 0
	for next < servers {
		position = next
		key = key*2862933555777941757 + 1
		next = int(float64(position+1) * (float64(1<<31) / float64(key>>33+1)))
	}
	return position
}

// addressOf returns the address of the server that memcached's proxy selects for a key by default: it hashes keys by
// XXH3. The address is empty if there is no server.
func addressOf(servers []contract.Server, key string) string {
	if len(servers) == 0 {
		return ""
	}
	return servers[jump(xxh3.HashString(key), len(servers))].Address
}

// target returns the server to which an item of a server must be moved: the same one if the item must be deleted, and
// empty if it must stay.
func (m *Mover) target(server, key string) string {
	before := addressOf(m.Before, key)
	switch {
	case m.Phase == contract.Purge && before != server: // left over from another change: it would seem newer
		return server
	case m.Phase == contract.PreferAfter && before == server && addressOf(m.After, key) != server:
		return addressOf(m.After, key)
	}
	return ""
}

// affected returns the addresses of those servers that exchange keys with another list of servers, which stands for
// them before or after a change: a longer list gets keys from all, and a shorter one gives keys to all.
func affected(servers, others []contract.Server) (addresses []string) {
	for i, s := range servers {
		if len(others) > len(servers) || i >= len(others) || others[i] != s {
			addresses = append(addresses, s.Address)
		}
	}
	return addresses
}

// pass deletes or moves the items that it finds, one server after the other, and returns how many it found. Because
// clients may change items meanwhile, none is left once a pass finds none. Placeholders last no longer than leaseTime.
func (m *Mover) pass(ctx context.Context, limiter *rate.Limiter) (found int, leaseTime time.Duration, err error) {
	sources, targets := affected(m.Before, m.After), affected(m.After, m.Before)
	visited := sources
	if m.Phase == contract.Purge {
		visited = targets
	}
	m.visited, m.items = 0, 0
	conns := map[string]*conn{}
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for _, server := range append(sources, targets...) {
		c, err := connect(ctx, server)
		if err != nil {
			return 0, 0, err
		}
		conns[server] = c
		if slices.Contains(visited, server) {
			m.items += c.items
		}
		leaseTime = max(leaseTime, c.leaseTime()+time.Second) // memcached's clock counts whole seconds
	}
	for _, server := range visited {
		n, err := m.visit(ctx, server, conns, limiter)
		if found += n; err != nil {
			return found, leaseTime, err
		}
	}
	return found, leaseTime, nil
}

// visit deletes or moves the items of a server, in batches that have the same target.
func (m *Mover) visit(ctx context.Context, server string, conns map[string]*conn,
	limiter *rate.Limiter) (found int, err error) {
	pending := map[string][]*item{}
	flush := func(target string) (err error) {
		items, n := pending[target], 0
		delete(pending, target)
		if err := limiter.WaitN(ctx, len(items)); err != nil {
			return err
		}
		if target == server {
			n, err = conns[server].remove(items)
		} else {
			n, err = move(conns[server], conns[target], items)
		}
		found += n
		return err
	}
	list, err := memcached.Dial(ctx, server) // the keys come while batches of them are moved
	if err != nil {
		return 0, err
	}
	defer func() { _ = list.Close() }()
	defer context.AfterFunc(ctx, func() { _ = list.Close() })()
	err = dump(list, func(listed string) error {
		m.visited++
		m.percent.Store(max(m.percent.Load(), min(99, 100*m.visited/max(m.items, 1))))
		target, i := m.find(server, listed)
		if target == "" {
			return ctx.Err()
		}
		pending[target] = append(pending[target], i)
		if len(pending[target]) < batch {
			return nil
		}
		return flush(target)
	})
	for target := range pending {
		if err == nil {
			err = flush(target)
		}
	}
	return found, err
}

// find returns the item that a server lists, by the name with which proxies find it there, and its target.
func (m *Mover) find(server, listed string) (target string, i *item) {
	for _, name := range names(listed) {
		i = &item{name: name}
		if addressOf(m.Before, i.key()) == server {
			break
		}
	}
	return m.target(server, i.key()), i
}
