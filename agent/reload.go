package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/procfs"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/agent/memcached"
	"github.com/example/memcached-operator/credentials"
)

const (
	// readInterval is how often the agent reads the mounted files.
	readInterval = time.Second
	// reloadTimeout is how long memcached may take to reload its files: it checks for a signal once a second.
	reloadTimeout = 4 * time.Second
)

// reloader makes memcached reload the mounted Secrets.
type reloader struct {
	client    *client
	log       *slog.Logger
	isClient  bool    // memcached accepts the agent only with the mounted certificate
	tls, auth *secret // nil for none
	secrets   []*secret
	requested time.Time // when memcached was asked to reload what is mounted; zero if it must be asked
	lastError string    // as logged last; empty after success
}

func newReloader(o contract.Options, c *client, log *slog.Logger, registry *prometheus.Registry) *reloader {
	r := &reloader{client: c, log: log, isClient: o.TLS == credentials.CheckClient}
	if o.TLS != "" {
		r.tls = newSecret("tls", contract.TLSPath, o.TLS.Keys(), registry)
		r.tls.checks = o.TLS
		r.secrets = append(r.secrets, r.tls)
		promauto.With(registry).NewGaugeFunc(prometheus.GaugeOpts{Name: "memcached_agent_certificate_expires_in_seconds",
			Help: "Time until memcached's certificate expires; negative afterwards."}, c.certificateExpires)
	}
	if o.Auth {
		r.auth = newSecret("auth", contract.AuthPath, credentials.AuthKeys, registry)
		r.auth.users = promauto.With(registry).NewGauge(prometheus.GaugeOpts{Name: "memcached_agent_users",
			Help: "Users whose passwords are in force."})
		r.secrets = append(r.secrets, r.auth)
	}
	r.setCandidates()
	return r
}

// certificateExpires returns the seconds until memcached's certificate expires; no number before the first handshake.
func (c *client) certificateExpires() float64 {
	if certificate := c.lastCertificate.Load(); certificate != nil {
		return time.Until(certificate.NotAfter).Seconds()
	}
	return math.NaN()
}

// setCandidates updates the credentials that the agent tries. A memcached that only requests client certificates
// refuses an untrusted one, but accepts a client without any.
func (r *reloader) setCandidates() {
	r.client.candidates.Store(&candidates{append(r.tls.certificates(), &tls.Certificate{}), r.auth.logins()})
}

// run calls step every readInterval until ctx is done.
func (r *reloader) run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		switch err := r.step(ctx); {
		case err == nil:
			r.lastError = ""
		case ctx.Err() == nil && err.Error() != r.lastError:
			r.lastError = err.Error()
			r.log.Error("memcached keeps its previous certificate or passwords", "error", err)
		}
	}, readInterval)
}

// step reads the mounted Secrets, and takes the next step towards a memcached that uses those that are valid.
func (r *reloader) step(ctx context.Context) error {
	var invalid error
	for _, s := range r.secrets {
		if s.read() {
			r.requested = time.Time{}
		}
		invalid = errors.Join(invalid, s.invalid)
	}
	r.setCandidates()
	// A signal makes memcached reload all files, so all must be valid. The command refresh_certs reloads only the
	// certificate, key and CAs, so an invalid authfile does not delay it.
	if r.tls.needsReload() || r.auth.needsReload() && invalid == nil {
		return errors.Join(invalid, r.reload(ctx))
	}
	return invalid
}

// reload makes memcached reload its files, and verifies in the next steps that it did.
func (r *reloader) reload(ctx context.Context) error {
	var err error
	if r.requested.IsZero() {
		switch err = r.requestReload(ctx); {
		case err == nil:
			r.requested = time.Now()
			return nil
		case errors.Is(err, syscall.ECONNREFUSED):
			return nil // memcached is starting, and will read its files
		}
	} else if err = r.verify(ctx); err != nil && time.Since(r.requested) < reloadTimeout {
		return nil
	}
	r.requested = time.Time{}
	for _, s := range r.secrets {
		switch {
		case !s.needsReload():
		case err != nil:
			s.failures.Inc()
		default:
			s.activate()
			r.log.Info("in force", "secret", s.label)
		}
	}
	return err
}

// requestReload makes memcached reload its files. Passwords are reloaded only by a signal; a certificate also by a
// command, which every version has, but which needs a connection that memcached accepts.
func (r *reloader) requestReload(ctx context.Context) error {
	conn, err := r.client.connect(ctx)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	if err == nil {
		if r.tls.needsReload() {
			err = conn.Expect("refresh_certs", "OK")
		}
		_ = conn.Close()
	}
	if err == nil && !r.auth.needsReload() || !r.auth.isValid() {
		return err
	}
	return r.client.signal()
}

// verify returns an error unless memcached sends the mounted certificate, accepts all mounted logins, and refuses those
// that were removed.
func (r *reloader) verify(ctx context.Context) error {
	if r.tls.needsReload() {
		err := r.client.try(ctx) // a memcached that refuses the agent sends its certificate, too
		if last := r.client.lastCertificate.Load(); last == nil || !last.Equal(r.tls.wanted.tls.Leaf) {
			return errors.Join(errors.New("memcached uses another certificate than the mounted one"), err)
		}
	}
	// Once its certificate has expired, memcached refuses the agent, and no login can be verified.
	expired := r.isClient && time.Now().After(r.tls.wanted.tls.Leaf.NotAfter)
	if r.auth == nil || !r.auth.isValid() || expired {
		return nil
	}
	for _, login := range slices.Concat(r.auth.wanted.logins, r.auth.active.logins) {
		err := r.client.try(ctx, login)
		switch isMounted := slices.Contains(r.auth.wanted.logins, login); {
		case isMounted && err != nil:
			return fmt.Errorf("log in with the mounted authfile: %w", err)
		case !isMounted && err == nil:
			return errors.New("memcached accepts a password that is not in the mounted authfile")
		case !isMounted && !errors.Is(err, memcached.ErrAnswered): // no answer is no refusal
			return fmt.Errorf("log in with a removed password: %w", err)
		}
	}
	return nil
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
