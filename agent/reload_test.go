package agent

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/agent/memcached"
	"github.com/example/memcached-operator/credentials"
	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/internal/testing/testca"
)

// server responds as memcached does.
type server struct {
	*tls.Config
	authority *testca.CA
	login     string // "user password"
	also      string // another login that it accepts
	refresh   func() // makes the server read its certificate
	signals   int
	current   atomic.Pointer[tls.Config] // from distrust; nil for Config
}

// start returns an agent's reloader of the server, with the functions that mount Secrets.
func (s *server) start(t *testing.T) (r *reloader, putTLS, putAuth func(credentials.Data)) {
	t.Helper()
	m := &client{tls: true, signal: func() error {
		s.signals++
		return nil
	}}
	r = newReloader(contract.Options{TLS: credentials.CheckClient, Auth: true}, m, slog.New(slog.DiscardHandler),
		prometheus.NewRegistry())
	putTLS, putAuth = mounted(t, r.tls), mounted(t, r.auth)
	putTLS(issue(t, s.authority))
	putAuth(credentials.Data{"authfile": []byte(strings.Replace(s.login, " ", ":", 1) + "\n")})

	var served *tls.Certificate
	s.refresh = func() {
		pair, err := tls.LoadX509KeyPair(filepath.Join(r.tls.path, "tls.crt"), filepath.Join(r.tls.path, "tls.key"))
		if err != nil {
			t.Error(err)
		}
		served = &pair
	}
	s.refresh()
	s.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return served, nil }
	s.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current.Load(), nil }
	listener, err := tls.Listen("tcp", "127.0.0.1:0", s.Config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.serve(conn) // one at a time
		}
	}()
	r.client.address = listener.Addr().String()
	return r, putTLS, putAuth
}

func (s *server) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	loggedIn := false
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		answer := "CLIENT_ERROR unauthenticated"
		switch request := lines.Text(); {
		case strings.HasPrefix(request, "set ") && lines.Scan():
			if loggedIn = lines.Text() == s.login || lines.Text() == s.also; loggedIn {
				answer = "STORED"
			}
		case loggedIn && request == "version":
			answer = "VERSION 1.6.45"
		case loggedIn && request == "refresh_certs":
			s.refresh()
			answer = "OK"
		}
		if _, err := conn.Write([]byte(answer + "\r\n")); err != nil {
			return
		}
	}
}

// distrust makes the server refuse all clients.
func (s *server) distrust() {
	config := s.Clone()
	config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	config.GetConfigForClient = nil
	s.current.Store(config)
}

func newCA(t *testing.T) *testca.CA {
	t.Helper()
	ours, err := testca.New()
	if err != nil {
		t.Fatal(err)
	}
	return ours
}

// issue is the content of a Secret with a new certificate.
func issue(t *testing.T, by *testca.CA) credentials.Data {
	t.Helper()
	content, err := by.Secret("cache")
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func newServer(t *testing.T) *server {
	t.Helper()
	return &server{Config: &tls.Config{}, authority: newCA(t), login: "a first"}
}

// reload takes steps until there is an error, or nothing is left to do.
func reload(t *testing.T, r *reloader) error {
	t.Helper()
	for range 100 {
		if err := r.step(t.Context()); err != nil || !r.tls.needsReload() && !r.auth.needsReload() {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return errors.New("the reloader does not come to an end")
}

// TestCertificateBesidePasswords: a renewed certificate is reloaded even while the authfile is invalid.
func TestCertificateBesidePasswords(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r, putTLS, putAuth := s.start(t)
	r.tls.activate()
	r.auth.activate()
	putAuth(credentials.Data{"authfile": []byte("without a colon\n")})
	putTLS(issue(t, s.authority))
	for range 2 {
		if err := r.step(t.Context()); err == nil || !strings.Contains(err.Error(), "line 1 of authfile") {
			t.Errorf("an invalid authfile: %v", err)
		}
	}
	if !r.tls.pendingSince.IsZero() || r.auth.pendingSince.IsZero() || s.signals > 0 {
		t.Errorf("the certificate is pending since %s, the passwords since %s, %d signals", r.tls.pendingSince,
			r.auth.pendingSince, s.signals)
	}
}

// TestUntrustedCertificate: the agent connects without a certificate if memcached requests one but does not trust its
// own.
func TestUntrustedCertificate(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.ClientAuth, s.ClientCAs = tls.VerifyClientCertIfGiven, x509.NewCertPool()
	r, _, _ := s.start(t)
	r.setCandidates()
	if _, err := r.client.connect(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestInvalidFromTheStart: an agent that starts with an invalid certificate still reads the passwords.
func TestInvalidFromTheStart(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r, putTLS, _ := s.start(t)
	putTLS(with(r.tls.mounted, "tls.key", issue(t, s.authority)))
	if err := r.step(t.Context()); err == nil {
		t.Error("an invalid certificate is accepted")
	}
	if _, err := r.client.connect(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestChangeDuringReload: content that changes again while memcached reads it is no failure.
func TestChangeDuringReload(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r, putTLS, _ := s.start(t)
	r.auth.activate()
	putTLS(issue(t, s.authority))
	refresh, next := s.refresh, issue(t, s.authority)
	s.refresh = func() {
		s.refresh = refresh
		if r.tls.pendingSince.IsZero() {
			t.Error("not pending while memcached reads")
		}
		refresh()
		project(t, r.tls.path, next)
	}
	if err := reload(t, r); err != nil {
		t.Error(err)
	}
	if n := testutil.ToFloat64(r.tls.failures); n != 0 || !r.client.lastCertificate.Load().Equal(r.tls.wanted.tls.Leaf) {
		t.Errorf("%v failures, or memcached has another certificate", n)
	}
}

// TestUnresponsive: if memcached does not respond, the agent waits only once, not for each certificate and login. It
// still knows the certificate from the last handshake.
func TestUnresponsive(t *testing.T) {
	t.Parallel()
	r, _, _ := newServer(t).start(t)
	if err := reload(t, r); err != nil {
		t.Fatal(err)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	r.client.address = silent.Addr().String()
	start := time.Now()
	if err := r.client.try(t.Context()); err == nil || time.Since(start) > memcached.Timeout+time.Second {
		t.Errorf("%v after %s", err, time.Since(start))
	}
	if got := r.client.certificateExpires(); !(got > 0) {
		t.Errorf("the certificate expires in %v s", got)
	}
}

// TestReconnect: the agent connects again after memcached has closed the connection that stays open, and not after an
// answer that it did not want.
func TestReconnect(t *testing.T) {
	t.Parallel()
	r, _, _ := newServer(t).start(t)
	r.setCandidates()
	r.client.conn = memcached.NewConn(harness.NewAnswering(func(string) string { return "" }))
	if err := r.client.expect(t.Context(), "version", "VERSION "); err != nil {
		t.Error(err)
	}
	conn := r.client.conn
	err := r.client.expect(t.Context(), "version", "OK")
	if !errors.Is(err, memcached.ErrAnswered) || r.client.conn != conn {
		t.Errorf("got %v, connected again: %t", err, r.client.conn != conn)
	}
}

// TestUntrustedByItsOwnCA: memcached never loads a ca.crt that does not accept the agent. The operator refuses it too:
// memcached would still trust the CA after it is removed.
func TestUntrustedByItsOwnCA(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r, putTLS, _ := s.start(t)
	r.tls.activate()
	r.auth.activate()
	putTLS(with(r.tls.mounted, "ca.crt", issue(t, newCA(t))))
	s.refresh = func() { t.Error("memcached loads a CA that does not accept the agent") }
	if err := r.step(t.Context()); err == nil || s.signals > 0 {
		t.Errorf("%v, %d signals", err, s.signals)
	}
}

// TestRefused: a memcached that refuses the agent reloads by a signal, after which it sends the new certificate.
func TestRefused(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r, putTLS, _ := s.start(t)
	s.distrust()
	r.auth, r.secrets = nil, r.secrets[:1]
	putTLS(issue(t, s.authority))
	r.client.signal = func() error {
		time.AfterFunc(300*time.Millisecond, s.refresh) // memcached checks for a signal once a second
		return nil
	}
	for range 2 {
		if err := r.step(t.Context()); err != nil || r.tls.pendingSince.IsZero() {
			t.Errorf("in force before memcached has read it, %v", err)
		}
	}
	if err := reload(t, r); err != nil {
		t.Error(err)
	}
}

// TestRemovedPassword: new passwords are not active before memcached refuses the removed ones.
func TestRemovedPassword(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.also = "a second"
	r, _, putAuth := s.start(t)
	r.tls.activate()
	r.auth.activate()
	putAuth(credentials.Data{"authfile": []byte("a:second\n")})
	if err := reload(t, r); err == nil || !strings.Contains(err.Error(), "accepts a password") ||
		testutil.ToFloat64(r.auth.failures) != 1 {
		t.Errorf("%v, %v failures", err, testutil.ToFloat64(r.auth.failures))
	}
}

// TestExpired: memcached refuses an expired certificate, so that the agent cannot log in to verify new passwords. They
// are not reported as pending for ever.
func TestExpired(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r, _, putAuth := s.start(t)
	s.distrust() // as it does once the certificate has expired
	r.tls.activate()
	r.auth.activate()
	r.tls.wanted.tls.Leaf.NotAfter = time.Now().Add(-time.Minute)
	putAuth(credentials.Data{"authfile": []byte("a:second\n")})
	if err := reload(t, r); err != nil || s.signals != 1 {
		t.Errorf("%v, %d signals", err, s.signals)
	}
}

// TestRelayEnds: the relay closes the exporter's connection after some time, and after a request that is too large.
func TestRelayEnds(t *testing.T) {
	t.Parallel()
	for _, request := range []string{"", strings.Repeat("x", 2*bufio.MaxScanTokenSize)} {
		exporter, agent := net.Pipe()
		if err := exporter.SetDeadline(time.Now().Add(2 * memcached.Timeout)); err != nil {
			t.Fatal(err)
		}
		go func() { _ = relay(t.Context(), &client{}, agent) }()
		_, _ = exporter.Write([]byte(request))
		if _, err := exporter.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("a request of %d bytes leaves the connection open: %v", len(request), err)
		}
	}
}
