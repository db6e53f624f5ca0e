package mover

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// minPlaceholderCAS is the least CAS of a placeholder; that of an item is a small number, unless a client chose it.
	minPlaceholderCAS = 1 << 62
	// leaseTime is the time after which a placeholder expires, besides the time that the largest item takes.
	leaseTime = 3 * time.Second
	// chunkBytes limits the values that are on their way together, unless there is only one: clients wait for them.
	chunkBytes = 64 << 10
	// tries is how often a chunk tries to move an item that a client keeps changing. The next pass finds it again.
	tries = 3
)

// move moves items that the source may have, and returns how many it had.
func move(source, target *conn, items []*item) (found int, err error) {
	var present []*item // otherwise a placeholder would be for nothing
	err = source.each(items, func(w *bufio.Writer, i *item) { fmt.Fprintf(w, "mg %s s u\r\n", i.name) },
		func(i *item, a answer) (err error) {
			switch a.code {
			case "HD":
				present = append(present, i)
				i.size, err = a.number('s')
			case "EN", clientError: // one key that memcached refuses must not keep the others
			default:
				err = a.unexpected()
			}
			return err
		})
	for rest := present; len(rest) > 0 && err == nil; {
		n, size := 1, rest[0].size
		for n < len(rest) && size+rest[n].size <= chunkBytes {
			size += rest[n].size
			n++
		}
		err = moveChunk(source, target, rest[:n], size)
		rest = rest[n:]
	}
	return len(present), err
}

// moveChunk moves items whose values have this size together.
func moveChunk(source, target *conn, items []*item, size uint64) error {
	if err := target.hasRoom(size); err != nil {
		return err
	}
	leased, err := lease(source, target, items)
	if err != nil {
		return err
	}
	taken, takeErr := take(source, leased)
	storeErr := target.each(taken, store, func(i *item, a answer) error {
		switch i.value = nil; a.code {
		case "HD", "EX", "NF": // stored, or a client was faster
			return nil
		}
		return a.unexpected()
	})
	if err := errors.Join(storeErr, takeErr); err != nil {
		return err
	}
	left := slices.DeleteFunc(leased, func(i *item) bool { return slices.Contains(taken, i) })
	return target.each(left, func(w *bufio.Writer, i *item) { fmt.Fprintf(w, "md %s C%d\r\n", i.name, i.lease) }, nil)
}

// lease puts placeholders on the target, and returns the items that have one. If the target has a newer item, the old
// one is deleted at the source.
func lease(source, target *conn, items []*item) (leased []*item, err error) {
	var old []*item
	if err := target.each(items, func(w *bufio.Writer, i *item) {
		i.lease = minPlaceholderCAS | rand.Uint64N(minPlaceholderCAS) //nolint:gosec // need not be secret, only different
		fmt.Fprintf(w, "mg %s c N%.0f E%d\r\n", i.name, target.leaseTime().Seconds(), i.lease)
	}, func(i *item, a answer) error {
		switch cas, err := a.number('c'); {
		case a.code == "EN":
			return target.full()
		case err != nil:
			return err
		case cas >= minPlaceholderCAS: // ours, or that of a mover that was stopped
			i.lease, leased = cas, append(leased, i)
		default:
			old = append(old, i)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	_, err = source.remove(old)
	return leased, err
}

// take reads items, removes them from the source, and returns those that it removed, also after an error.
func take(source *conn, items []*item) (taken []*item, err error) {
	for range tries {
		var read, changed []*item
		if err := source.each(items, func(w *bufio.Writer, i *item) { fmt.Fprintf(w, "mg %s v f t c u\r\n", i.name) },
			func(i *item, a answer) error {
				if a.code == "EN" {
					return nil // deleted or expired
				}
				read = append(read, i)
				return i.fill(a)
			}); err != nil {
			return taken, err
		}
		if err := source.each(read, func(w *bufio.Writer, i *item) { fmt.Fprintf(w, "md %s C%d\r\n", i.name, i.cas) },
			func(i *item, a answer) error {
				switch {
				case a.code == "HD" && !i.dropped:
					taken = append(taken, i)
					return nil
				case a.code == "EX":
					changed = append(changed, i)
				case a.code != "HD" && a.code != "NF":
					return a.unexpected()
				}
				i.value = nil
				return nil
			}); err != nil {
			return taken, err
		}
		if items = changed; len(items) == 0 {
			break
		}
	}
	return taken, nil
}
