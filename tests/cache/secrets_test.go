package cache

import (
	"context"
	"errors"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/example/memcached-operator/internal/testing/testca"
)

const (
	serverName = "cache"
	login1     = "reader one"
	authfile1  = "reader:one\n"
	authfile2  = authfile1 + "next:two\n"
)

// secrets are the Secrets of the caches.
type secrets struct {
	world
	ca *testca.CA
}

// newSecrets creates the Secrets.
func newSecrets(w world) (*secrets, error) {
	ca, err := testca.New()
	if err != nil {
		return nil, err
	}
	s := &secrets{w, ca}
	certificate, err := s.certificate()
	return s, errors.Join(err, w.Create(w.Context(), certificate), w.Create(w.Context(), s.passwords(authfile1)))
}

// credentials returns the credentials of a client that trusts the CA.
func (s *secrets) credentials() credentials {
	return credentials{s.ca.Trust(serverName), login1}
}

// rotations returns the scenarios that change a Secret, once for all caches. The credentials of the clients stay valid:
// the new certificate is of the same CA, and the new authfile adds a user.
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
	issued, err := s.ca.Secret(serverName)
	return s.secret("certificate", issued), err
}

func (s *secrets) passwords(authfile string) *corev1.Secret {
	return s.secret("passwords", map[string][]byte{"authfile": []byte(authfile)})
}

func (s *secrets) secret(name string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}, Data: data}
}
