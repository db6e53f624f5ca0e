// Package authority is a certificate authority of a test: memcached and its clients get their certificates from it.
package authority

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

// Authority issues certificates that are valid for an hour.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// New makes an authority, whose certificate it signs itself.
func New() (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	certificate, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "authority"}, key)
	return &Authority{certificate, key}, err
}

// Issue makes a certificate, with its key, for a server or client of these names.
func (a *Authority) Issue(names ...string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.certificate, key.Public(), a.key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// Secret issues a certificate as the data of a Secret such as cert-manager makes: tls.crt, tls.key and ca.crt.
func (a *Authority) Secret(names ...string) (map[string][]byte, error) {
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

// Trust configures a client that believes the authority about that host, and shows its own certificate, if any.
func (a *Authority) Trust(host string, own ...tls.Certificate) *tls.Config {
	config := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: host, Certificates: own}
	a.AddTo(config.RootCAs)
	return config
}

// AddTo adds the authority to those that a client believes.
func (a *Authority) AddTo(roots *x509.CertPool) { roots.AddCert(a.certificate) }
