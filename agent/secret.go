package agent

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/credentials"
)

// secret is a mounted Secret; nil if none is mounted.
type secret struct {
	label, path string
	keys        []string
	check       func() error // checks mounted, and sets tls or mountedLogins

	mounted credentials.Data
	invalid error // why memcached must not read mounted

	// The mounted content, and the content that memcached used when it was last verified.
	tls, activeTLS              *credentials.TLS
	mountedLogins, activeLogins []string // each "user:password"

	pendingSince      atomic.Int64 // when mounted changed, in Unix nanoseconds; 0 once memcached has read it
	reloads, failures prometheus.Counter
	activeGauge       prometheus.Gauge // nil for certificates
}

func newTLSSecret(checks credentials.Checks, registry *prometheus.Registry) *secret {
	s := newSecret("tls", contract.TLSPath, checks.Keys(), registry)
	s.check = func() (err error) {
		s.tls, err = s.mounted.TLS(checks, time.Now())
		return err
	}
	return s
}

func newAuthSecret(registry *prometheus.Registry) *secret {
	s := newSecret("auth", contract.AuthPath, credentials.AuthKeys, registry)
	s.activeGauge = prometheus.NewGauge(prometheus.GaugeOpts{Name: "memcached_agent_users",
		Help: "Users whose passwords are in force."})
	registry.MustRegister(s.activeGauge)
	s.check = func() (err error) {
		s.mountedLogins, err = s.mounted.Users()
		return err
	}
	return s
}

func newSecret(label, path string, keys []string, registry *prometheus.Registry) *secret {
	labels := prometheus.Labels{"secret": label}
	s := &secret{label: label, path: path, keys: keys,
		reloads: prometheus.NewCounter(prometheus.CounterOpts{Name: "memcached_agent_reloads_total",
			Help: "Changes of the Secret that were put in force.", ConstLabels: labels}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: "memcached_agent_reload_failures_total",
			Help: "Attempts to put a change of the Secret in force that failed.", ConstLabels: labels}),
	}
	registry.MustRegister(s.reloads, s.failures, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "memcached_agent_secret_pending_seconds", ConstLabels: labels,
		Help: "Time for which mounted content of the Secret has not been in force; 0 while it is."}, s.pendingSeconds))
	return s
}

// read reads the mounted content. It checks changed content, and invalid content again, which may become valid in time.
func (s *secret) read() (changed bool) {
	content := s.content()
	changed = s.mounted == nil || !maps.EqualFunc(s.mounted, content, bytes.Equal)
	if !changed && s.invalid == nil {
		return false
	}
	s.mounted = content
	if s.invalid = s.check(); s.invalid != nil {
		s.invalid = fmt.Errorf("the Secret for %s: %w", s.label, s.invalid)
	}
	if changed {
		// Content that was active before needs a reload too: memcached may have restarted with other content since.
		s.pendingSince.CompareAndSwap(0, time.Now().UnixNano())
		if s.invalid != nil {
			s.failures.Inc()
		}
	}
	return changed
}

// content reads all keys from one version of the Secret. The kubelet keeps each version in a folder of its own, and
// switches to another by a symbolic link.
func (s *secret) content() credentials.Data {
	link := filepath.Join(s.path, "..data")
	for {
		folder, _ := os.Readlink(link)
		content := credentials.Data{}
		for _, key := range s.keys {
			if b, err := os.ReadFile(filepath.Join(s.path, folder, key)); err == nil {
				content[key] = b
			}
		}
		if now, _ := os.Readlink(link); now == folder {
			return content
		}
	}
}

// isValid reports whether memcached may read the mounted content.
func (s *secret) isValid() bool { return s == nil || s.invalid == nil }

// needsReload reports whether memcached should read the mounted content.
func (s *secret) needsReload() bool { return s != nil && s.isValid() && s.pendingSince.Load() != 0 }

// activate records that memcached has read the mounted content.
func (s *secret) activate() {
	if s.activeTLS != nil || s.activeLogins != nil {
		s.reloads.Inc()
	}
	s.pendingSince.Store(0)
	s.activeTLS, s.activeLogins = s.tls, s.mountedLogins
	if s.activeGauge != nil {
		s.activeGauge.Set(float64(len(s.mountedLogins)))
	}
}

// removedLogins returns the logins that memcached must no longer accept: those of removed users, and those with a
// previous password.
func (s *secret) removedLogins() []string {
	return slices.DeleteFunc(slices.Clone(s.activeLogins),
		func(login string) bool { return slices.Contains(s.mountedLogins, login) })
}

// certificates returns those that memcached may accept, the newest first.
func (s *secret) certificates() (list []*tls.Certificate) {
	if s != nil && s.tls != nil {
		list = append(list, &s.tls.Certificate)
	}
	if s != nil && s.activeTLS != nil && s.activeTLS != s.tls {
		list = append(list, &s.activeTLS.Certificate)
	}
	return list
}

// logins returns those that memcached may accept, the newest first; one empty login if there is none.
func (s *secret) logins() []string {
	if s == nil || len(s.mountedLogins)+len(s.activeLogins) == 0 {
		return []string{""}
	}
	mounted, active := s.mountedLogins, s.activeLogins
	return slices.Compact(slices.Concat(mounted[:min(1, len(mounted))], active[:min(1, len(active))]))
}

func (s *secret) pendingSeconds() float64 {
	if since := s.pendingSince.Load(); since != 0 {
		return time.Since(time.Unix(0, since)).Seconds()
	}
	return 0
}
