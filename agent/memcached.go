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
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// timeout bounds each exchange with memcached, which runs in the same pod.
const timeout = 3 * time.Second

// maxResponse limits a response in bytes. Another program could listen in place of memcached, and exhaust the memory of
// the agent.
const maxResponse = 1 << 20

// memcached is a client of the memcached in the same pod.
type memcached struct {
	address         string
	tls             bool // every connection speaks TLS
	signal          func() error
	candidates      atomic.Pointer[candidates]
	lastCertificate atomic.Pointer[x509.Certificate] // from the last handshake; nil before the first
}

// candidates are the credentials that memcached may accept, in the order in which to try them; at least one of each.
type candidates struct {
	certificates []*tls.Certificate
	logins       []string // each "user:password", or "" to connect without a login
}

// connection is an authenticated connection to memcached.
type connection struct {
	net.Conn
	reader    *bufio.Reader // of Conn
	handshake *handshake
}

// handshake is what memcached sends in a TLS handshake, even to a client that it refuses.
type handshake struct {
	certificate *x509.Certificate
	caSubjects  [][]byte // of the CAs of clients
}

// connect returns a connection with the first certificate and the first login that memcached accepts; by default, it
// tries the logins of the candidates. If all fail, it returns the closed connection and the error of the first attempt.
func (m *memcached) connect(ctx context.Context, logins ...string) (first connection, firstErr error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	candidates := m.candidates.Load()
	if len(logins) == 0 {
		logins = candidates.logins
	}
	for _, certificate := range candidates.certificates {
		for _, login := range logins {
			c, err := m.dial(ctx, certificate, login)
			if err == nil {
				return c, nil
			}
			if firstErr == nil {
				first, firstErr = c, err
			}
		}
	}
	return first, firstErr
}

// try connects as connect does, and closes the connection. It returns what memcached sent in the handshake, even if
// memcached refuses the agent.
func (m *memcached) try(ctx context.Context, logins ...string) (*handshake, error) {
	c, err := m.connect(ctx, logins...)
	if err == nil {
		_ = c.Close()
	}
	return c.handshake, err
}

// dial connects, logs in, and requests the version: with TLS 1.3, only the first response shows a client whether its
// certificate was accepted.
func (m *memcached) dial(ctx context.Context, certificate *tls.Certificate, login string) (connection, error) {
	handshake := &handshake{}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", m.address)
	if err != nil {
		return connection{handshake: handshake}, err
	}
	deadline, _ := ctx.Deadline()
	err = conn.SetDeadline(deadline)
	if m.tls {
		conn = tls.Client(conn, m.tlsConfig(certificate, handshake))
	}
	c := connection{conn, bufio.NewReader(conn), handshake}
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

// tlsConfig trusts any certificate: only memcached listens on loopback, and the agent must be able to replace a
// certificate that has expired or that another CA signed.
func (m *memcached) tlsConfig(own *tls.Certificate, handshake *handshake) *tls.Config {
	return &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // see above
		GetClientCertificate: func(request *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			handshake.caSubjects = request.AcceptableCAs
			return own, nil
		},
		VerifyConnection: func(s tls.ConnectionState) error {
			handshake.certificate = s.PeerCertificates[0]
			m.lastCertificate.Store(handshake.certificate)
			return nil
		},
	}
}

// expect sends a request, and returns an error unless the response starts with want. The error does not quote the
// request, which may contain a password.
func (c connection) expect(request, want string) error {
	_, writeErr := c.Write([]byte(request + "\r\n"))
	response, err := c.reader.ReadSlice('\n')
	if err := errors.Join(writeErr, err); err != nil {
		return err
	}
	if !bytes.HasPrefix(response, []byte(want)) {
		return fmt.Errorf("%w %q", errAnswered, bytes.TrimSpace(response))
	}
	return nil
}

// errAnswered says that memcached answered, but not as expected.
var errAnswered = errors.New("memcached answered")

// stats returns the response to one of the stats commands, or to another one whose response is a line.
func (c connection) stats(request string) (response []byte, err error) {
	err = c.SetDeadline(time.Now().Add(timeout))
	if err == nil {
		_, err = c.Write([]byte(request + "\r\n"))
	}
	for more := true; err == nil && more; {
		var line []byte
		line, err = c.reader.ReadSlice('\n')
		response = append(response, line...)
		if more = bytes.HasPrefix(line, []byte("STAT ")); err == nil && len(response) > maxResponse {
			err = errors.New("memcached answers without an end")
		}
	}
	return response, err
}

// statsConn is a connection for stats and other commands of the agent, which stays open between them.
type statsConn struct {
	memcached *memcached

	mu   sync.Mutex
	conn *connection // nil for none
}

// get returns memcached's response as connection.stats does. It tries twice, because memcached may have closed the
// connection when it was idle or when memcached stopped.
func (s *statsConn) get(ctx context.Context, request string) (response []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range 2 {
		if s.conn == nil {
			conn, err := s.memcached.connect(ctx)
			if err != nil {
				return nil, err
			}
			s.conn = &conn
		}
		if response, err = s.conn.stats(request); err == nil {
			return response, nil
		}
		_ = s.conn.Close()
		s.conn = nil
	}
	return nil, err
}

// values returns the numbers in memcached's response to one of the stats commands, by name.
func (s *statsConn) values(ctx context.Context, request string) (map[string]int64, error) {
	response, err := s.get(ctx, request)
	values := map[string]int64{}
	for line := range bytes.Lines(response) {
		if fields := strings.Fields(string(line)); len(fields) == 3 {
			if n, err := strconv.ParseInt(fields[2], 10, 64); err == nil {
				values[fields[1]] = n
			}
		}
	}
	return values, err
}

// signal makes memcached reload its passwords and, from 1.6.40 on, its certificate, key and CAs too. It needs a process
// namespace that the containers of the pod share, and the same user.
func signal() error {
	processes, err := procfs.AllProcs()
	if err != nil {
		return err
	}
	err = errors.New("no memcached process in this pod")
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
