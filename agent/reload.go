package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// lookInterval is how often the agent looks at what is mounted.
	lookInterval = time.Second
	// reloadTime is how long memcached may take to read its files again: it looks for a signal once a second.
	reloadTime = 4 * time.Second
	askAgain   = 100 * time.Millisecond
)

// reloader has memcached read again what is mounted.
type reloader struct {
	memcached *memcached
	log       *slog.Logger
	tls, auth *secret // nil for none
	secrets   []*secret
	wanted    string // path of a file with the digests of Secrets that the operator read
	said      string // error that was logged last
}

func newReloader(o Options, m *memcached, log *slog.Logger, registry *prometheus.Registry) *reloader {
	r := &reloader{memcached: m, log: log, wanted: WantedPath}
	if o.TLSSecret != "" {
		r.tls = newTLSSecret(o, registry)
		r.secrets = append(r.secrets, r.tls)
	}
	if o.AuthSecret != "" {
		r.auth = newAuthSecret(o, registry)
		r.secrets = append(r.secrets, r.auth)
	}
	return r
}

// run looks at what is mounted until ctx ends.
func (r *reloader) run(ctx context.Context) error {
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		switch err := r.look(ctx); {
		case err == nil:
			r.said = ""
		case ctx.Err() == nil && err.Error() != r.said:
			r.said = err.Error()
			r.log.Error("memcached keeps what it has", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// look puts in force what is mounted, where that is right and not in force yet.
func (r *reloader) look(ctx context.Context) error {
	r.read()
	var err error
	for _, s := range r.secrets {
		err = errors.Join(err, s.wrong)
	}
	r.setPending()
	r.memcached.setAccess(r.tls.certificates(), r.auth.logins())
	// A signal makes memcached read all files, so all must be right. A certificate has a command of its own.
	if r.tls.due() || r.auth.due() && err == nil {
		err = errors.Join(err, r.reload(ctx))
		r.setPending()
	}
	return err
}

// read reads what is mounted.
func (r *reloader) read() (changed bool) {
	for _, s := range r.secrets {
		changed = s.read() || changed
	}
	return changed
}

// setPending notes which Secrets are not in force, or not mounted yet.
func (r *reloader) setPending() {
	var wanted []string
	if b, err := os.ReadFile(r.wanted); err == nil {
		wanted = strings.Fields(string(b))
	}
	for _, s := range r.secrets {
		s.setPending(!s.inForce || s.late(wanted))
	}
}

// reload has memcached read its files again, and waits until memcached shows that it did.
func (r *reloader) reload(ctx context.Context) error {
	if err := r.ask(ctx); errors.Is(err, syscall.ECONNREFUSED) {
		return nil // memcached starts, and reads its files then
	} else if err != nil {
		return r.failed(err)
	}
	ctx, cancel := context.WithTimeout(ctx, reloadTime)
	defer cancel()
	for {
		err := r.verify(ctx)
		if err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return r.failed(err)
		case <-time.After(askAgain):
		}
		if r.read() {
			return nil // memcached has read, or will read, what was not asked for: look again
		}
	}
	for _, s := range r.secrets {
		if s.due() {
			s.putInForce()
			r.log.Info("in force", "secret", s.name)
		}
	}
	return nil
}

func (r *reloader) failed(err error) error {
	for _, s := range r.secrets {
		if s.due() {
			s.failures.Inc()
		}
	}
	return err
}

// ask has memcached read its files again. Passwords are read at a signal only; a certificate at a command too, which
// every version knows, and which needs a connection that memcached accepts.
func (r *reloader) ask(ctx context.Context) error {
	c, err := r.memcached.connect(ctx)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return err
	case err == nil:
		if r.tls.due() {
			err = c.expect("refresh_certs", "OK")
		}
		_ = c.Close()
	}
	if err == nil && !r.auth.due() || !r.auth.right() {
		return err
	}
	return r.memcached.signal()
}

// verify returns an error unless what is mounted is in force: memcached shows the certificate, lets all users in, and
// none that was taken out.
func (r *reloader) verify(ctx context.Context) error {
	if r.tls != nil {
		leaf, err := r.memcached.show(ctx)
		if err != nil {
			return err
		}
		if !leaf.Equal(r.tls.pair.Leaf) {
			return errors.New("memcached shows another certificate than the mounted one")
		}
	}
	if r.auth == nil || !r.auth.right() {
		return nil
	}
	for _, user := range r.auth.users {
		if err := r.memcached.login(ctx, user); err != nil {
			return fmt.Errorf("log in with the mounted authfile: %w", err)
		}
	}
	for _, user := range r.auth.removed() {
		if r.memcached.login(ctx, user) == nil {
			return errors.New("memcached takes a password that is not in the mounted authfile")
		}
	}
	return nil
}
