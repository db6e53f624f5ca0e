package cache

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
)

const (
	serverName = "cache"
	login1     = "reader one"
	authfile1  = "reader:one\n"
	authfile2  = authfile1 + "next:two\n"
)

// authority signs certificates, and keeps them and the passwords in Secrets.
type authority struct {
	world
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// newAuthority makes the Secrets.
func newAuthority(w world) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	certificate, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "authority"}, key)
	if err != nil {
		return nil, err
	}
	a := &authority{w, certificate, key}
	issued, err := a.issue()
	if err != nil {
		return nil, err
	}
	return a, errors.Join(w.Create(w.Context(), a.secret("certificate", issued)),
		w.Create(w.Context(), a.passwords(authfile1)))
}

// credentials are those of a client that trusts the authority.
func (a *authority) credentials() credentials {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return credentials{&tls.Config{RootCAs: pool, ServerName: serverName, MinVersion: tls.VersionTLS12}, login1}
}

// rotations change Secrets, once for all caches. Clients go on with what was valid before: they trust the same
// authority, and their password is still in the file, to which another one is added.
func (a *authority) rotations() []scenario {
	rotate := func(name string, change func() (*corev1.Secret, error)) scenario {
		do := sync.OnceValue(func() error {
			secret, err := change()
			return errors.Join(err, a.Update(a.Context(), secret))
		})
		return scenario{name, allReplaced, servers, func(context.Context, *subject) error { return do() }}
	}
	return []scenario{
		rotate("certificate rotation", func() (*corev1.Secret, error) {
			issued, err := a.issue()
			return a.secret("certificate", issued), err
		}),
		rotate("password rotation", func() (*corev1.Secret, error) { return a.passwords(authfile2), nil }),
	}
}

func (a *authority) passwords(authfile string) *corev1.Secret {
	return a.secret("passwords", map[string][]byte{"authfile": []byte(authfile)})
}

func (a *authority) secret(name string, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: name}, Data: data}
}

// issue makes a certificate for servers.
func (a *authority) issue() (map[string][]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: serverName}, DNSNames: []string{serverName},
		NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.certificate, key.Public(), a.key)
	return map[string][]byte{
		corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der}),
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		"ca.crt":                pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: a.certificate.Raw}),
	}, err
}
