package agent

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// timeout bounds each conversation with memcached, which runs on the same machine.
const timeout = 3 * time.Second

// memcached is the one in the same pod.
type memcached struct {
	address string
	tls     bool // every connection speaks TLS
	signal  func() error
	access  atomic.Pointer[access]
	served  atomic.Pointer[x509.Certificate] // that memcached showed last; nil for none yet
}

// access is what memcached may accept of the agent, to be tried in this order. There is at least one of each.
type access struct {
	certificates []*tls.Certificate
	logins       []string // "user:password"; empty for none
}

// connection is one to memcached, logged in.
type connection struct {
	net.Conn
	*bufio.Reader
	*shown
}

// shown is what memcached shows to any client, also to one that it refuses.
type shown struct {
	leaf     *x509.Certificate
	subjects [][]byte // of the CAs of clients
}

func (c connection) Read(b []byte) (int, error) { return c.Reader.Read(b) }

// connect makes a connection with the first certificate and the first of the logins that memcached accepts; without
// logins, of those that memcached may know. Otherwise it returns the closed connection and the error of the first try.
func (m *memcached) connect(ctx context.Context, logins ...string) (first connection, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	known := m.access.Load()
	if len(logins) == 0 {
		logins = known.logins
	}
	for _, certificate := range known.certificates {
		for _, login := range logins {
			c, refused := m.dial(ctx, certificate, login)
			if refused == nil {
				return c, nil
			}
			if err == nil {
				first, err = c, refused
			}
		}
	}
	return first, err
}

// try makes a connection as connect does, and closes it. It returns what memcached shows also where memcached refuses
// the agent.
func (m *memcached) try(ctx context.Context, logins ...string) (*shown, error) {
	c, err := m.connect(ctx, logins...)
	if err == nil {
		_ = c.Close()
	}
	return c.shown, err
}

// dial makes a connection, and asks for the version: with TLS 1.3 a client learns only then whether its certificate is
// accepted.
func (m *memcached) dial(ctx context.Context, certificate *tls.Certificate, login string) (connection, error) {
	shown := &shown{}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", m.address)
	if err != nil {
		return connection{shown: shown}, err
	}
	deadline, _ := ctx.Deadline()
	err = conn.SetDeadline(deadline)
	if m.tls {
		conn = tls.Client(conn, m.tlsConfig(certificate, shown))
	}
	c := connection{conn, bufio.NewReader(conn), shown}
	if user, password, ok := strings.Cut(login, ":"); ok && err == nil {
		login := user + " " + password
		err = c.expect(fmt.Sprintf("set x 0 0 %d\r\n%s", len(login), login), "STORED")
	}
	if err == nil {
		err = c.expect("version", "VERSION ")
	}
	if err != nil {
		return c, errors.Join(err, conn.Close())
	}
	return c, nil
}

// tlsConfig trusts any certificate that memcached shows: nobody else listens on loopback, and one that has expired, or
// that another CA signed, is a reason to talk to memcached.
func (m *memcached) tlsConfig(own *tls.Certificate, shown *shown) *tls.Config {
	return &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // see above
		GetClientCertificate: func(request *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			shown.subjects = request.AcceptableCAs
			return own, nil
		},
		VerifyConnection: func(s tls.ConnectionState) error {
			shown.leaf = s.PeerCertificates[0]
			m.served.Store(shown.leaf)
			return nil
		},
	}
}

// expect sends a request, and returns an error unless the answer starts with want. The error says nothing of the
// request, which may hold a password.
func (c connection) expect(request, want string) error {
	_, sent := c.Write([]byte(request + "\r\n"))
	answer, err := c.ReadString('\n')
	if err := errors.Join(sent, err); err != nil {
		return err
	}
	if !strings.HasPrefix(answer, want) {
		return fmt.Errorf("memcached answers %q", strings.TrimSpace(answer))
	}
	return nil
}

// stats returns the answer to one of the stats commands.
func (c connection) stats(request string) (answer []byte, err error) {
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	if _, err := c.Write([]byte(request + "\r\n")); err != nil {
		return nil, err
	}
	for {
		line, err := c.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		answer = append(answer, line...)
		if !bytes.HasPrefix(line, []byte("STAT ")) {
			return answer, nil
		}
	}
}

// signal makes memcached reload its passwords and, from 1.6.40 on, its certificate, key and CAs too. It needs a process
// namespace that the containers of the pod share, and the same user.
func signal() error {
	processes, err := procfs.AllProcs()
	if err != nil {
		return err
	}
	err = errors.New("no process memcached in this pod")
	for _, process := range processes {
		if name, _ := process.Comm(); name != "memcached" {
			continue
		}
		if err = syscall.Kill(process.PID, syscall.SIGHUP); err != nil {
			return fmt.Errorf("send a signal to memcached: %w", err)
		}
	}
	return err
}
