package agent

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/example/memcached-operator/credentials"
)

// secret is a mounted Secret; nil if none is mounted.
type secret struct {
	label, path string
	keys        []string
	checks      credentials.Checks // of certificates

	mounted credentials.Data
	invalid error // why memcached must not read mounted
	// The valid content that was mounted last, and the content that memcached used when it was last verified.
	wanted, active content
	pendingSince   time.Time // when mounted changed; zero once memcached has read it

	reloads, failures prometheus.Counter
	pending           prometheus.Gauge
	users             prometheus.Gauge // nil for certificates
}

// content is what a Secret contains.
type content struct {
	tls    *credentials.TLS
	logins []string // each "user:password"
}

func newSecret(label, path string, keys []string, registry *prometheus.Registry) *secret {
	labels, metrics := prometheus.Labels{"secret": label}, promauto.With(registry)
	return &secret{label: label, path: path, keys: keys,
		reloads: metrics.NewCounter(prometheus.CounterOpts{Name: "memcached_agent_reloads_total", ConstLabels: labels,
			Help: "Changes of the Secret that were put in force."}),
		failures: metrics.NewCounter(prometheus.CounterOpts{Name: "memcached_agent_reload_failures_total",
			ConstLabels: labels, Help: "Attempts to put a change of the Secret in force that failed."}),
		pending: metrics.NewGauge(prometheus.GaugeOpts{Name: "memcached_agent_secret_pending_seconds",
			ConstLabels: labels,
			Help:        "Time for which mounted content of the Secret has not been in force; 0 while it is."}),
	}
}

// read reads the mounted content. It checks changed content, and invalid content again, which may become valid in time.
func (s *secret) read() (changed bool) {
	data := credentials.Data(readFiles[[]byte](s.path, s.keys...))
	changed = s.mounted == nil || !maps.EqualFunc(s.mounted, data, bytes.Equal)
	if changed || s.invalid != nil {
		s.mounted = data
		s.validate()
	}
	if changed && s.pendingSince.IsZero() {
		// Content that was active before needs a reload too: memcached may have restarted with other content since.
		s.pendingSince = time.Now()
	}
	if changed && s.invalid != nil {
		s.failures.Inc()
	}
	if !s.pendingSince.IsZero() {
		s.pending.Set(time.Since(s.pendingSince).Seconds())
	}
	return changed
}

// validate checks the mounted content.
func (s *secret) validate() {
	var c content
	if s.users == nil {
		c.tls, s.invalid = s.mounted.TLS(s.checks, time.Now())
	} else {
		c.logins, s.invalid = s.mounted.Users()
	}
	if s.invalid == nil {
		s.wanted = c
	} else {
		s.invalid = fmt.Errorf("the Secret for %s: %w", s.label, s.invalid)
	}
}

// readFiles reads files of a volume, all of one version. The kubelet keeps each version in a folder of its own, and
// switches to another by a symbolic link. Files that do not exist are left out.
func readFiles[T string | []byte](volume string, names ...string) map[string]T {
	link := filepath.Join(volume, "..data")
	for {
		folder, _ := os.Readlink(link)
		files := map[string]T{}
		for _, name := range names {
			if b, err := os.ReadFile(filepath.Join(volume, folder, name)); err == nil {
				files[name] = T(b)
			}
		}
		if now, _ := os.Readlink(link); now == folder {
			return files
		}
	}
}

// isValid reports whether memcached may read the mounted content.
func (s *secret) isValid() bool { return s == nil || s.invalid == nil }

// needsReload reports whether memcached should read the mounted content.
func (s *secret) needsReload() bool { return s != nil && s.isValid() && !s.pendingSince.IsZero() }

// activate records that memcached has read the mounted content.
func (s *secret) activate() {
	if s.active.tls != nil || s.active.logins != nil {
		s.reloads.Inc()
	}
	s.active, s.pendingSince = s.wanted, time.Time{}
	s.pending.Set(0)
	if s.users != nil {
		s.users.Set(float64(len(s.active.logins)))
	}
}

// certificates returns those that memcached may accept, the newest first.
func (s *secret) certificates() (list []*tls.Certificate) {
	if s == nil {
		return nil
	}
	for _, c := range slices.Compact([]*credentials.TLS{s.wanted.tls, s.active.tls}) {
		if c != nil {
			list = append(list, &c.Certificate)
		}
	}
	return list
}

// logins returns those that memcached may accept, the newest first; one empty login if there is none.
func (s *secret) logins() []string {
	if s == nil || len(s.wanted.logins)+len(s.active.logins) == 0 {
		return []string{""}
	}
	return slices.Concat(s.wanted.logins, s.active.logins)
}
