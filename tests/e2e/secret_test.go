package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/textproto"
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/tests/harness"
)

// secret makes a Secret, or gives the one that is there that content.
func (w world) secret(name string, content map[string][]byte) {
	w.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}, Data: content}
	err := w.Create(w.ctx, s)
	if client.IgnoreAlreadyExists(err) == nil && err != nil {
		err = w.Update(w.ctx, s)
	}
	w.must(err)
}

// passwords makes a Secret with memcached's authfile, out of users such as "user:password".
func (w world) passwords(name string, users ...string) {
	w.Helper()
	var file []byte
	for _, user := range users {
		file = append(file, user+"\n"...)
	}
	w.secret(name, map[string][]byte{"authfile": file})
}

// authority is a certificate authority.
type authority struct {
	w    world
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func (w world) newAuthority() authority {
	w.Helper()
	a := authority{w: w}
	var cert, _ = a.issue("authority")
	a.cert, a.key, a.pem = cert.Leaf, cert.PrivateKey.(*ecdsa.PrivateKey), pemOf("CERTIFICATE", cert.Certificate[0])
	return a
}

// issue makes a certificate for servers and clients of these names, and its key in PEM. The first certificate of an
// authority is its own.
func (a authority) issue(names ...string) (cert tls.Certificate, key []byte) {
	a.w.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.w.must(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		parent, signer = template, private
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &private.PublicKey, signer)
	a.w.must(err)
	leaf, err := x509.ParseCertificate(der)
	a.w.must(err)
	keyDER, err := x509.MarshalECPrivateKey(private)
	a.w.must(err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private, Leaf: leaf}, pemOf("EC PRIVATE KEY", keyDER)
}

func pemOf(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// certificate makes a Secret as cert-manager does, with a certificate for any name in front of host.
func (a authority) certificate(name, host string) {
	a.w.Helper()
	cert, key := a.issue("*."+host, host)
	a.w.secret(name, map[string][]byte{corev1.TLSCertKey: pemOf("CERTIFICATE", cert.Certificate[0]),
		corev1.TLSPrivateKeyKey: key, corev1.ServiceAccountRootCAKey: a.pem})
}

// trust is the configuration of a client that believes the certificates of the authority for that host, and shows its
// own, if any.
func (a authority) trust(host string, own ...tls.Certificate) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	return &tls.Config{RootCAs: roots, ServerName: host, Certificates: own}
}

// caller is a client of a memcached.
type caller struct {
	address string
	tls     *tls.Config // nil for plain text
	login   string      // "user password"; empty for none
}

// dial connects, and logs in.
func (c caller) dial() (*textproto.Conn, error) {
	const patience = 5 * time.Second
	conn, err := net.DialTimeout("tcp", c.address, patience)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if c.tls != nil {
		conn = tls.Client(conn, c.tls)
	}
	t := textproto.NewConn(conn)
	if c.login == "" {
		return t, nil
	}
	answer, err := ask(t, "set login 0 0 %d\r\n%s", len(c.login), c.login)
	if err == nil && answer != "STORED" {
		err = fmt.Errorf("login: %s", answer)
	}
	if err != nil {
		_ = t.Close()
		return nil, err
	}
	return t, nil
}

// ask sends a request and returns the line that answers it.
func ask(c *textproto.Conn, format string, args ...any) (string, error) {
	if err := c.PrintfLine(format, args...); err != nil {
		return "", err
	}
	return c.ReadLine()
}

// store returns nil if memcached stores what the client sends.
func (c caller) store() error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := ask(conn, "set key 0 0 5\r\nvalue")
	if err == nil && answer != "STORED" {
		err = fmt.Errorf("set: %s", answer)
	}
	return err
}

// stores fails unless the client succeeds; a server that has just become ready may be asked again.
func (w world) stores(what string, c caller) {
	w.Helper()
	harness.Eventually(w, what, 10*time.Second, c.store)
}

// refused fails unless the client is refused with words that match.
func (w world) refused(what, words string, c caller) {
	w.Helper()
	if err := c.store(); err == nil || !regexp.MustCompile(words).MatchString(err.Error()) {
		w.Errorf("%s: want an error about %q, got %v", what, words, err)
	}
}
