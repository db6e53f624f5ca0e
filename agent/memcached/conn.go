// Package memcached is a client of memcached's text protocol.
package memcached

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Timeout bounds each exchange with memcached.
const Timeout = 2 * time.Second

// maxResponse limits a response in bytes. Another program could listen in place of memcached, and exhaust the memory of
// the agent.
const maxResponse = 1 << 20

// ErrAnswered says that memcached answered, but not as expected.
var ErrAnswered = errors.New("memcached answered")

// Unexpected is the error about an answer, which it quotes in part.
func Unexpected(answer string) error {
	return fmt.Errorf("%w %.200q", ErrAnswered, strings.TrimSpace(answer))
}

// Conn is a connection to a memcached.
type Conn struct {
	net.Conn
	Reader *bufio.Reader // of Conn
}

// NewConn returns a Conn that uses a connection.
func NewConn(conn net.Conn) *Conn { return &Conn{conn, bufio.NewReader(conn)} }

// Dial connects to a memcached.
func Dial(ctx context.Context, address string) (*Conn, error) {
	conn, err := (&net.Dialer{Timeout: Timeout}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return NewConn(conn), nil
}

// Line reads a line. It is an error if the line does not fit into the buffer of the Reader.
func (c *Conn) Line() (string, error) {
	line, err := c.Reader.ReadSlice('\n')
	return string(line), err
}

// Request returns the response to one of the stats commands, or to another command whose response is a line.
func (c *Conn) Request(request string) (response []byte, err error) {
	if err := c.SetDeadline(time.Now().Add(Timeout)); err != nil {
		return nil, err
	}
	if _, err := c.Write([]byte(request + "\r\n")); err != nil {
		return nil, err
	}
	for len(response) <= maxResponse {
		line, err := c.Reader.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		if response = append(response, line...); !bytes.HasPrefix(line, []byte("STAT ")) {
			return response, nil
		}
	}
	return nil, errors.New("memcached answers without an end")
}

// Expect sends a request, and returns an error unless the response begins with one of these words. The error does not
// quote the request, which may contain a password.
func (c *Conn) Expect(request string, words ...string) error {
	response, err := c.Request(request)
	begins := func(word string) bool { return bytes.HasPrefix(response, []byte(word)) }
	if err == nil && !slices.ContainsFunc(words, begins) {
		err = Unexpected(string(response))
	}
	return err
}

// Stats returns the response to one of the stats commands.
func (c *Conn) Stats(request string) (Stats, error) {
	response, err := c.Request(request)
	if err != nil {
		return nil, err
	}
	stats := Stats{}
	for line := range strings.Lines(string(response)) {
		switch fields := strings.Fields(line); {
		case len(fields) == 3 && fields[0] == "STAT":
			stats[fields[1]] = fields[2]
		case line == "END\r\n":
			return stats, nil
		}
	}
	return nil, Unexpected(string(response))
}

// Stats are the values in a response, by name.
type Stats map[string]string

// Number returns a value that is a number; 0 if there is none.
func (s Stats) Number(name string) int64 {
	n, _ := strconv.ParseInt(s[name], 10, 64)
	return n
}
