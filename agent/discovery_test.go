package agent

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/internal/testing/harness"
)

// script is a connection on which a client sends everything at once.
type script struct {
	net.Conn
	io.Reader
	answers strings.Builder
}

func (s *script) Read(b []byte) (int, error)       { return s.Reader.Read(b) }
func (s *script) Write(b []byte) (int, error)      { return s.answers.Write(b) }
func (s *script) Close() error                     { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// TestDiscovery: clients get what managed services send, to the byte.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	const (
		// recorded is what an ElastiCache cluster sent.
		// https://github.com/yupeng820921/elasticache-pyclient
		recorded = "CONFIG cluster 0 191\r\n1\n" +
			"test1.rtstcw.0001.apne1.cache.amazonaws.com|172.31.12.60|11211 " +
			"test1.rtstcw.0002.apne1.cache.amazonaws.com|172.31.3.240|11211 " +
			"test1.rtstcw.0003.apne1.cache.amazonaws.com|172.31.10.26|11211\n\r\nEND\r\n"
		// memorystore is in the form of the second vendor, whose nodes have an address in place of a name.
		// https://cloud.google.com/memorystore/docs/memcached/using-auto-discovery
		memorystore = "CONFIG cluster 0 45\r\n9\n10.0.0.4|10.0.0.4|11211 fd00::5|fd00::5|11\n\r\nEND\r\n"
		notReady    = "SERVER_ERROR the servers are not ready yet\r\n"
	)
	payload := func(answer string) string {
		_, text, _ := strings.Cut(answer, "\r\n")
		return strings.TrimSuffix(text, "\r\nEND\r\n")
	}
	for _, c := range []struct{ list, commands, want string }{
		{payload(recorded), "config get cluster\r\n", recorded},
		{payload(recorded), "get AmazonElastiCache:cluster\r\n",
			strings.Replace(recorded, "CONFIG cluster", "VALUE AmazonElastiCache:cluster", 1)},
		{payload(memorystore), "config get cluster\r\n", memorystore},
		{payload(memorystore), "config get cluster\n config  get\tcluster \r\n", memorystore + memorystore},
		{payload(memorystore), "config get cluster\r\nquit\r\nversion\r\n", memorystore},
		{"7\n\n", "config get cluster\r\n", "CONFIG cluster 0 3\r\n7\n\n\r\nEND\r\n"},
		{"", "version\r\n", "VERSION 1.4.14\r\n"},
		{"", "config get cluster\r\nget AmazonElastiCache:cluster\r\n", notReady + notReady},
		{"", "\r\nget a\r\nconfig set cluster\r\nconfig get cluster 1\r\nCONFIG GET CLUSTER\r\n",
			strings.Repeat("ERROR\r\n", 5)},
		{payload(recorded), "\x80\x0c\x00\x00\n", "ERROR\r\n"}, // the binary protocol
		{payload(recorded), strings.Repeat("x", maxCommand) + "\r\nversion\r\n", ""},
	} {
		d := &discovery{}
		d.publish(contract.ParseList(c.list))
		client := &script{Reader: strings.NewReader(c.commands)}
		d.serveClient(client)
		if client.answers.String() != c.want {
			t.Errorf("%q is answered by %q, want %q", c.commands, client.answers.String(), c.want)
		}
	}
}

// TestDiscoverers: clients at one address cannot take the connections of others.
func TestDiscoverers(t *testing.T) {
	t.Parallel()
	d := &discovery{}
	d.publish(contract.List{})
	address, err := harness.FreeAddress()
	harness.Must(t, err)
	_, text, _ := net.SplitHostPort(address)
	port, err := strconv.Atoi(text)
	harness.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- d.serve(ctx, port) }()
	dial := func(source string) (net.Conn, error) {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: 10 * time.Second}
		return from.DialContext(ctx, "tcp", address)
	}
	version := func(conn net.Conn) error {
		if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			return err
		}
		if _, err := io.WriteString(conn, "version\r\n"); err != nil {
			return err
		}
		_, err := bufio.NewReader(conn).ReadString('\n')
		return err
	}
	harness.Eventually(t, "the agent answers", 10*time.Second, func() error {
		conn, err := dial("127.0.0.1")
		if err != nil {
			return err
		}
		return errors.Join(version(conn), conn.Close())
	})
	var open []net.Conn
	closed := 0
	for range 2 * maxDiscoverers {
		conn, err := dial("127.0.0.2")
		harness.Must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		open = append(open, conn)
	}
	for _, conn := range open {
		if err := version(conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a connection is neither served nor closed")
		} else if err != nil {
			closed++
		}
	}
	if closed != maxDiscoverers {
		t.Errorf("%d connections of %d were closed, want %d", closed, len(open), maxDiscoverers)
	}
	other, err := dial("127.0.0.3")
	harness.Must(t, err)
	harness.Must(t, version(other))
	cancel()
	harness.Must(t, <-served)
	if _, err := io.Copy(io.Discard, other); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("an agent that ends keeps connections")
	}
}
