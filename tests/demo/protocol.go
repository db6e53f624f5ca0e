package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/tests/ring"
)

// talkTimeout limits one request to a server.
const talkTimeout = 15 * time.Second

// keys are spread over the servers.
var keys = func() (keys []string) {
	for i := range 1000 {
		keys = append(keys, fmt.Sprint("demo-key-", i))
	}
	return keys
}()

// server is one memcached server, reachable through a loopback port of this machine.
type server struct {
	pod     string
	address net.Addr
	*memcache.Client
	stop func() // ends the forwarding
}

// servers are all servers of the Memcached. They are a memcache.ServerSelector.
type servers []server

// check talks to each server, and spreads keys over all of them.
func check(ctx context.Context) error {
	return withServers(ctx, firstSize, func(all servers) error {
		heading("Each server by itself, in the memcached protocol")
		if err := all.greet(); err != nil {
			return err
		}
		heading("All servers together, behind a client that hashes")
		_, err := all.spreadKeys()
		return err
	})
}

// checkGrowth spreads the keys again after the number of servers grew, and fails if more keys were lost than necessary.
func checkGrowth(ctx context.Context) error {
	return withServers(ctx, laterSize, func(all servers) error {
		found, err := all.spreadKeys()
		if err != nil {
			return err
		}
		const share = "From %d to %d servers, %d of the %d keys are found again. With consistent hashing, about %d are\n" +
			"expected; a client that takes the remainder of a hash finds far fewer.\n"
		expected := len(keys) * firstSize / laterSize
		fmt.Printf(share, firstSize, laterSize, found, len(keys), expected)
		if found < expected*5/6 {
			return fmt.Errorf("%d keys are found again, want about %d", found, expected)
		}
		return nil
	})
}

// withServers calls do with the servers in the status of the Memcached, of which there must be size. It forwards a port
// to each of them until do returns.
func withServers(ctx context.Context, size int, do func(servers) error) error {
	nodes, err := harness.Command{}.Run(ctx, "kubectl", "get", "memcached", name, "-o", "jsonpath={.status.nodes[*]}")
	if err != nil {
		return err
	}
	var all servers
	defer func() {
		for _, server := range all {
			_ = server.Close()
			server.stop()
		}
	}()
	for pod := range strings.FieldsSeq(nodes) {
		address, stop, err := forward(ctx, pod)
		if err != nil {
			return fmt.Errorf("port-forward to pod %s: %w", pod, err)
		}
		client := memcache.New(address.String())
		client.Timeout = talkTimeout
		all = append(all, server{pod, address, client, stop})
	}
	if len(all) != size {
		return fmt.Errorf("memcached %s is ready with size %d, but status.nodes has %d names: %s", name, size, len(all),
			nodes)
	}
	return do(all)
}

// forward forwards a free loopback port to a pod until stop is called.
func forward(ctx context.Context, pod string) (address net.Addr, stop func(), err error) {
	cmd := exec.CommandContext(ctx, "kubectl", "port-forward", "--address=127.0.0.1", pod, ":11211")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, nil, err
	}
	stop = func() { _, _ = cmd.Process.Kill(), cmd.Wait() }
	line, err := bufio.NewReader(out).ReadString('\n') // such as "Forwarding from 127.0.0.1:40001 -> 11211"
	if err == nil {
		line, _, _ = strings.Cut(strings.TrimPrefix(line, "Forwarding from "), " ")
		address, err = net.ResolveTCPAddr("tcp", line)
	}
	if err != nil {
		stop()
	}
	return address, stop, err
}

// greet writes a different value to each server, and reads it again.
func (s servers) greet() error {
	fmt.Println("Through a port forwarded to each pod: set greeting, get greeting.")
	table := newTable("SERVER", "GET")
	for _, server := range s {
		value := "hello, " + server.pod
		err := server.Set(&memcache.Item{Key: "greeting", Value: []byte(value)})
		if err != nil {
			return fmt.Errorf("server %s: set greeting: %w", server.pod, err)
		}
		item, err := server.Get("greeting")
		if err != nil {
			return fmt.Errorf("server %s: get greeting: %w", server.pod, err)
		}
		if string(item.Value) != value {
			return fmt.Errorf("server %s: get greeting: want %q, got %q", server.pod, value, item.Value)
		}
		fmt.Fprintf(table, "%s\t%q\n", server.pod, item.Value)
	}
	return table.Flush()
}

// spreadKeys writes keys through a client that hashes each key to one of the servers, and asks each server which of
// them it holds. It returns how many keys of an earlier round the client had still found.
func (s servers) spreadKeys() (found int, err error) {
	client := memcache.NewFromSelector(s)
	client.Timeout = talkTimeout
	defer func() { _ = client.Close() }()
	earlier, err := client.GetMulti(keys)
	if err != nil {
		return 0, err
	}
	value := "written at " + time.Now().String() // a server may still hold a key of an earlier round
	for _, key := range keys {
		if err := client.Set(&memcache.Item{Key: key, Value: []byte(value)}); err != nil {
			return 0, fmt.Errorf("set %s: %w", key, err)
		}
	}
	fmt.Printf("%d keys written by a client that picks the server from the hash of the key. Each server has:\n", len(keys))
	table, readBack := newTable("SERVER", "KEYS", ""), 0
	for _, server := range s {
		items, err := server.GetMulti(keys)
		if err != nil {
			return 0, fmt.Errorf("server %s: %w", server.pod, err)
		}
		holds := 0
		for key, item := range items {
			if string(item.Value) != value {
				continue
			}
			holds++
			if s.pick(key).pod != server.pod {
				return 0, fmt.Errorf("server %s holds %s, which was not written to it", server.pod, key)
			}
		}
		fmt.Fprintf(table, "%s\t%d\t%s\n", server.pod, holds, strings.Repeat("█", holds*60/len(keys)))
		readBack += holds
	}
	if err := table.Flush(); err != nil {
		return 0, err
	}
	if readBack != len(keys) {
		return 0, fmt.Errorf("%d of %d keys read back", readBack, len(keys))
	}
	fmt.Printf("All %d read back.\n", len(keys))
	return len(earlier), nil
}

// pick chooses the server for a key. It hashes the names of the pods, because the forwarded ports differ each time.
func (s servers) pick(key string) server {
	return ring.Pick(s, func(s server) string { return s.pod }, key)
}

// PickServer and Each implement memcache.ServerSelector.
func (s servers) PickServer(key string) (net.Addr, error) { return s.pick(key).address, nil }

func (s servers) Each(do func(net.Addr) error) error {
	for _, server := range s {
		if err := do(server.address); err != nil {
			return err
		}
	}
	return nil
}

// newTable returns a table with these heads of columns, which is printed by Flush.
func newTable(heads ...string) *tabwriter.Writer {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, strings.Join(heads, "\t"))
	return table
}
