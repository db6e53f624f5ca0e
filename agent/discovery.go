package agent

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/example/memcached-operator/agent/contract"
)

const (
	// maxDiscoverers is the number of clients at one source address: all those behind one NAT have the same.
	maxDiscoverers = 64
	// maxCommand is the length of a command, in bytes.
	maxCommand = 1 << 10
	// idleTimeout is how long a client may keep a connection without a command: clients poll once a minute.
	idleTimeout = 5 * time.Minute
	// socketBuffer limits what the kernel holds of a client that does not read, in bytes.
	socketBuffer = 4 << 10
	// oldestVersion is the first version of memcached whose clients send config get cluster.
	oldestVersion = "1.4.14"
)

// discovery sends clients the list of servers as managed services do.
// https://docs.aws.amazon.com/AmazonElastiCache/latest/dg/AutoDiscovery.AddingToYourClientLibrary.html
// https://cloud.google.com/memorystore/docs/memcached/auto-discovery-overview
type discovery struct {
	answers atomic.Pointer[map[string][]byte] // by their commands; all clients share the bytes
}

// run publishes the mounted list, again and again until ctx is done.
func (d *discovery) run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(context.Context) {
		d.publish(contract.ParseList(readFiles[string](contract.DiscoveryPath, contract.ListFile)[contract.ListFile]))
	}, readInterval)
}

// publish makes the answers of a list.
func (d *discovery) publish(list contract.List) {
	answer := func(header string) []byte {
		if list.Version == 0 {
			return []byte("SERVER_ERROR the servers are not ready yet\r\n")
		}
		text := list.String()
		return fmt.Appendf(nil, "%s 0 %d\r\n%s\r\nEND\r\n", header, len(text), text)
	}
	d.answers.Store(&map[string][]byte{
		"config get cluster":            answer("CONFIG cluster"),
		"get AmazonElastiCache:cluster": answer("VALUE AmazonElastiCache:cluster"),
		"version":                       []byte("VERSION " + oldestVersion + "\r\n"),
		"quit":                          nil,
	})
}

// serve serves clients until ctx is done.
func (d *discovery) serve(ctx context.Context, port int) error {
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{Port: port})
	if err != nil {
		return fmt.Errorf("serve port %d: %w", port, err)
	}
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	limit := newConnectionLimit(maxDiscoverers)
	for {
		conn, err := listener.AcceptTCP()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil { // for example, too many open files
			time.Sleep(readInterval)
			continue
		}
		limit.follow(conn, http.StateNew)
		_, _ = conn.SetReadBuffer(socketBuffer), conn.SetWriteBuffer(socketBuffer)
		go func() {
			defer limit.follow(conn, http.StateClosed)
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			d.serveClient(conn)
		}()
	}
}

// serveClient answers the commands of one client, and closes the connection.
func (d *discovery) serveClient(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	commands := bufio.NewScanner(conn)
	commands.Buffer(make([]byte, maxCommand), maxCommand)
	_ = conn.SetReadDeadline(time.Now().Add(idleTimeout))
	for commands.Scan() {
		command := strings.Join(strings.Fields(commands.Text()), " ")
		answer, ok := (*d.answers.Load())[command]
		if !ok {
			answer = []byte("ERROR\r\n")
		}
		_ = conn.SetWriteDeadline(time.Now().Add(answerTimeout))
		if _, err := conn.Write(answer); err != nil || command == "quit" {
			return
		}
		_ = conn.SetReadDeadline(time.Now().Add(idleTimeout))
	}
}
