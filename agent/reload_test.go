package agent

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
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
	"k8s.io/client-go/util/cert"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/credentials"
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
	current   atomic.Pointer[tls.Config] // from trust; nil for Config
}

// start returns an agent's reloader of the server, with the functions that mount Secrets.
func (s *server) start(t *testing.T) (r *reloader, putTLS, putAuth func(credentials.Data)) {
	t.Helper()
	m := &memcached{tls: true, signal: func() error {
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
	r.memcached.address = listener.Addr().String()
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

// trust makes the server accept clients of the CAs in ca.crt only, and name these to clients.
func (s *server) trust(t *testing.T, content credentials.Data) {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(content["ca.crt"]) {
		t.Error("no CA")
	}
	config := s.Clone()
	config.ClientCAs, config.GetConfigForClient = pool, nil
	s.current.Store(config)
}

// named is a Secret with a CA of that name.
func named(t *testing.T, name string) credentials.Data {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := cert.NewSelfSignedCACert(cert.Config{CommonName: name}, key)
	if err != nil {
		t.Fatal(err)
	}
	file, err := cert.EncodeCertificates(ca)
	if err != nil {
		t.Fatal(err)
	}
	return credentials.Data{"ca.crt": file}
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

// TestCertificateBesidePasswords: a renewed certificate is reloaded even while the authfile is invalid.
func TestCertificateBesidePasswords(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r, putTLS, putAuth := s.start(t)
	r.tls.activate()
	r.auth.activate()
	putAuth(credentials.Data{"authfile": []byte("without a colon\n")})
	putTLS(issue(t, s.authority))
	if err := r.reloadIfChanged(t.Context()); err == nil || !strings.Contains(err.Error(), "line 1 of authfile") {
		t.Errorf("an invalid authfile: %v", err)
	}
	if r.tls.pendingSeconds() != 0 || r.auth.pendingSeconds() == 0 {
		t.Errorf("the certificate is pending for %v s, the passwords for %v s", r.tls.pendingSeconds(),
			r.auth.pendingSeconds())
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
	if _, err := r.memcached.connect(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestInvalidFromTheStart: an agent that starts with an invalid certificate still reads the passwords.
func TestInvalidFromTheStart(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r, putTLS, _ := s.start(t)
	putTLS(with(r.tls.mounted, "tls.key", issue(t, s.authority)))
	if err := r.reloadIfChanged(t.Context()); err == nil {
		t.Error("an invalid certificate is accepted")
	}
	if _, err := r.memcached.connect(t.Context()); err != nil {
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
		if r.tls.pendingSeconds() == 0 {
			t.Error("not pending while memcached reads")
		}
		project(t, r.tls.path, next)
		refresh()
	}
	for range 2 {
		if err := r.reloadIfChanged(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := testutil.ToFloat64(r.tls.failures); n != 0 || r.tls.pendingSeconds() != 0 {
		t.Errorf("%v failures, pending for %v s", n, r.tls.pendingSeconds())
	}
}

// TestUnresponsive: if memcached does not respond, the agent waits only once, not for each certificate and login.
func TestUnresponsive(t *testing.T) {
	t.Parallel()
	r, _, _ := newServer(t).start(t)
	r.auth.activate()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	r.memcached.address = silent.Addr().String()
	r.setCandidates()
	start := time.Now()
	if _, err := r.memcached.connect(t.Context()); err == nil || time.Since(start) > timeout+time.Second {
		t.Errorf("%v after %s", err, time.Since(start))
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
	if err := r.reloadIfChanged(t.Context()); err == nil || s.signals > 0 {
		t.Errorf("%v, %d signals", err, s.signals)
	}
}

// TestChangeOfCA: a memcached that does not accept the agent proves by the names of its CAs that it has read new ones.
func TestChangeOfCA(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.ClientAuth = tls.RequireAndVerifyClientCert
	r, putTLS, _ := s.start(t)
	r.isClient, r.auth, r.secrets = false, nil, r.secrets[:1]
	r.tls.check = func() (err error) {
		r.tls.tls, err = r.tls.mounted.TLS(credentials.CheckCA, time.Now())
		return err
	}
	strangers := named(t, "strangers")
	s.trust(t, strangers)
	r.tls.activate()
	next := named(t, "next")
	putTLS(with(r.tls.mounted, "ca.crt", next))
	trusted := make(chan struct{})
	r.memcached.signal = func() error {
		go func() {
			defer close(trusted)
			time.Sleep(3 * pollInterval) // memcached checks for a signal once a second
			s.trust(t, next)
		}()
		return nil
	}
	if err := r.reloadIfChanged(t.Context()); err != nil || r.tls.pendingSeconds() > 0 {
		t.Errorf("%v, pending for %v s", err, r.tls.pendingSeconds())
	}
	select {
	case <-trusted:
	default:
		t.Error("a CA is called active before memcached has read it")
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
	if err := r.reloadIfChanged(t.Context()); err == nil || r.auth.pendingSeconds() == 0 {
		t.Errorf("%v, pending for %v s", err, r.auth.pendingSeconds())
	}
}

// TestExpired: memcached refuses an expired certificate, so that the agent cannot log in to verify new passwords. They
// are not reported as pending for ever.
func TestExpired(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.ClientAuth = tls.RequireAndVerifyClientCert
	r, _, putAuth := s.start(t)
	s.trust(t, issue(t, newCA(t))) // refuses the agent, as it does once the certificate has expired
	r.tls.activate()
	r.auth.activate()
	r.tls.tls.Leaf.NotAfter = time.Now().Add(-time.Minute)
	putAuth(credentials.Data{"authfile": []byte("a:second\n")})
	if err := r.reloadIfChanged(t.Context()); err != nil || s.signals != 1 || r.auth.pendingSeconds() > 0 {
		t.Errorf("%v, %d signals, pending for %v s", err, s.signals, r.auth.pendingSeconds())
	}
}

// TestLastCertificateStaysKnown: the certificate from the last handshake is kept while the agent reconnects.
func TestLastCertificateStaysKnown(t *testing.T) {
	t.Parallel()
	r, _, _ := newServer(t).start(t)
	if err := r.reloadIfChanged(t.Context()); err != nil || r.memcached.lastCertificate.Load() == nil {
		t.Fatalf("%v, knows %v", err, r.memcached.lastCertificate.Load())
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	r.memcached.address = silent.Addr().String()
	if _, err := r.memcached.try(t.Context()); err == nil || r.memcached.lastCertificate.Load() == nil {
		t.Errorf("%v, knows %v", err, r.memcached.lastCertificate.Load())
	}
}

// TestRelayEnds: the relay closes the exporter's connection, whatever stops it.
func TestRelayEnds(t *testing.T) {
	t.Parallel()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tt := range map[string]struct {
		ctx     context.Context
		request string
	}{
		"the end of a collection":     {cancelled, ""},
		"a request that is too large": {t.Context(), strings.Repeat("x", 2*bufio.MaxScanTokenSize)},
	} {
		exporter, relay := net.Pipe()
		if err := exporter.SetDeadline(time.Now().Add(timeout)); err != nil {
			t.Fatal(err)
		}
		go func() { _ = (&collector{}).relay(tt.ctx, relay) }()
		_, _ = exporter.Write([]byte(tt.request))
		if _, err := exporter.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%s leaves the connection open: %v", name, err)
		}
	}
}
