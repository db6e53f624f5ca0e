// Package mover moves items between memcached servers while the servers behind proxies change, so that no item is lost
// and no older value comes back.
//
// It runs while all proxies prefer the new server of a key and still know the old one: phase 2 of proxy.lua. For each
// item, it first puts a placeholder on the new server, which is empty and has a lease for CAS. Then it removes the item
// from the old server, and replaces the placeholder with it. Whatever a client does meanwhile, changes or removes the
// placeholder, so that the item does not replace a newer one.
package mover

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/dgryski/go-jump"
	"github.com/zeebo/xxh3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
)

const (
	// leaseTime is the time after which a placeholder expires: longer than a batch takes, even a slow one.
	leaseTime = 3 * time.Second
	// retry is the time between two passes after an error.
	retry = time.Second
	// batch is the number of items that are moved together. The rate limit allows as many at once.
	batch = 64
)

// Change is a change of the servers behind proxies, each an address with a port.
type Change struct{ Before, After []string }

// pick returns the server that memcached's proxy picks for a key by default; empty if there is none.
func pick(servers []string, key string) string {
	if len(servers) == 0 {
		return ""
	}
	return servers[jump.Hash(xxh3.HashString(key), len(servers))]
}

// Mover carries out a change.
type Mover struct {
	Change
	// Limit is the number of items that are moved in a second, from each server.
	Limit rate.Limit
}

// Purge deletes all items that the servers of the change hold, but do not belong to them before the change: they are
// left over from another change, and would seem newer. No proxy may know the change yet.
func (m Mover) Purge(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	all := slices.Concat(m.Before, m.After)
	slices.Sort(all)
	for _, server := range slices.Compact(all) {
		group.Go(func() error {
			return m.visit(ctx, server, func(key string) string {
				if pick(m.Before, key) == server {
					return ""
				}
				return server
			}, func(source, _ *conn, items []*item) error {
				return source.each(items, func(i *item) string { return "md " + i.name }, nil)
			})
		})
	}
	return group.Wait()
}

// Move moves all items to the servers that are theirs after the change. All proxies must be in phase 2, and may leave
// it once Move has returned nil. It continues what another mover began, and repeats what failed, until ctx is done.
func (m Mover) Move(ctx context.Context, log *slog.Logger) error {
	expired := time.Now().Add(leaseTime + time.Second) // the placeholders of a mover that was stopped
	for {
		found, err := m.pass(ctx)
		wait := time.Duration(0)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			log.Error("cannot move items", "error", err)
			expired, wait = time.Now().Add(leaseTime+time.Second), retry
		case found == 0:
			if wait = time.Until(expired); wait <= 0 {
				return nil
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// pass moves the items that it finds on a server that is not theirs after the change, and returns how many it found.
// Because clients may change items meanwhile, all are moved once a pass finds none.
func (m Mover) pass(ctx context.Context) (found int, err error) {
	group, ctx := errgroup.WithContext(ctx)
	counts := make([]int, len(m.Before))
	for n, server := range m.Before {
		group.Go(func() error {
			return m.visit(ctx, server, func(key string) string {
				target := pick(m.After, key)
				if pick(m.Before, key) != server || target == server {
					return ""
				}
				counts[n]++
				return target
			}, move)
		})
	}
	err = group.Wait()
	for _, n := range counts {
		found += n
	}
	return found, err
}

// visit lists the items of a server, and calls act with batches of those that have the same target. An item without a
// target is left alone.
func (m Mover) visit(ctx context.Context, server string, target func(key string) string,
	act func(source, target *conn, items []*item) error) error {
	conns, limiter, pending := conns{}, rate.NewLimiter(m.Limit, batch), map[string][]*item{}
	defer conns.close()
	flush := func(address string) error {
		items := pending[address]
		delete(pending, address)
		if err := limiter.WaitN(ctx, len(items)); err != nil {
			return err
		}
		from, err := conns.dial(ctx, server)
		if err != nil {
			return err
		}
		to, err := conns.dial(ctx, address)
		if err != nil {
			return err
		}
		return act(from, to, items)
	}
	err := dump(ctx, server, func(i *item) error {
		address := target(i.key())
		if address == "" {
			return nil
		}
		pending[address] = append(pending[address], i)
		if len(pending[address]) < batch {
			return nil
		}
		return flush(address)
	})
	for address := range pending {
		if err == nil {
			err = flush(address)
		}
	}
	return err
}
