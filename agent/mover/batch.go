package mover

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

const (
	// leases is the least CAS of a placeholder; that of an item is a small number, unless a client chose it.
	leases = 1 << 62
	// batchBytes limits the values that are in memory together. One item may be larger.
	batchBytes = 4 << 20
	// tries is how often a batch tries to move an item that a client keeps changing. The next pass finds it again.
	tries = 3
)

// move moves items that the source may have.
func move(source, target *conn, items []*item) error {
	var present []*item // otherwise a placeholder would be for nothing
	err := source.each(items, func(i *item) string { return "mg " + i.name + " s u" },
		func(i *item, a answer) (err error) {
			if a.code == "HD" {
				present = append(present, i)
				i.size, err = a.number("s")
			}
			return err
		})
	if err != nil {
		return err
	}
	items, err = lease(source, target, present)
	for rest := items; len(rest) > 0 && err == nil; {
		var taken []*item
		if taken, rest, err = take(source, rest); err == nil {
			err = target.each(taken, (*item).store, nil) // unless a client was faster
		}
		for _, i := range taken {
			i.value, i.stored = nil, true
		}
	}
	if err != nil {
		return err
	}
	left := slices.DeleteFunc(items, func(i *item) bool { return i.stored })
	return target.each(left, func(i *item) string { return fmt.Sprintf("md %s C%d", i.name, i.lease) }, nil)
}

// lease puts placeholders on the target, and returns the items that have one. The other items are deleted at the
// source: the target has a newer one, or no memory left.
func lease(source, target *conn, items []*item) (leased []*item, err error) {
	var old []*item
	if err := target.each(items, func(i *item) string {
		i.lease = leases | rand.Uint64N(leases) //nolint:gosec // need not be secret, only different
		return fmt.Sprintf("mg %s c N%.0f E%d", i.name, leaseTime.Seconds(), i.lease)
	}, func(i *item, a answer) error {
		switch cas, err := a.number("c"); {
		case a.code == outOfMemory:
			old = append(old, i)
		case err != nil:
			return err
		case cas >= leases: // ours, or that of a mover that was stopped
			i.lease, leased = cas, append(leased, i)
		default:
			old = append(old, i)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	return leased, source.remove(old)
}

// take reads items and removes them from the source, as many as may be in memory. It returns them, and the rest.
func take(source *conn, items []*item) (taken, rest []*item, err error) {
	var size uint64
	for n, i := range items {
		if size += i.size; size > batchBytes && n > 0 {
			items, rest = items[:n], items[n:]
			break
		}
	}
	for range tries {
		var read, changed []*item
		if err := source.each(items, func(i *item) string { return "mg " + i.name + " v f t c u" },
			func(i *item, a answer) error {
				if a.code != "VA" {
					return nil // deleted or expired
				}
				read = append(read, i)
				return i.fill(a)
			}); err != nil {
			return nil, nil, err
		}
		if err := source.each(read, func(i *item) string { return fmt.Sprintf("md %s C%d", i.name, i.cas) },
			func(i *item, a answer) error {
				switch {
				case a.code == "EX":
					changed = append(changed, i)
				case a.code == "HD" && !i.marked:
					taken = append(taken, i)
				default:
					i.value = nil
				}
				return nil
			}); err != nil {
			return nil, nil, err
		}
		if items = changed; len(items) == 0 {
			break
		}
	}
	return taken, rest, nil
}
