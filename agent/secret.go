package agent

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/example/memcached-operator/controllers/credentials"
)

// secret is a Secret that is mounted. Its nil is none.
type secret struct {
	namespace, name, path string
	keys                  []string
	check                 func(*secret) error

	mounted credentials.Data
	digest  string // of mounted
	wrong   error  // why mounted cannot be put in force
	inForce bool   // memcached has read mounted
	came    string // the last digest that the operator wanted and that was mounted

	pair, loadedPair   *tls.Certificate // of mounted, and of what was in force last; nil of passwords
	users, loadedUsers []string         // the same of passwords; nil of certificates

	reloads, failures prometheus.Counter
	loadedGauge       prometheus.Gauge

	mu      sync.Mutex
	pending time.Time // since when what should be in force is not; zero where it is
}

func newTLSSecret(o Options, registry *prometheus.Registry) *secret {
	return newSecret("tls", o.Namespace, o.TLSSecret, TLSPath, credentials.TLSKeys(o.ClientAuth), registry,
		func(s *secret) error {
			pair, err := s.mounted.Pair(o.ClientAuth)
			s.pair = &pair
			return err
		})
}

func newAuthSecret(o Options, registry *prometheus.Registry) *secret {
	users := prometheus.NewGauge(prometheus.GaugeOpts{Name: "memcached_agent_users",
		Help: "Users whose passwords are in force."})
	registry.MustRegister(users)
	s := newSecret("auth", o.Namespace, o.AuthSecret, AuthPath, credentials.AuthKeys, registry,
		func(s *secret) (err error) {
			s.users, err = s.mounted.Users()
			return err
		})
	s.loadedGauge = users
	return s
}

func newSecret(label, namespace, name, path string, keys []string, registry *prometheus.Registry,
	check func(*secret) error) *secret {
	labels := prometheus.Labels{"secret": label}
	s := &secret{namespace: namespace, name: name, path: path, keys: keys, check: check,
		reloads: prometheus.NewCounter(prometheus.CounterOpts{Name: "memcached_agent_reloads_total",
			Help: "Changes of the Secret that were put in force.", ConstLabels: labels}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "memcached_agent_reload_failures_total",
			Help: "Attempts to put a change of the Secret in force that failed.", ConstLabels: labels}),
	}
	registry.MustRegister(s.reloads, s.failures, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "memcached_agent_secret_pending_seconds", ConstLabels: labels,
		Help: "Time for which content of the Secret that should be in force has not been; 0 while it is."}, s.pendingSeconds))
	return s
}

// read reads what is mounted, and checks it where it changed.
func (s *secret) read() (changed bool) {
	now := credentials.Data{}
	for _, key := range s.keys {
		if b, err := os.ReadFile(filepath.Join(s.path, key)); err == nil {
			now[key] = b
		}
	}
	if s.mounted != nil && maps.EqualFunc(s.mounted, now, bytes.Equal) {
		return false
	}
	// What was in force once and comes back is new too: a memcached that started meanwhile has read what was in between.
	s.mounted, s.digest, s.inForce = now, now.Digest(s.namespace, s.name, s.keys), false
	if s.wrong = s.check(s); s.wrong != nil {
		s.wrong = fmt.Errorf("in Secret %s: %w", s.name, s.wrong)
		s.failures.Inc()
	}
	return true
}

// right reports whether memcached may read what is mounted.
func (s *secret) right() bool { return s == nil || s.wrong == nil }

// due reports whether memcached should read what is mounted.
func (s *secret) due() bool { return s != nil && s.right() && !s.inForce }

// late reports whether what the operator wants has not been mounted since. What is mounted after that is newer: the
// operator may be paused, or down. Digests of other Secrets or keys are for the servers that replace this one.
func (s *secret) late(wanted []string) bool {
	which, _, _ := strings.Cut(s.digest, ":")
	for _, digest := range wanted {
		if digest == s.digest {
			s.came = digest
		}
		if strings.HasPrefix(digest, which+":") {
			return digest != s.came
		}
	}
	return false
}

// putInForce notes that memcached has read what is mounted.
func (s *secret) putInForce() {
	if s.loadedPair != nil || s.loadedUsers != nil {
		s.reloads.Inc()
	}
	s.inForce, s.loadedPair, s.loadedUsers = true, s.pair, s.users
	if s.loadedGauge != nil {
		s.loadedGauge.Set(float64(len(s.users)))
	}
}

// removed are the users that memcached had and shall have no more.
func (s *secret) removed() []string {
	return slices.DeleteFunc(slices.Clone(s.loadedUsers), func(user string) bool { return slices.Contains(s.users, user) })
}

// certificates are those that memcached may know, the newest first.
func (s *secret) certificates() (list []*tls.Certificate) {
	if s == nil {
		return nil
	}
	for _, pair := range []*tls.Certificate{s.pair, s.loadedPair} {
		if pair != nil && pair.Leaf != nil && !slices.Contains(list, pair) {
			list = append(list, pair)
		}
	}
	return list
}

// logins are those that memcached may know, the newest first.
func (s *secret) logins() (list []string) {
	if s == nil {
		return nil
	}
	for _, users := range [][]string{s.users, s.loadedUsers} {
		if len(users) > 0 && !slices.Contains(list, users[0]) {
			list = append(list, users[0])
		}
	}
	return list
}

func (s *secret) pendingSeconds() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending.IsZero() {
		return 0
	}
	return time.Since(s.pending).Seconds()
}

func (s *secret) setPending(pending bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !pending:
		s.pending = time.Time{}
	case s.pending.IsZero():
		s.pending = time.Now()
	}
}
