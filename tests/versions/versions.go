// Package versions has clients that write and read versions of keys, and notice a value that is too old.
package versions

import (
	"context"
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

// slots is the number of keys in use.
const slots = 300

// Clients use a cache through any of its proxies.
type Clients struct {
	// Proxies returns the addresses of the proxies.
	Proxies func() []string
	// Pause is the time that each client waits after a request; 0 for none.
	Pause time.Duration
	// Old counts values older than one whose write or delete was acknowledged. Errors counts requests without an answer,
	// and those whose answer is an error.
	Reads, Hits, Writes, Errors, Old atomic.Int64

	least [slots]atomic.Int64 // by slot: the least version that a client may read from now on
	// names has the number of the key that is in a slot. A key whose write had no success gets out of use: the write may
	// take effect later, after another one.
	names [slots]atomic.Int64
}

// Start starts clients, and returns a function that stops them.
func (c *Clients) Start(number int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for i := range number {
		running.Go(func() {
			one := &client{Clients: c, conns: map[string]*textproto.Conn{}, versions: map[int]int64{}}
			for ctx.Err() == nil {
				if rand.IntN(3) > 0 {
					one.read(rand.IntN(slots))
				} else {
					one.write(rand.IntN(slots/number)*number + i) // no other client writes this key
				}
				time.Sleep(c.Pause)
			}
			for _, conn := range one.conns {
				_ = conn.Close()
			}
		})
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// String sums up what the clients saw.
func (c *Clients) String() string {
	return fmt.Sprintf("%d reads, %d hits, %d writes, %d errors, %d old values", c.Reads.Load(), c.Hits.Load(),
		c.Writes.Load(), c.Errors.Load(), c.Old.Load())
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

func (c *Clients) key(slot int) string { return fmt.Sprintf("key-%d-%d", slot, c.names[slot].Load()) }

func (c *client) read(slot int) {
	least := c.least[slot].Load() // before the key, whose versions only grow
	key := c.key(slot)
	line, value, err := c.ask("get %s", key)
	c.Reads.Add(1)
	switch {
	case err != nil:
		c.Errors.Add(1)
	case strings.HasPrefix(line, "VALUE "):
		c.Hits.Add(1)
		if version, err := strconv.ParseInt(value, 10, 64); err != nil || version < least {
			c.Old.Add(1)
		}
	}
}

// write writes a version, or deletes the key: then only a later version may be read.
func (c *client) write(slot int) {
	c.versions[slot]++
	version, key := strconv.FormatInt(c.versions[slot], 10), c.key(slot)
	var line string
	var err error
	if rand.IntN(4) == 0 {
		line, _, err = c.ask("delete %s", key)
	} else {
		line, _, err = c.ask("set %s 0 0 %d\r\n%s", key, len(version), version)
	}
	c.Writes.Add(1)
	if err != nil || strings.HasPrefix(line, "SERVER_ERROR") {
		c.Errors.Add(1)
		c.least[slot].Store(0)
		c.names[slot].Add(1)
		return
	}
	c.least[slot].Store(c.versions[slot])
}
