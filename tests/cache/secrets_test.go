package cache

import (
	"context"
	"errors"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/example/memcached-operator/tests/authority"
)

const (
	serverName = "cache"
	login1     = "reader one"
	authfile1  = "reader:one\n"
	authfile2  = authfile1 + "next:two\n"
)

// secrets are the Secrets that the caches name.
type secrets struct {
	world
	authority *authority.Authority
}

// newSecrets makes the Secrets.
func newSecrets(w world) (*secrets, error) {
	a, err := authority.New()
	if err != nil {
		return nil, err
	}
	s := &secrets{w, a}
	certificate, err := s.certificate()
	return s, errors.Join(err, w.Create(w.Context(), certificate), w.Create(w.Context(), s.passwords(authfile1)))
}

// credentials are those of a client that trusts the authority.
func (s *secrets) credentials() credentials {
	return credentials{s.authority.Trust(serverName), login1}
}

// rotations change Secrets, once for all caches. Clients go on with what was valid before: they trust the same
// authority, and their password is still in the file, to which another one is added.
func (s *secrets) rotations() []scenario {
	rotate := func(name string, change func() (*corev1.Secret, error)) scenario {
		do := sync.OnceValue(func() error {
			secret, err := change()
			return errors.Join(err, s.Update(s.Context(), secret))
		})
		return scenario{name, untouched, 0, func(context.Context, *subject) error { return do() }}
	}
	return []scenario{
		rotate("certificate rotation", s.certificate),
		rotate("password rotation", func() (*corev1.Secret, error) { return s.passwords(authfile2), nil }),
	}
}

func (s *secrets) certificate() (*corev1.Secret, error) {
	issued, err := s.authority.Secret(serverName)
	return s.secret("certificate", issued), err
}

func (s *secrets) passwords(authfile string) *corev1.Secret {
	return s.secret("passwords", map[string][]byte{"authfile": []byte(authfile)})
}

func (s *secrets) secret(name string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}, Data: data}
}
