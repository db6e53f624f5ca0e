// Package versions has clients that write and read versions of keys, and notice a value that is too old.
package versions

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Clients use a cache through any of its proxies.
type Clients struct {
	// Proxies returns the addresses of the proxies.
	Proxies func() []string
	// Keys is the number of keys in use.
	Keys int
	// Pause is the time that each client waits after a request; 0 for none.
	Pause time.Duration
	// Old counts values older than one whose write or delete was acknowledged, and Lost misses of keys that were not
	// deleted since their last write was acknowledged. Errors counts requests without an answer, and those whose answer is
	// an error.
	Reads, Hits, Writes, Errors, Old, Lost atomic.Int64

	slots []slot

	mu sync.Mutex
	// failures counts the errors by their causes.
	failures map[string]int
}

// slot is a key in use.
type slot struct {
	least atomic.Int64 // the least version that a client may read from now on
	// name is the number of the key. A key whose write had no success gets out of use: the write may take effect later,
	// after another one.
	name atomic.Int64
	// stored counts the writes. While the last of them is acknowledged and stored a value, it is even.
	stored atomic.Int64
}

// Start starts clients, which first write all keys, and returns a function that stops them.
func (c *Clients) Start(number int) (stop func()) {
	c.slots, c.failures = make([]slot, c.Keys), map[string]int{}
	for i := range c.slots {
		c.slots[i].stored.Store(1)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running, filled sync.WaitGroup
	filled.Add(number)
	for i := range number {
		running.Go(func() {
			one := &client{Clients: c, conns: map[string]*textproto.Conn{}, versions: map[int]int64{}}
			for slot := i; slot < c.Keys; slot += number { // no other client writes these
				one.set(slot)
			}
			filled.Done()
			for ctx.Err() == nil {
				if rand.IntN(3) > 0 {
					one.read(rand.IntN(c.Keys))
				} else if slot := rand.IntN(c.Keys/number)*number + i; rand.IntN(4) > 0 {
					one.set(slot)
				} else {
					one.delete(slot)
				}
				time.Sleep(c.Pause)
			}
			for _, conn := range one.conns {
				_ = conn.Close()
			}
		})
	}
	filled.Wait()
	return func() {
		cancel()
		running.Wait()
	}
}

// String sums up what the clients saw.
func (c *Clients) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("%d keys: %d reads, %d hits, %d writes, %d errors %v, %d lost, %d old values", c.Keys,
		c.Reads.Load(), c.Hits.Load(), c.Writes.Load(), c.Errors.Load(), c.failures, c.Lost.Load(), c.Old.Load())
}

// failed counts a request without success.
func (c *Clients) failed(err error) {
	c.Errors.Add(1)
	for cause := err; cause != nil; cause = errors.Unwrap(cause) { // without the ports of each connection
		err = cause
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures[err.Error()]++
}

// client is one of the clients.
type client struct {
	*Clients
	conns    map[string]*textproto.Conn
	versions map[int]int64 // of the keys that it writes
}

// timeout bounds a request.
const timeout = 5 * time.Second

// ask sends a request to one of the proxies. It returns the first line of the answer, and the value if there is one.
func (c *client) ask(format string, args ...any) (line, value string, err error) {
	proxies := c.Proxies()
	if len(proxies) == 0 {
		return "", "", errors.New("no proxy")
	}
	address := proxies[rand.IntN(len(proxies))]
	conn := c.conns[address]
	if conn == nil {
		plain, err := net.DialTimeout("tcp", address, timeout)
		if err != nil {
			return "", "", err
		}
		conn = textproto.NewConn(plain)
		c.conns[address] = conn
	}
	done := time.AfterFunc(timeout, func() { _ = conn.Close() })
	defer done.Stop()
	if err = conn.PrintfLine(format, args...); err == nil {
		line, err = conn.ReadLine()
	}
	if err == nil && strings.HasPrefix(line, "VALUE ") {
		if value, err = conn.ReadLine(); err == nil {
			_, err = conn.ReadLine() // END
		}
	}
	if err != nil {
		_ = conn.Close()
		delete(c.conns, address)
	}
	return line, value, err
}

func (c *Clients) key(slot int) string {
	return fmt.Sprintf("key-%d-%d", slot, c.slots[slot].name.Load())
}

func (c *client) read(slot int) {
	least, stored := c.slots[slot].least.Load(), c.slots[slot].stored.Load() // before the key, whose versions only grow
	key := c.key(slot)
	line, value, err := c.ask("get %s", key)
	c.Reads.Add(1)
	switch {
	case err != nil:
		c.failed(err)
	case strings.HasPrefix(line, "VALUE "):
		c.Hits.Add(1)
		if version, err := strconv.ParseInt(value, 10, 64); err != nil || version < least {
			c.Old.Add(1)
		}
	case stored%2 == 0 && c.slots[slot].stored.Load() == stored:
		c.Lost.Add(1)
	}
}

// set writes the next version.
func (c *client) set(slot int) {
	version := strconv.FormatInt(c.versions[slot]+1, 10)
	if c.write(slot, "set %s 0 0 %d\r\n%s", c.key(slot), len(version), version) {
		c.slots[slot].stored.Add(1)
	}
}

// delete deletes the key: then only a later version may be read.
func (c *client) delete(slot int) { c.write(slot, "delete %s", c.key(slot)) }

func (c *client) write(slot int, format string, args ...any) (acknowledged bool) {
	s := &c.slots[slot]
	c.versions[slot]++
	if s.stored.Load()%2 == 0 {
		s.stored.Add(1)
	}
	line, _, err := c.ask(format, args...)
	c.Writes.Add(1)
	if err == nil && strings.HasPrefix(line, "SERVER_ERROR") {
		err = errors.New(line)
	}
	if err != nil {
		c.failed(err)
		s.least.Store(0)
		s.name.Add(1)
		return false
	}
	s.least.Store(c.versions[slot])
	return true
}
