package agent

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/example/memcached-operator/agent/memcached"
)

// client is a client of the memcached in the same pod.
type client struct {
	address         string
	tls             bool // every connection speaks TLS
	signal          func() error
	candidates      atomic.Pointer[candidates]
	lastCertificate atomic.Pointer[x509.Certificate] // from the last handshake; nil before the first

	mu   sync.Mutex
	conn *memcached.Conn // stays open between requests; nil for none
}

// candidates are the credentials that memcached may accept, in the order in which to try them; at least one of each.
type candidates struct {
	certificates []*tls.Certificate
	logins       []string // each "user:password", or "" to connect without a login
}

// connect returns a connection with the first certificate and the first login that memcached accepts; by default, it
// tries the logins of the candidates. If all fail, it returns the error of the first attempt.
func (c *client) connect(ctx context.Context, logins ...string) (conn *memcached.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, memcached.Timeout)
	defer cancel()
	candidates := c.candidates.Load()
	if len(logins) == 0 {
		logins = candidates.logins
	}
	for _, certificate := range candidates.certificates {
		for _, login := range logins {
			conn, attemptErr := c.dial(ctx, certificate, login)
			if attemptErr == nil {
				return conn, nil
			}
			err = cmp.Or(err, attemptErr)
		}
	}
	return nil, err
}

// try connects as connect does, and closes the connection.
func (c *client) try(ctx context.Context, logins ...string) error {
	conn, err := c.connect(ctx, logins...)
	if err == nil {
		_ = conn.Close()
	}
	return err
}

// dial connects, logs in, and requests the version: with TLS 1.3, only the first response shows a client whether its
// certificate was accepted.
func (c *client) dial(ctx context.Context, certificate *tls.Certificate, login string) (*memcached.Conn, error) {
	conn, err := memcached.Dial(ctx, c.address)
	if err != nil {
		return nil, err
	}
	if c.tls {
		conn = memcached.NewConn(tls.Client(conn.Conn, c.tlsConfig(certificate)))
	}
	if user, password, ok := strings.Cut(login, ":"); ok {
		login := user + " " + password
		err = conn.Expect(fmt.Sprintf("set x 0 0 %d\r\n%s", len(login), login), "STORED")
	}
	if err == nil {
		err = conn.Expect("version", "VERSION ")
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// tlsConfig trusts any certificate: only memcached listens on loopback, and the agent must be able to replace a
// certificate that has expired or that another CA signed.
func (c *client) tlsConfig(certificate *tls.Certificate) *tls.Config {
	return &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // see above
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return certificate, nil
		},
		VerifyConnection: func(s tls.ConnectionState) error {
			c.lastCertificate.Store(s.PeerCertificates[0])
			return nil
		},
	}
}

// do uses the connection that stays open. It tries twice, because memcached may have closed the connection when it was
// idle or when memcached stopped.
func (c *client) do(ctx context.Context, use func(*memcached.Conn) error) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range 2 {
		if c.conn == nil {
			if c.conn, err = c.connect(ctx); err != nil {
				return err
			}
		}
		if err = use(c.conn); err == nil || errors.Is(err, memcached.ErrAnswered) {
			return err
		}
		_ = c.conn.Close()
		c.conn = nil
	}
	return err
}

// expect sends a request as memcached.Conn.Expect does.
func (c *client) expect(ctx context.Context, request string, words ...string) error {
	return c.do(ctx, func(conn *memcached.Conn) error { return conn.Expect(request, words...) })
}

// stats returns the response to one of the stats commands.
func (c *client) stats(ctx context.Context, request string) (stats memcached.Stats, err error) {
	err = c.do(ctx, func(conn *memcached.Conn) (err error) {
		stats, err = conn.Stats(request)
		return err
	})
	return stats, err
}
