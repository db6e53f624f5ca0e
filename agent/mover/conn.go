package mover

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// timeout bounds each exchange with a server, beside the time for values.
	timeout = 2 * time.Second
	// slowest is the least number of bytes in a second at which values are expected to be sent.
	slowest = 4 << 20
	// dumpTimeout bounds the time between two keys. memcached sends nothing while it walks over empty buckets, and has up
	// to 2^32 of them, because its hash table never shrinks. TCP notices a server that is gone earlier.
	dumpTimeout = 5 * time.Minute
	// roomBytes is the memory that a server must have left if it evicts nothing: some pages, for any slab class.
	roomBytes = 4 << 20
	// maxKeyLine bounds the bytes that belong to a key in a list of keys.
	maxKeyLine = 1 << 10
)

// clientError is the code of an answer that begins with CLIENT_ERROR: memcached does not accept the request.
const clientError = "CLIENT_ERROR"

// conn is a connection to a server.
type conn struct {
	net.Conn
	r        *bufio.Reader
	w        *bufio.Writer
	settings map[string]string // of the server
	largest  uint64            // size of an item, in bytes
	values   []byte            // memory of the values that were read last
}

func dial(ctx context.Context, address string) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, r: bufio.NewReader(c), w: bufio.NewWriter(c)}, nil
}

// item is an item that is moved.
type item struct {
	name       string // in requests: the key, and a flag if it is the base64 of a binary one
	lease, cas uint64
	flags, ttl string
	value      []byte
	size       uint64 // of the value, in bytes
	dropped    bool   // rather than moved: it is stale, or has no value yet
}

// key is what the proxy hashes: the key as it is in requests.
func (i *item) key() string {
	key, _, _ := strings.Cut(i.name, " ")
	return key
}

// fill completes an item with what a server has.
func (i *item) fill(a answer) (err error) {
	i.value, i.size, i.flags, i.ttl = a.value, uint64(len(a.value)), a.flag("f"), a.flag("t")
	i.dropped = slices.Contains(a.flags, "X") || slices.Contains(a.flags, "Z") && i.size == 0
	i.cas, err = a.number("c")
	return err
}

// store replaces the placeholder with the item. Between the key and its flag is the size.
func store(w *bufio.Writer, i *item) {
	fmt.Fprintf(w, "ms %s %d%s F%s T%s E%d C%d\r\n", i.key(), len(i.value), strings.TrimPrefix(i.name, i.key()), i.flags,
		expiry(i.ttl, time.Now()), i.cas, i.lease)
	_, _ = w.Write(i.value)
	_, _ = w.WriteString("\r\n")
}

// expiry returns what to send for a remaining time to live, in seconds. memcached takes more than 30 days for a date,
// and 0 for never.
func expiry(ttl string, now time.Time) string {
	switch n, err := strconv.ParseInt(ttl, 10, 64); {
	case err != nil || n < 0:
		return "0"
	case n == 0:
		return "1"
	case n > 30*24*60*60:
		return strconv.FormatInt(min(now.Unix()+n, math.MaxInt32), 10)
	}
	return ttl
}

// answer is the answer to a meta command.
type answer struct {
	code  string
	flags []string
	value []byte
}

// flag returns the token of a flag; empty for none.
func (a answer) flag(name string) string {
	for _, f := range a.flags {
		if token, ok := strings.CutPrefix(f, name); ok {
			return token
		}
	}
	return ""
}

func (a answer) number(name string) (uint64, error) {
	n, err := strconv.ParseUint(a.flag(name), 10, 64)
	if err != nil {
		return 0, a.unexpected()
	}
	return n, nil
}

func (a answer) unexpected() error {
	return fmt.Errorf("memcached answered %q", strings.Join(append([]string{a.code}, a.flags...), " "))
}

// each sends a meta command for each item, and then calls got with each answer.
func (c *conn) each(items []*item, send func(*bufio.Writer, *item), got func(*item, answer) error) error {
	size := uint64(0)
	for _, i := range items {
		size += i.size
	}
	if err := c.SetDeadline(time.Now().Add(timeout + sendTime(size))); err != nil {
		return err
	}
	for _, i := range items {
		send(c.w, i)
	}
	if err := c.w.Flush(); err != nil {
		return err
	}
	for _, i := range items {
		a, err := c.answer()
		if err == nil && got != nil {
			err = got(i, a)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.RemoteAddr(), err)
		}
	}
	return nil
}

// sendTime returns how long a server may take for values of this size.
func sendTime(size uint64) time.Duration { return time.Duration(size/slowest) * time.Second }

// remove deletes items, and returns how many there were.
func (c *conn) remove(items []*item) (found int, err error) {
	err = c.each(items, func(w *bufio.Writer, i *item) { fmt.Fprintf(w, "md %s\r\n", i.name) },
		func(_ *item, a answer) error {
			switch a.code {
			case "HD":
				found++
			case "NF", clientError: // one key that memcached refuses must not keep the others
			default:
				return a.unexpected()
			}
			return nil
		})
	return found, err
}

// stats returns the values in the response to one of the stats commands, by name.
func (c *conn) stats(request string) (values map[string]string, err error) {
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	values = map[string]string{}
	_, err = c.Write([]byte(request + "\r\n"))
	for err == nil {
		var line string
		line, err = c.r.ReadString('\n')
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "STAT" {
			values[fields[1]] = fields[2]
		} else if err == nil && line == "END\r\n" {
			return values, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", c.RemoteAddr(), err)
}

// prepare reads what the server is able to, and returns how many items it holds.
func (c *conn) prepare() (items int64, err error) {
	if c.settings, err = c.stats("stats settings"); err != nil {
		return 0, err
	}
	for setting, value := range map[string]string{"cas_enabled": "yes", "dump_enabled": "yes", "lru_crawler": "yes"} {
		if is := c.settings[setting]; is != value {
			return 0, fmt.Errorf("%s cannot move items: its setting %s is %q", c.RemoteAddr(), setting, is)
		}
	}
	if c.largest, err = strconv.ParseUint(c.settings["item_size_max"], 10, 64); err != nil {
		return 0, err
	}
	values, err := c.stats("stats")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(values["curr_items"], 10, 64)
}

// leaseTime returns the time after which a placeholder on the server expires.
func (c *conn) leaseTime() time.Duration { return leaseTime + 2*sendTime(c.largest) }

// hasRoom returns an error if the server has no memory for values of this size, and evicts nothing.
func (c *conn) hasRoom(size uint64) error {
	if c.settings["evictions"] != "off" {
		return nil
	}
	values, err := c.stats("stats slabs")
	if err != nil {
		return err
	}
	used, usedErr := strconv.ParseUint(values["total_malloced"], 10, 64)
	limit, limitErr := strconv.ParseUint(c.settings["maxbytes"], 10, 64)
	if err := errors.Join(usedErr, limitErr); err != nil {
		return err
	}
	if used+size+roomBytes > limit {
		return c.full()
	}
	return nil
}

func (c *conn) full() error { return fmt.Errorf("%s has no memory for more items", c.RemoteAddr()) }

// answer reads the answer to a meta command. Its value is valid until c.values is used again.
func (c *conn) answer() (a answer, err error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return a, err
	}
	fields := strings.Fields(line)
	if len(fields) == 0 || len(fields[0]) != 2 && fields[0] != clientError {
		return a, fmt.Errorf("memcached answered %q", strings.TrimSpace(line))
	}
	a.code, a.flags = fields[0], fields[1:]
	if a.code != "VA" {
		return a, nil
	}
	if len(a.flags) == 0 {
		return a, errors.New("memcached answered VA without a size")
	}
	size, err := strconv.ParseUint(a.flags[0], 10, 32)
	if err != nil || size > c.largest {
		return a, fmt.Errorf("memcached answered VA with the size %q", a.flags[0])
	}
	a.flags = a.flags[1:]
	value := c.allocate(int(size) + len("\r\n"))
	_, err = io.ReadFull(c.r, value)
	a.value = value[:size]
	return a, err
}

// allocate returns memory for a value. The agent has enough for one of the largest items, and not for two: what is left
// of an earlier one must be given back first.
func (c *conn) allocate(size int) []byte {
	used := len(c.values)
	if used+size > cap(c.values) {
		if c.values, used = nil, 0; size > chunkBytes {
			debug.FreeOSMemory()
		}
		c.values = make([]byte, 0, max(size, chunkBytes))
	}
	c.values = c.values[:used+size]
	return c.values[used:]
}

// errBusy says that the server cannot list its keys now, because it lists them for another client or for itself.
var errBusy = errors.New("memcached lists keys for somebody else")

// dump calls act with each key of the server, as the server lists it.
func (c *conn) dump(act func(line string) error) error {
	if _, err := c.Write([]byte("lru_crawler mgdump hash\r\n")); err != nil {
		return err
	}
	key := "" // and what precedes it in its line; a key may contain the end of a line
	for {
		if err := c.SetDeadline(time.Now().Add(dumpTimeout)); err != nil {
			return err
		}
		line, err := c.r.ReadString('\n')
		if err != nil {
			return err
		}
		isKey, isEnd := strings.HasPrefix(line, "mg "), line == "EN\r\n"
		if key != "" {
			if !isKey && !isEnd && len(key) < maxKeyLine {
				key += line
				continue
			}
			if err := act(strings.TrimSuffix(strings.TrimPrefix(key, "mg "), "\r\n")); err != nil {
				return err
			}
			key = ""
		}
		switch {
		case isKey:
			key = line
		case isEnd:
			return nil
		case strings.HasPrefix(line, "BUSY"), strings.HasPrefix(line, "ERROR locked"):
			return errBusy
		case line != "OK\r\n":
			return fmt.Errorf("memcached answered %q", strings.TrimSpace(line))
		}
	}
}

// names returns how requests may name an item that a server lists in this way. memcached 1.6.45 forgets that a key is
// binary when it creates or extends the item by itself, and then lists the key as it is. The binary protocol allows any
// key.
func names(listed string) (list []string) {
	if encoded, ok := strings.CutSuffix(listed, " b"); ok {
		if _, err := base64.StdEncoding.DecodeString(encoded); err == nil {
			return []string{listed}
		}
	}
	if listed != "" && !strings.ContainsAny(listed, " \n") {
		list = append(list, listed)
	}
	return append(list, base64.StdEncoding.EncodeToString([]byte(listed))+" b")
}

// dump calls act with each key of a server, as the server sends them.
func dump(ctx context.Context, server string, act func(line string) error) error {
	for {
		c, err := dial(ctx, server)
		if err != nil {
			return err
		}
		stop := context.AfterFunc(ctx, func() { _ = c.Close() })
		err = c.dump(act)
		stop()
		_ = c.Close()
		if !errors.Is(err, errBusy) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
