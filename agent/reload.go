package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/credentials"
)

const (
	// readInterval is how often the agent reads the mounted Secrets.
	readInterval = time.Second
	// reloadTimeout is how long memcached may take to reload its files: it checks for a signal once a second.
	reloadTimeout = 4 * time.Second
	pollInterval  = 100 * time.Millisecond
)

// reloader makes memcached reload the mounted Secrets.
type reloader struct {
	memcached *memcached
	log       *slog.Logger
	isClient  bool    // memcached accepts the agent only with the mounted certificate
	tls, auth *secret // nil for none
	secrets   []*secret
	lastError string // as logged last; empty after success
}

func newReloader(o contract.Options, m *memcached, log *slog.Logger, registry *prometheus.Registry) *reloader {
	r := &reloader{memcached: m, log: log, isClient: o.TLS == credentials.CheckClient}
	if o.TLS != "" {
		r.tls = newTLSSecret(o.TLS, registry)
		r.secrets = append(r.secrets, r.tls)
	}
	if o.Auth {
		r.auth = newAuthSecret(registry)
		r.secrets = append(r.secrets, r.auth)
	}
	r.setCandidates()
	return r
}

// setCandidates updates the credentials that the agent tries. A memcached that only requests client certificates
// refuses an untrusted one, but accepts a client without any.
func (r *reloader) setCandidates() {
	r.memcached.candidates.Store(&candidates{append(r.tls.certificates(), &tls.Certificate{}), r.auth.logins()})
}

// run calls reloadIfChanged every readInterval until ctx is done.
func (r *reloader) run(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		switch err := r.reloadIfChanged(ctx); {
		case err == nil:
			r.lastError = ""
		case ctx.Err() == nil && err.Error() != r.lastError:
			r.lastError = err.Error()
			r.log.Error("memcached keeps its previous certificate or passwords", "error", err)
		}
	}, readInterval)
	return nil
}

// reloadIfChanged makes memcached reload the mounted Secrets that are valid and not active yet.
func (r *reloader) reloadIfChanged(ctx context.Context) error {
	r.read()
	var err error
	for _, s := range r.secrets {
		err = errors.Join(err, s.invalid)
	}
	r.setCandidates()
	// A signal makes memcached reload all files, so all must be valid. The command refresh_certs reloads only the
	// certificate, key and CAs, so an invalid authfile does not delay it.
	if r.tls.needsReload() || r.auth.needsReload() && err == nil {
		err = errors.Join(err, r.reload(ctx))
	}
	return err
}

// read reads the mounted Secrets, and reports whether any changed.
func (r *reloader) read() (changed bool) {
	for _, s := range r.secrets {
		changed = s.read() || changed
	}
	return changed
}

// reload makes memcached reload its files, and waits until verify confirms that it did.
func (r *reloader) reload(ctx context.Context) error {
	refreshed, err := r.requestReload(ctx)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil // memcached is starting, and will read its files
	}
	changed := false
	if err == nil {
		_ = wait.PollUntilContextTimeout(ctx, pollInterval, reloadTimeout, true, func(ctx context.Context) (bool, error) {
			err = r.verify(ctx, refreshed)
			changed = err != nil && r.read()
			return err == nil || changed, nil
		})
	}
	if changed {
		return nil // the content has changed again: the next reloadIfChanged reloads it
	}
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

// requestReload makes memcached reload its files, and reports whether the certificate, key and CAs are already reloaded
// when it returns. Passwords are reloaded only by a signal; a certificate also by a command, which every version has,
// but which needs a connection that memcached accepts.
func (r *reloader) requestReload(ctx context.Context) (refreshed bool, err error) {
	c, err := r.memcached.connect(ctx)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return false, err
	case err == nil:
		if r.tls.needsReload() {
			err = c.expect("refresh_certs", "OK")
			refreshed = err == nil
		}
		_ = c.Close()
	}
	if err == nil && !r.auth.needsReload() || !r.auth.isValid() {
		return refreshed, err
	}
	return refreshed, r.memcached.signal()
}

// verify returns an error unless the mounted content is active: memcached sends the mounted certificate and the names
// of the mounted CAs, accepts all mounted logins, and refuses removed ones. If refreshed is true, memcached has
// confirmed the reload of the CAs, and verify does not compare their names.
func (r *reloader) verify(ctx context.Context, refreshed bool) error {
	if r.tls.needsReload() {
		handshake, err := r.memcached.try(ctx)
		if handshake.certificate == nil {
			return err
		}
		if !handshake.certificate.Equal(r.tls.tls.Leaf) {
			return errors.New("memcached uses another certificate than the mounted one")
		}
		mounted, named := map[string]bool{}, map[string]bool{}
		for _, ca := range r.tls.tls.CAs {
			mounted[string(ca.RawSubject)] = true
		}
		for _, subject := range handshake.caSubjects {
			named[string(subject)] = true
		}
		if !refreshed && !maps.Equal(mounted, named) {
			return errors.New("memcached names other CAs than the mounted ones")
		}
	}
	// Once its certificate has expired, memcached refuses the agent, and no login can be verified.
	expired := r.isClient && time.Now().After(r.tls.tls.Leaf.NotAfter)
	if r.auth == nil || !r.auth.isValid() || expired {
		return nil
	}
	for _, user := range r.auth.mountedLogins {
		if _, err := r.memcached.try(ctx, user); err != nil {
			return fmt.Errorf("log in with the mounted authfile: %w", err)
		}
	}
	for _, user := range r.auth.removedLogins() {
		switch _, err := r.memcached.try(ctx, user); {
		case err == nil:
			return errors.New("memcached accepts a password that is not in the mounted authfile")
		case !errors.Is(err, errAnswered): // no answer is no refusal
			return fmt.Errorf("log in with a removed password: %w", err)
		}
	}
	return nil
}
