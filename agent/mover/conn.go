package mover

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/example/memcached-operator/agent/memcached"
)

const (
	// slowest is the least number of bytes in a second at which values are expected to be sent.
	slowest = 4 << 20
	// dumpTimeout bounds the time between two keys. memcached sends nothing while it walks over empty buckets, and has up
	// to 2^32 of them, because its hash table never shrinks. TCP notices a server that is gone earlier.
	dumpTimeout = 5 * time.Minute
	// roomBytes is the memory that a server must have left if it evicts nothing: some pages, for any slab class.
	roomBytes = 4 << 20
	// maxKeyLine bounds the bytes that belong to a key in a list of keys.
	maxKeyLine = 1 << 10
	// manyBytes is the size of a value for whose sake memory is given back that earlier values had.
	manyBytes = 1 << 20
)

// clientError is the code of an answer that begins with CLIENT_ERROR: memcached does not accept the request.
const clientError = "CLIENT_ERROR"

// conn is a connection to a server.
type conn struct {
	*memcached.Conn
	w        *bufio.Writer
	settings memcached.Stats // of the server
	largest  uint64          // size of an item, in bytes
	items    int64           // number of items, before the pass
}

// connect connects to a server that is able to move items.
func connect(ctx context.Context, address string) (*conn, error) {
	mc, err := memcached.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: mc, w: bufio.NewWriter(mc)}
	if err := c.prepare(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", address, err), mc.Close())
	}
	return c, nil
}

// prepare reads what the server is able to, and how many items it holds.
func (c *conn) prepare() (err error) {
	if c.settings, err = c.Stats("stats settings"); err != nil {
		return err
	}
	for _, setting := range []string{"cas_enabled", "dump_enabled", "lru_crawler"} {
		if is := c.settings[setting]; is != "yes" {
			return fmt.Errorf("cannot move items: its setting %s is %q", setting, is)
		}
	}
	c.largest = uint64(max(0, c.settings.Number("item_size_max")))
	stats, err := c.Stats("stats")
	c.items = stats.Number("curr_items")
	return err
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
	i.value, i.size, i.flags, i.ttl = a.value, uint64(len(a.value)), a.flags['f'], a.flags['t']
	_, isStale := a.flags['X']
	_, isAwaited := a.flags['Z']
	i.dropped = isStale || isAwaited && i.size == 0
	i.cas, err = a.number('c')
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
	line, code string
	flags      map[byte]string // their tokens
	value      []byte
}

// number returns the token of a flag, which must be a number.
func (a answer) number(flag byte) (uint64, error) {
	n, err := strconv.ParseUint(a.flags[flag], 10, 64)
	if err != nil {
		return 0, a.unexpected()
	}
	return n, nil
}

func (a answer) unexpected() error { return memcached.Unexpected(a.line) }

// each sends a meta command for each item, and then calls got with each answer.
func (c *conn) each(items []*item, send func(*bufio.Writer, *item), got func(*item, answer) error) error {
	size := uint64(0)
	for _, i := range items {
		size += i.size
	}
	if err := c.SetDeadline(time.Now().Add(memcached.Timeout + sendTime(size))); err != nil {
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

// leaseTime returns the time after which a placeholder on the server expires.
func (c *conn) leaseTime() time.Duration { return leaseTime + 2*sendTime(c.largest) }

// hasRoom returns an error if the server has no memory for values of this size, and evicts nothing.
func (c *conn) hasRoom(size uint64) error {
	if c.settings["evictions"] != "off" {
		return nil
	}
	stats, err := c.Stats("stats slabs")
	if err == nil && stats.Number("total_malloced")+int64(size)+roomBytes > c.settings.Number("maxbytes") {
		err = c.full()
	}
	return err
}

func (c *conn) full() error { return fmt.Errorf("%s has no memory for more items", c.RemoteAddr()) }

// answer reads the answer to a meta command.
func (c *conn) answer() (a answer, err error) {
	if a.line, err = c.Line(); err != nil {
		return a, err
	}
	words := strings.Fields(a.line)
	if len(words) == 0 || len(words[0]) != 2 && words[0] != clientError {
		return a, a.unexpected()
	}
	a.code, a.flags = words[0], map[byte]string{}
	for _, flag := range words[1:] {
		a.flags[flag[0]] = flag[1:]
	}
	if a.code != "VA" {
		return a, nil
	}
	if len(words) == 1 {
		return a, a.unexpected()
	}
	size, err := strconv.ParseUint(words[1], 10, 32)
	if err != nil || size > c.largest {
		return a, a.unexpected()
	}
	if size > manyBytes {
		debug.FreeOSMemory() // The agent has enough for one of the largest items, and not for two.
	}
	value := make([]byte, size+uint64(len("\r\n")))
	_, err = io.ReadFull(c.Reader, value)
	a.value = value[:size]
	return a, err
}

// names returns how requests may name an item that a server lists in this way. memcached 1.6.45 forgets that a key is
// binary when it creates or extends the item by itself, and then lists the key as it is. The binary protocol allows any
// key.
func names(listed string) (list []string) {
	key, _ := base64.StdEncoding.DecodeString(strings.TrimSuffix(listed, " b"))
	if len(key) > 0 && base64.StdEncoding.EncodeToString(key)+" b" == listed {
		return []string{listed}
	}
	if listed != "" && !strings.ContainsAny(listed, " \n") {
		list = append(list, listed)
	}
	return append(list, base64.StdEncoding.EncodeToString([]byte(listed))+" b")
}

// dump calls act with each key of a server, as the server lists it.
func dump(c *memcached.Conn, act func(listed string) error) error {
	if _, err := c.Write([]byte("lru_crawler mgdump hash\r\n")); err != nil {
		return err
	}
	for {
		if err := c.SetDeadline(time.Now().Add(dumpTimeout)); err != nil {
			return err
		}
		line, err := c.Line()
		if err != nil {
			return err
		}
		listed, isKey := strings.CutPrefix(line, "mg ")
		switch {
		case isKey:
			if listed, err = completeKey(c, listed); err == nil {
				err = act(strings.TrimSuffix(listed, "\r\n"))
			}
			if err != nil {
				return err
			}
		case line == "EN\r\n":
			return nil
		case strings.HasPrefix(line, "BUSY"), strings.HasPrefix(line, "ERROR locked"):
			return errors.New("memcached lists keys for somebody else")
		case line != "OK\r\n":
			return memcached.Unexpected(line)
		}
	}
}

// completeKey reads the rest of a key that contains the end of a line: up to the next key, or the end of the list.
func completeKey(c *memcached.Conn, listed string) (string, error) {
	for len(listed) < maxKeyLine {
		next, err := c.Reader.Peek(len("mg "))
		if err != nil || string(next) == "mg " || string(next) == "EN\r" {
			return listed, err
		}
		line, err := c.Line()
		if err != nil {
			return "", err
		}
		listed += line
	}
	return listed, nil
}
