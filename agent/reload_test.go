package agent

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/example/memcached-operator/controllers/credentials"
	"github.com/example/memcached-operator/tests/authority"
)

// server answers as memcached does.
type server struct {
	*tls.Config
	authority *authority.Authority
	login     string // "user password"
	refresh   func() // has the server read its certificate
}

// start returns an agent's reloader of the server, with the functions that mount Secrets.
func (s *server) start(t *testing.T) (r *reloader, putTLS, putAuth func(credentials.Data)) {
	t.Helper()
	options := Options{Namespace: "shop", TLSSecret: "certificate", ClientAuth: true, AuthSecret: "users"}
	r = newReloader(options, &memcached{tls: true}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	r.wanted = filepath.Join(t.TempDir(), "secrets")
	putTLS, putAuth = mounted(t, r.tls), mounted(t, r.auth)
	putTLS(s.secret(t))
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
	right := false
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		answer := "CLIENT_ERROR unauthenticated"
		switch request := lines.Text(); {
		case strings.HasPrefix(request, "set ") && lines.Scan():
			if right = lines.Text() == s.login; right {
				answer = "STORED"
			}
		case right && request == "version":
			answer = "VERSION 1.6.45"
		case right && request == "refresh_certs":
			s.refresh()
			answer = "OK"
		}
		if _, err := conn.Write([]byte(answer + "\r\n")); err != nil {
			return
		}
	}
}

func (s *server) secret(t *testing.T) credentials.Data {
	t.Helper()
	data, err := s.authority.Secret("cache")
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func newServer(t *testing.T) *server {
	t.Helper()
	ours, err := authority.New()
	if err != nil {
		t.Fatal(err)
	}
	return &server{Config: &tls.Config{}, authority: ours, login: "a first"}
}

// TestCertificateBesidePasswords: a renewed certificate does not wait until a file of passwords is right.
func TestCertificateBesidePasswords(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r, putTLS, putAuth := s.start(t)
	r.tls.putInForce()
	r.auth.putInForce()
	putAuth(credentials.Data{"authfile": []byte("without a colon\n")})
	putTLS(s.secret(t))
	if err := r.look(t.Context()); err == nil || !strings.Contains(err.Error(), "line 1 of authfile") {
		t.Errorf("a wrong file of passwords: %v", err)
	}
	if !r.tls.inForce || r.auth.inForce || r.tls.pendingSeconds() != 0 || r.auth.pendingSeconds() == 0 {
		t.Errorf("the certificate is in force %t, the passwords %t", r.tls.inForce, r.auth.inForce)
	}
}

// TestStrangeCertificate: memcached that requests certificates of clients, and does not trust its own, is reached
// without one.
func TestStrangeCertificate(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.ClientAuth, s.ClientCAs = tls.VerifyClientCertIfGiven, x509.NewCertPool()
	r, _, _ := s.start(t)
	r.memcached.setAccess(r.tls.certificates(), r.auth.logins())
	if _, err := r.memcached.connect(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestWrongFromTheStart: an agent that is started beside a wrong certificate knows the passwords all the same.
func TestWrongFromTheStart(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r, putTLS, _ := s.start(t)
	putTLS(credentials.Data{"tls.key": s.secret(t)["tls.key"]})
	if err := r.look(t.Context()); err == nil {
		t.Error("a wrong certificate is taken for a right one")
	}
	if _, err := r.memcached.connect(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestPending: what the operator wants is awaited until it is mounted. What is mounted after that is newer.
func TestPending(t *testing.T) {
	t.Parallel()
	r, _, putAuth := newServer(t).start(t)
	digests := func() string { return r.tls.digest + " " + r.auth.digest }
	want := func(digests string) {
		t.Helper()
		if err := os.WriteFile(r.wanted, []byte(digests), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put := func(file string) {
		t.Helper()
		putAuth(credentials.Data{"authfile": []byte(file)})
		r.auth.putInForce()
	}
	pending := func(when string, want bool) {
		t.Helper()
		if err := r.look(t.Context()); err != nil {
			t.Error(err)
		}
		if got := r.auth.pendingSeconds() > 0; got != want || r.tls.pendingSeconds() > 0 {
			t.Errorf("%s: pending %t", when, got)
		}
	}
	r.tls.putInForce()
	put("a:first\n")
	pending("before the operator said anything", false)
	want(digests())
	first := digests()
	pending("what the operator wants", false)
	put("a:second\n")
	second := digests()
	pending("newer than what the operator wants", false)
	put("a:first\n")
	want(second)
	pending("older than what the operator wants", true)
	put("a:third\n")
	pending("neither", true)
	put("a:second\n")
	pending("what the operator wants at last", false)
	want(first)
	pending("what was mounted once, and shall be again", true)
	want(credentials.Data{}.Digest("shop", "other", r.tls.keys) + " " +
		credentials.Data{}.Digest("shop", "others", r.auth.keys))
	pending("Secrets that servers of the next template mount", false)
}

// TestChangeDuringReload: content that changes again while memcached reads it is no failure.
func TestChangeDuringReload(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	r, putTLS, _ := s.start(t)
	r.auth.putInForce()
	putTLS(s.secret(t))
	refresh, next := s.refresh, s.secret(t)
	s.refresh = func() {
		s.refresh = refresh
		if r.tls.pendingSeconds() == 0 {
			t.Error("not pending while memcached reads")
		}
		for key, content := range next {
			if err := os.WriteFile(filepath.Join(r.tls.path, key), content, 0o600); err != nil {
				t.Error(err)
			}
		}
		refresh()
	}
	for range 2 {
		if err := r.look(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := testutil.ToFloat64(r.tls.failures); n != 0 || !r.tls.inForce {
		t.Errorf("%v failures, in force %t", n, r.tls.inForce)
	}
}

// TestHangs: the agent does not wait once for each certificate and login for a memcached that does not answer.
func TestHangs(t *testing.T) {
	t.Parallel()
	r, _, _ := newServer(t).start(t)
	r.auth.putInForce()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	r.memcached.address = silent.Addr().String()
	r.memcached.setAccess(r.tls.certificates(), r.auth.logins())
	start := time.Now()
	if _, err := r.memcached.connect(t.Context()); err == nil || time.Since(start) > timeout+time.Second {
		t.Errorf("%v after %s", err, time.Since(start))
	}
}
