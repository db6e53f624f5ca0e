package mover

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// timeout bounds each exchange with a server, beside the time for values.
	timeout = 2 * time.Second
	// slowest is the least number of bytes in a second at which values are expected to be sent.
	slowest = 16 << 20
	// outOfMemory is the code of an answer that begins with SERVER_ERROR.
	outOfMemory = "SERVER_ERROR"
)

// conn is a connection to a server.
type conn struct {
	net.Conn
	r *bufio.Reader
	w *bufio.Writer
}

func dial(ctx context.Context, address string) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &conn{c, bufio.NewReader(c), bufio.NewWriter(c)}, nil
}

// item is an item that is moved.
type item struct {
	name       string // in requests: the key, and a flag if it is binary
	lease, cas uint64
	flags, ttl string
	value      []byte
	size       uint64 // of the value, in bytes
	marked     bool   // as stale, or as one that a client is about to set
	stored     bool   // by the target, or replaced by a client meanwhile
}

// key is what the proxy hashes: the key as it is in requests.
func (i *item) key() string {
	key, _, _ := strings.Cut(i.name, " ")
	return key
}

// fill completes an item with what a server has.
func (i *item) fill(a answer) (err error) {
	i.value, i.flags, i.ttl = a.value, a.flag("f"), a.flag("t")
	i.marked = slices.ContainsFunc(a.flags, func(f string) bool { return f == "W" || f == "X" || f == "Z" })
	i.cas, err = a.number("c")
	return err
}

// store is the request that replaces the placeholder with the item. Between the key and its flag is the size.
func (i *item) store() string {
	return fmt.Sprintf("ms %s %d%s F%s T%s E%d C%d\r\n%s", i.key(), len(i.value), strings.TrimPrefix(i.name, i.key()),
		i.flags, expiry(i.ttl, time.Now()), i.cas, i.lease, i.value)
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
		return strconv.FormatInt(now.Unix()+n, 10)
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
		return 0, fmt.Errorf("memcached answered %s %v: %w", a.code, a.flags, err)
	}
	return n, nil
}

// each sends a meta command for each item, and then calls got with each answer.
func (c *conn) each(items []*item, request func(*item) string, got func(*item, answer) error) error {
	size := 0
	for _, i := range items {
		size += int(i.size)
	}
	if err := c.SetDeadline(time.Now().Add(timeout + time.Duration(size)*time.Second/slowest)); err != nil {
		return err
	}
	for _, i := range items {
		if _, err := c.w.WriteString(request(i) + "\r\n"); err != nil {
			return err
		}
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
			return err
		}
	}
	return nil
}

// remove deletes items.
func (c *conn) remove(items []*item) error {
	return c.each(items, func(i *item) string { return "md " + i.name }, nil)
}

// items returns the number of items that the server holds.
func (c *conn) items() (n int64, err error) {
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return 0, err
	}
	_, err = c.Write([]byte("stats\r\n"))
	for err == nil {
		var line string
		line, err = c.r.ReadString('\n')
		line = strings.TrimSpace(line)
		if text, ok := strings.CutPrefix(line, "STAT curr_items "); ok {
			n, err = strconv.ParseInt(text, 10, 64)
		} else if line == "END" {
			return n, nil
		}
	}
	return 0, err
}

// answer reads the answer to a meta command.
func (c *conn) answer() (a answer, err error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return a, err
	}
	fields := strings.Fields(line)
	if len(fields) == 0 || len(fields[0]) != 2 && fields[0] != outOfMemory {
		return a, fmt.Errorf("memcached answered %q", strings.TrimSpace(line))
	}
	a.code, a.flags = fields[0], fields[1:]
	if a.code != "VA" {
		return a, nil
	}
	if len(a.flags) == 0 {
		return a, errors.New("memcached answered VA without a size")
	}
	size, err := strconv.ParseInt(a.flags[0], 10, 32)
	if err != nil || size < 0 {
		return a, fmt.Errorf("memcached answered VA with the size %q", a.flags[0])
	}
	// The memory grows with what arrives: the agent has not enough for every size that could be announced.
	var value bytes.Buffer
	value.Grow(int(min(size+2, batchBytes)) + bytes.MinRead)
	_, err = io.CopyN(&value, c.r, size+2)
	a.flags, a.value = a.flags[1:], value.Bytes()[:min(int64(value.Len()), size)]
	return a, err
}

// errBusy says that the server cannot list its keys now, because it lists them for another client or for itself.
var errBusy = errors.New("memcached lists keys for somebody else")

// dump calls act for each item of the server.
func (c *conn) dump(act func(*item) error) error {
	if _, err := c.Write([]byte("lru_crawler mgdump hash\r\n")); err != nil {
		return err
	}
	for {
		if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
			return err
		}
		line, err := c.r.ReadString('\n')
		if err != nil {
			return err
		}
		line = strings.TrimRight(line, "\r\n")
		name, ok := strings.CutPrefix(line, "mg ")
		switch {
		case ok:
			err = act(&item{name: name})
		case line == "EN":
			return nil
		case strings.HasPrefix(line, "BUSY"), strings.HasPrefix(line, "ERROR locked"):
			return errBusy
		case strings.HasPrefix(line, "ERROR"), strings.HasPrefix(line, "CLIENT_ERROR"):
			return nil // its options forbid it, so nothing can be moved
		case line != "OK":
			err = fmt.Errorf("memcached answered %q", line)
		}
		if err != nil {
			return err
		}
	}
}

// dump calls act for each item of a server, as the server sends their keys.
func dump(ctx context.Context, server string, act func(*item) error) error {
	for {
		c, err := dial(ctx, server)
		if err != nil {
			return err
		}
		err = c.dump(act)
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
