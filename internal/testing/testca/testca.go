// Package testca is a certificate authority (CA) for tests. It issues the certificates of memcached and its clients.
package testca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// CA is a CA whose certificates are valid for an hour.
type CA struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// New creates a CA with a self-signed certificate.
func New() (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	certificate, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "authority"}, key)
	return &CA{certificate, key}, err
}

// Issue returns a certificate with its key for a server or a client with these names.
func (a *CA) Issue(names ...string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: now.Add(-time.Minute), NotAfter: now.Add(24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.certificate, key.Public(), a.key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// Secret issues a certificate and returns it as the data of a Secret, like cert-manager: tls.crt, tls.key and ca.crt.
func (a *CA) Secret(names ...string) (map[string][]byte, error) {
	issued, err := a.Issue(names...)
	if err != nil {
		return nil, err
	}
	key, err := keyutil.MarshalPrivateKeyToPEM(issued.PrivateKey)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(issued.Certificate[0])
	if err != nil {
		return nil, err
	}
	certificate, err := cert.EncodeCertificates(leaf)
	if err != nil {
		return nil, err
	}
	own, err := cert.EncodeCertificates(a.certificate)
	return map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: key,
		corev1.ServiceAccountRootCAKey: own}, err
}

// Trust returns the configuration of a client that trusts this CA, expects the server to be host, and presents its own
// certificate, if any.
func (a *CA) Trust(host string, own ...tls.Certificate) *tls.Config {
	config := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: host, Certificates: own}
	a.AddTo(config.RootCAs)
	return config
}

// AddTo adds this CA to the CAs that a client trusts.
func (a *CA) AddTo(roots *x509.CertPool) { roots.AddCert(a.certificate) }
