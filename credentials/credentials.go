// Package credentials defines which keys memcached reads from Secrets, and validates their content. The operator checks
// a Secret before servers mount it, the agent before memcached reloads it. Errors never quote the content, so that no
// content of a Secret reaches a status, an event or a log.
package credentials

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/cert"
)

// Keys of the Secrets that a Memcached names.
const (
	KeyCertificate = corev1.TLSCertKey
	KeyPrivateKey  = corev1.TLSPrivateKeyKey
	KeyCA          = corev1.ServiceAccountRootCAKey
	KeyAuthFile    = "authfile"
)

// AuthKeys are the keys of a Secret with passwords that servers mount.
var AuthKeys = []string{KeyAuthFile}

// Limits of memcached's authfile (authfile.c), which is read 255 bytes at a time, including the line break.
const (
	maxUsers    = 8
	maxAuthLine = 254 // bytes
)

// clockSkew is how far the clock of a certificate's issuer may be ahead.
const clockSkew = time.Minute

// Data is the content of a Secret, by key.
type Data map[string][]byte

// MissingKeyError says that a Secret lacks a key, which somebody may be about to add.
type MissingKeyError struct{ Key string }

func (e *MissingKeyError) Error() string { return fmt.Sprintf("has no key %s", e.Key) }

// Checks says what the TLS Secret of a server must contain.
type Checks string

// Each includes the checks of the previous one.
const (
	CheckPair   Checks = "pair"   // a certificate and its private key
	CheckCA     Checks = "ca"     // CAs of clients, because clients send certificates
	CheckClient Checks = "client" // CAs that accept the certificate, because the agent sends it as a client
)

// Keys returns the keys of the Secret that servers mount.
func (c Checks) Keys() []string {
	if c == CheckPair {
		return []string{KeyCertificate, KeyPrivateKey}
	}
	return []string{KeyCertificate, KeyPrivateKey, KeyCA}
}

// TLS is the content of a Secret that passed its checks.
type TLS struct {
	tls.Certificate
	CAs []*x509.Certificate // of clients; nil with CheckPair
}

// TLS checks a certificate with its private key, and the CAs of clients. The errors of crypto/tls are replaced, because
// they quote the file.
func (d Data) TLS(checks Checks, now time.Time) (*TLS, error) {
	if err := d.has(KeyCertificate, KeyPrivateKey); err != nil {
		return nil, err
	}
	if _, err := d.certificates(KeyCertificate); err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(d[KeyCertificate], d[KeyPrivateKey])
	switch {
	case err != nil && strings.Contains(err.Error(), "does not match"):
		return nil, errors.New("tls.key is not the private key of the first certificate in tls.crt")
	case err != nil:
		return nil, errors.New("tls.key has no private key in PEM that can be parsed")
	case !now.Before(pair.Leaf.NotAfter):
		return nil, fmt.Errorf("the certificate in tls.crt expired at %s", pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	case checks == CheckPair:
		return &TLS{Certificate: pair}, nil
	}
	cas, err := d.certificates(KeyCA)
	if err != nil {
		return nil, fmt.Errorf("spec.tls.clientAuth needs the CAs of clients, here or in spec.tls.clientCA: %w", err)
	}
	if checks != CheckClient {
		return &TLS{pair, cas}, nil
	}
	options := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(),
		CurrentTime: now.Add(clockSkew), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	options.Roots.AppendCertsFromPEM(d[KeyCA])
	options.Intermediates.AppendCertsFromPEM(d[KeyCertificate])
	if _, err := pair.Leaf.Verify(options); err != nil {
		return nil, errors.New("with spec.tls.clientAuth Require, ca.crt must accept tls.crt as a client certificate: the " +
			"agent connects with it")
	}
	return &TLS{pair, cas}, nil
}

// certificates parses the certificates of a key, at least one. Like memcached, it skips PEM blocks of other types.
func (d Data) certificates(key string) ([]*x509.Certificate, error) {
	list, err := cert.ParseCertsPEM(d[key])
	if err != nil {
		return nil, fmt.Errorf("%s has no certificate in PEM, or one that cannot be parsed", key)
	}
	return list, nil
}

// CA is a CA that servers trust. If it is renewed with the same subject and key, its ID stays: memcached accepts the
// clients of both certificates.
type CA struct {
	ID       string    `json:"id"`
	NotAfter time.Time `json:"notAfter"`
}

// TrustedCAs returns the CAs of clients. An ID occurs once for each certificate of the CA.
func (t *TLS) TrustedCAs() (list []CA) {
	for _, c := range t.CAs {
		sum := sha256.Sum256(slices.Concat(c.RawSubject, c.RawSubjectPublicKeyInfo))
		list = append(list, CA{hex.EncodeToString(sum[:8]), c.NotAfter})
	}
	return list
}

// Users validates the authfile, and returns its users, each in the form "user:password".
func (d Data) Users() ([]string, error) {
	if err := d.has(AuthKeys...); err != nil {
		return nil, err
	}
	file, ended := bytes.CutSuffix(d[KeyAuthFile], []byte("\n"))
	if !ended {
		return nil, errors.New("authfile must end with a line break")
	}
	lines := strings.Split(string(file), "\n")
	seen := map[string]bool{}
	for i, line := range lines {
		lines[i] = strings.TrimSuffix(line, "\r")
		user, password, _ := strings.Cut(lines[i], ":")
		switch {
		case user == "" || password == "" || strings.ContainsAny(user, " \r\x00") || strings.ContainsAny(password, "\r\x00"):
			return nil, fmt.Errorf("line %d of authfile must be a user without spaces, a colon and a password", i+1)
		case len(line) > maxAuthLine:
			return nil, fmt.Errorf("line %d of authfile has more than %d bytes", i+1, maxAuthLine)
		case seen[user]:
			return nil, fmt.Errorf("line %d of authfile repeats a user", i+1)
		}
		seen[user] = true
	}
	if len(lines) > maxUsers {
		return nil, fmt.Errorf("authfile has %d users, but memcached reads only %d", len(lines), maxUsers)
	}
	return lines, nil
}

func (d Data) has(keys ...string) error {
	for _, key := range keys {
		if len(d[key]) == 0 {
			return &MissingKeyError{key}
		}
	}
	return nil
}
