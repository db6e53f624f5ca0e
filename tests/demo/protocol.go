package main

import (
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/example/memcached-operator/tests/ring"
)

// talkTimeout limits one conversation with a server.
const talkTimeout = 15 * time.Second

// greet writes a different value to each server, without a client library, and reads it again.
func (s *servers) greet() error {
	fmt.Println("Through a port forwarded to each pod: set greeting, get greeting.")
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "SERVER\tMEMCACHED\tSET\tGET")
	for _, server := range s.list {
		value := "hello, " + server.pod
		var version, stored string
		err := server.talk(func(c *textproto.Conn) error {
			var err error
			if version, err = ask(c, "version"); err != nil {
				return err
			}
			if stored, err = ask(c, "set greeting 0 0 %d\r\n%s", len(value), value); err != nil {
				return err
			}
			if stored != "STORED" {
				return fmt.Errorf("set greeting: want STORED, got %q", stored)
			}
			answer, err := askLines(c, "get greeting")
			if err != nil {
				return err
			}
			if want := fmt.Sprintf("VALUE greeting 0 %d\n%s", len(value), value); answer != want {
				return fmt.Errorf("get greeting: want %q, got %q", want, answer)
			}
			return nil
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%q\n", server.pod, strings.TrimPrefix(version, "VERSION "), stored, value)
	}
	return table.Flush()
}

// spreadKeys writes keys through a client that hashes each key to one of the servers, asks each server for its number
// of keys, and reads all keys again. Nobody else may write to the servers meanwhile. It first counts how many keys of
// an earlier round are still found, and returns that number.
func (s *servers) spreadKeys(keys int) (found int, err error) {
	client := memcache.NewFromSelector(s)
	client.Timeout = talkTimeout
	defer func() { _ = client.Close() }()

	if found, err = s.recall(client, keys); err != nil {
		return 0, err
	}
	before, err := s.items()
	if err != nil {
		return 0, err
	}
	want := map[server]int{}
	for i := range keys {
		want[s.pick(key(i))]++
		if err := client.Set(&memcache.Item{Key: key(i), Value: []byte(value(i))}); err != nil {
			return 0, fmt.Errorf("set %s: %w", key(i), err)
		}
	}
	after, err := s.items()
	if err != nil {
		return 0, err
	}
	fmt.Printf("%d keys written by a client that picks the server from the hash of the key; curr_items says:\n", keys)
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "SERVER\tKEYS\t")
	var wrong []error
	for i, server := range s.list {
		n := after[i] - before[i]
		fmt.Fprintf(table, "%s\t%d\t%s\n", server.pod, n, strings.Repeat("█", max(0, n*60/keys)))
		if n != want[server] {
			wrong = append(wrong, fmt.Errorf("server %s: wrote %d keys to it, it holds %d", server.pod, want[server], n))
		}
	}
	if err := errors.Join(table.Flush(), errors.Join(wrong...)); err != nil {
		return 0, err
	}
	for i := range keys {
		item, err := client.Get(key(i))
		if err != nil {
			return 0, fmt.Errorf("get %s: %w", key(i), err)
		}
		if string(item.Value) != value(i) {
			return 0, fmt.Errorf("get %s: want %q, got %q", key(i), value(i), item.Value)
		}
	}
	fmt.Printf("All %d read back.\n", keys)
	return found, nil
}

// pick chooses the server for a key. It hashes the names of the pods, because the forwarded ports differ each time.
func (s *servers) pick(key string) server {
	return ring.Pick(s.list, func(s server) string { return s.pod }, key)
}

// PickServer and Each implement memcache.ServerSelector.
func (s *servers) PickServer(key string) (net.Addr, error) {
	return net.ResolveTCPAddr("tcp", s.pick(key).address)
}

func (s *servers) Each(do func(net.Addr) error) error {
	for _, server := range s.list {
		address, err := net.ResolveTCPAddr("tcp", server.address)
		if err == nil {
			err = do(address)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// recall counts the keys of an earlier round that are still found. Then it deletes them on every server, so that keys
// on servers where no client looks for them any more do not distort the count.
func (s *servers) recall(client *memcache.Client, keys int) (found int, err error) {
	for i := range keys {
		switch _, err := client.Get(key(i)); {
		case err == nil:
			found++
		case !errors.Is(err, memcache.ErrCacheMiss):
			return 0, fmt.Errorf("get %s: %w", key(i), err)
		}
	}
	for _, server := range s.list {
		err := server.talk(func(c *textproto.Conn) error {
			for i := range keys {
				if _, err := fmt.Fprintf(c.W, "delete %s noreply\r\n", key(i)); err != nil {
					return err
				}
			}
			_, err := ask(c, "version") // The response arrives after all deletions are done.
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	return found, nil
}

// items returns the number of items on each server.
func (s *servers) items() ([]int, error) {
	counts := make([]int, len(s.list))
	for i, server := range s.list {
		err := server.talk(func(c *textproto.Conn) error {
			stats, err := askLines(c, "stats")
			if err != nil {
				return err
			}
			for line := range strings.Lines(stats) {
				if text, ok := strings.CutPrefix(line, "STAT curr_items "); ok {
					counts[i], err = strconv.Atoi(strings.TrimSpace(text))
					return err
				}
			}
			return errors.New("stats: no curr_items")
		})
		if err != nil {
			return nil, err
		}
	}
	return counts, nil
}

// talk connects to the server and runs one conversation.
func (s server) talk(conversation func(*textproto.Conn) error) error {
	conn, err := net.DialTimeout("tcp", s.address, talkTimeout)
	if err != nil {
		return fmt.Errorf("server %s: %w", s.pod, err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(talkTimeout)); err != nil {
		return fmt.Errorf("server %s: %w", s.pod, err)
	}
	if err := conversation(textproto.NewConn(conn)); err != nil {
		return fmt.Errorf("server %s: %w", s.pod, err)
	}
	return nil
}

// ask sends a request and returns the first line of the response.
func ask(c *textproto.Conn, format string, args ...any) (string, error) {
	if err := c.PrintfLine(format, args...); err != nil {
		return "", err
	}
	return c.ReadLine()
}

// askLines sends a request and returns the lines of the response, up to END.
func askLines(c *textproto.Conn, request string) (string, error) {
	var lines []string
	line, err := ask(c, "%s", request)
	for ; err == nil && line != "END"; line, err = c.ReadLine() {
		if strings.Contains(line, "ERROR") {
			return "", fmt.Errorf("%s: %s", request, line)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n"), err
}

func key(i int) string   { return fmt.Sprintf("demo-key-%d", i) }
func value(i int) string { return fmt.Sprintf("value %d", i) }
