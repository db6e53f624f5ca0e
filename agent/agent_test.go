package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/example/memcached-operator/controllers/credentials"
	"github.com/example/memcached-operator/tests/authority"
)

// TestArgs: the agent understands what the operator tells it.
func TestArgs(t *testing.T) {
	t.Parallel()
	for _, want := range []Options{
		{Port: 11211, Namespace: "shop"},
		{Port: 12000, MetricsPort: 9150, Namespace: "shop", TLSSecret: "certificate", ClientAuth: true, AuthSecret: "users"},
		{Port: 12000, MetricsPort: 9150, Namespace: "shop", TLSSecret: "certificate"},
	} {
		if got, err := parse(want.Args()[1:]); err != nil || got != want {
			t.Errorf("%+v becomes %+v, %v", want, got, err)
		}
	}
	for _, args := range [][]string{{"--port=x"}, {"--unknown"}, {"word"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("%q is understood", args)
		}
	}
}

// mounted is a Secret in a folder.
func mounted(t *testing.T, s *secret) func(credentials.Data) {
	t.Helper()
	s.path = t.TempDir()
	return func(data credentials.Data) {
		t.Helper()
		for key, content := range data {
			if err := os.WriteFile(filepath.Join(s.path, key), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s.read()
	}
}

// TestWrongContent: wrong content counts once, and what was in force before must be put in force again.
func TestWrongContent(t *testing.T) {
	t.Parallel()
	ours, err := authority.New()
	if err != nil {
		t.Fatal(err)
	}
	first, err := ours.Secret("first")
	if err != nil {
		t.Fatal(err)
	}
	second, err := ours.Secret("second")
	if err != nil {
		t.Fatal(err)
	}
	s := newTLSSecret(Options{TLSSecret: "certificate", ClientAuth: true}, prometheus.NewRegistry())
	put := mounted(t, s)
	put(first)
	if !s.due() || s.inForce {
		t.Errorf("right content: %v, in force %t", s.wrong, s.inForce)
	}
	s.putInForce()
	put(credentials.Data{"tls.key": second["tls.key"]})
	s.read()
	if s.due() || s.inForce || testutil.ToFloat64(s.failures) != 1 {
		t.Errorf("wrong content: %v, in force %t, %v failures", s.wrong, s.inForce, testutil.ToFloat64(s.failures))
	}
	put(first)
	if !s.due() {
		t.Errorf("right content again: %v, in force %t, though memcached may have started meanwhile", s.wrong, s.inForce)
	}
	put(second)
	if list := s.certificates(); len(list) != 2 || list[0].Leaf.Subject.CommonName != "second" ||
		list[1].Leaf.Subject.CommonName != "first" {
		t.Errorf("the agent would show %v", list)
	}
	if s.pendingSeconds() != 0 {
		t.Error("pending before anybody said so")
	}
	s.setPending(true)
	if s.pendingSeconds() == 0 {
		t.Error("not pending")
	}
}

// TestUsers: who was taken out of the file is known, and so is a login that memcached may still want.
func TestUsers(t *testing.T) {
	t.Parallel()
	s := newAuthSecret(Options{AuthSecret: "users"}, prometheus.NewRegistry())
	put := mounted(t, s)
	put(credentials.Data{"authfile": []byte("a:first\nb:x\n")})
	if s.wrong != nil || len(s.removed()) != 0 || len(s.logins()) != 1 {
		t.Errorf("%v, removed %q, logins %q", s.wrong, s.removed(), s.logins())
	}
	s.putInForce()
	put(credentials.Data{"authfile": []byte("a:second\nb:x\n")})
	if got := s.removed(); len(got) != 1 || got[0] != "a:first" {
		t.Errorf("removed %q", got)
	}
	if got := s.logins(); len(got) != 2 || got[0] != "a:second" || got[1] != "a:first" {
		t.Errorf("logins %q", got)
	}
	if got := testutil.ToFloat64(s.loadedGauge); got != 2 {
		t.Errorf("%v users", got)
	}
}
