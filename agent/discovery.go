package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
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

func newDiscovery() *discovery {
	d := &discovery{}
	d.publish(contract.List{})
	return d
}

// run publishes the mounted list whenever it changes, until ctx is done.
func (d *discovery) run(ctx context.Context) {
	var published string
	wait.UntilWithContext(ctx, func(context.Context) {
		text := readFiles[string](contract.DiscoveryPath, contract.ListFile)[contract.ListFile]
		if text != published {
			published = text
			d.publish(contract.ParseList(text))
		}
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
	})
}

// serve serves clients until ctx is done.
func (d *discovery) serve(ctx context.Context, port int) error {
	// Accepted connections inherit the buffers of the listening socket.
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		controlErr := c.Control(func(fd uintptr) {
			err = errors.Join(syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, socketBuffer),
				syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, socketBuffer))
		})
		return errors.Join(err, controlErr)
	}}
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("serve port %d: %w", port, err)
	}
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	limit := newConnectionLimit(maxDiscoverers)
	for {
		conn, err := listener.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil: // for example, too many open files
			time.Sleep(readInterval)
			continue
		}
		limit.follow(conn, http.StateNew)
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
	reader := bufio.NewReaderSize(conn, maxCommand)
	for {
		_ = conn.SetReadDeadline(time.Now().Add(idleTimeout))
		line, err := reader.ReadSlice('\n')
		command := strings.Join(strings.Fields(string(line)), " ")
		answer, ok := (*d.answers.Load())[command]
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			answer = []byte("CLIENT_ERROR line too long\r\n")
		case err != nil, command == "quit":
			return
		case !ok:
			answer = []byte("ERROR\r\n")
		}
		_ = conn.SetWriteDeadline(time.Now().Add(answerTimeout))
		if _, writeErr := conn.Write(answer); err != nil || writeErr != nil {
			return
		}
	}
}
