package e2e

import (
	"errors"
	"fmt"
	"net/textproto"
	"strings"
	"sync"
	"time"
)

// keys is the number of keys that clients use.
const keys = 300

// traffic counts the results of requests. refused counts writes that the proxy refuses while a server is unavailable.
type traffic struct{ hits, misses, refused int }

// load lets clients read keys, and write each tenth one and those that they miss, during act and for two seconds after
// it. Each client has one lasting connection, and opens a new one every few milliseconds. It fails if a request has no
// response or an error, except for writes that the proxy refuses.
func (w world) load(act func(), clients ...memcachedClient) (sum traffic) {
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
			note(useConnection(conn, stop))
		})
		going.Go(func() { note(traffic{}, reconnect(c, stop)) })
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
	time.Sleep(2 * time.Second) // the clients continue
	return sum                  // the deferred function completes it
}

// reconnect connects, sends a request and disconnects, again and again, until stop is closed or a request fails.
func reconnect(c memcachedClient, stop <-chan struct{}) error {
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

// useConnection reads and writes over one connection until stop is closed or a request fails.
func useConnection(conn *textproto.Conn, stop <-chan struct{}) (l traffic, err error) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return l, nil
		case <-time.After(time.Millisecond):
		}
		key := fmt.Sprintf("key-%d", i%keys)
		answer, err := ask(conn, "get %s", key)
		write := i%10 == 0
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
			write = true
		default:
			err = errors.New(answer)
		}
		if err == nil && write {
			answer, err = ask(conn, "set %s 0 0 5\r\nvalue", key)
			if answer == "SERVER_ERROR server unreachable" {
				l.refused++
			} else if err == nil && answer != "STORED" {
				err = errors.New(answer)
			}
		}
		if err != nil {
			return l, fmt.Errorf("%s: %w", key, err)
		}
	}
}
