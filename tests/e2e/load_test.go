package e2e

import (
	"errors"
	"fmt"
	"net/textproto"
	"strings"
	"sync"
	"time"
)

// keys is how many keys the clients use.
const keys = 300

// traffic is what clients saw. Writes that a proxy could not do are refused.
type traffic struct{ hits, misses, refused int }

// load has clients read keys, and write those that they miss, while something happens and for a while after that. Each
// client has a connection that lasts, and makes a new one every few milliseconds. Each request must be answered, and
// not by an error, except for writes that a proxy cannot do.
func (w world) load(act func(), clients ...caller) (sum traffic) {
	w.Helper()
	stop := make(chan struct{})
	var mu sync.Mutex
	var failures []error
	var going sync.WaitGroup
	note := func(l traffic, err error) {
		mu.Lock()
		defer mu.Unlock()
		sum.hits, sum.misses, sum.refused = sum.hits+l.hits, sum.misses+l.misses, sum.refused+l.refused
		if err != nil {
			failures = append(failures, err)
		}
	}
	for _, c := range clients {
		lasting := c
		lasting.patience = time.Hour
		conn, err := lasting.dial()
		w.must(err)
		going.Go(func() {
			defer conn.Close()
			note(through(conn, stop))
		})
		going.Go(func() { note(traffic{}, again(c, stop)) })
	}
	defer func() {
		close(stop)
		going.Wait()
		w.Logf("%d hits, %d misses, %d refused writes", sum.hits, sum.misses, sum.refused)
		if len(failures) > 0 {
			w.Errorf("%d clients failed: %v", len(failures), failures)
		}
	}()
	act()
	time.Sleep(2 * time.Second) // the clients go on
	return sum                  // which the deferred function completes
}

// again connects, asks for an answer and leaves, until it is told to stop or fails.
func again(c caller, stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			return nil
		case <-time.After(5 * time.Millisecond):
		}
		conn, err := c.dial()
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		answer, err := ask(conn, "mn")
		if err := errors.Join(err, conn.Close()); err != nil || answer != "MN" {
			return fmt.Errorf("mn on a new connection: %q, %w", answer, err)
		}
	}
}

// through reads and writes over one connection until it is told to stop, or a request fails.
func through(conn *textproto.Conn, stop <-chan struct{}) (l traffic, err error) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return l, nil
		case <-time.After(time.Millisecond):
		}
		key := fmt.Sprintf("key-%d", i%keys)
		answer, err := ask(conn, "get %s", key)
		switch {
		case err != nil:
			return l, fmt.Errorf("get %s: %w", key, err)
		case strings.HasPrefix(answer, "VALUE "):
			l.hits++
			for err == nil && answer != "END" {
				answer, err = conn.ReadLine()
			}
		case answer == "END":
			l.misses++
			answer, err = ask(conn, "set %s 0 0 5\r\nvalue", key)
			if answer == "SERVER_ERROR server unreachable" {
				l.refused++
			} else if err == nil && answer != "STORED" {
				err = errors.New(answer)
			}
		default:
			err = errors.New(answer)
		}
		if err != nil {
			return l, fmt.Errorf("%s: %w", key, err)
		}
	}
}
