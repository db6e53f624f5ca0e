package desired

import (
	"bytes"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// Secrets are the Secrets that servers mount; nil where they mount none.
type Secrets struct {
	TLS  *Secret `json:"tls,omitempty"`
	Auth *Secret `json:"auth,omitempty"`
}

// Secret is what is remembered of a Secret: never its content.
type Secret struct {
	Name string `json:"name"`
	// Version changes with each write of the Secret, and with the keys that the servers mount.
	Version string `json:"version"`
	// Digest identifies the content of these keys.
	Digest string `json:"digest"`
}

// contents are the digests of the Secrets.
func (s Secrets) contents() []string {
	var list []string
	for _, secret := range []*Secret{s.TLS, s.Auth} {
		if secret != nil {
			list = append(list, secret.Digest)
		}
	}
	return list
}

// KnownSecrets are those that a workload remembers.
func KnownSecrets(own *Workload) Secrets {
	if own == nil {
		return Secrets{}
	}
	return sourceOf(own).Secrets
}

// keys of the Secrets that a Memcached names.
const (
	keyCertificate = corev1.TLSCertKey
	keyPrivateKey  = corev1.TLSPrivateKeyKey
	keyCA          = corev1.ServiceAccountRootCAKey
	keyAuthFile    = "authfile"
)

// Of memcached's authfile (authfile.c), which reads 255 bytes at a time, the line break among them.
const (
	maxUsers    = 8
	maxAuthLine = 254 // bytes
)

// MissingKeyError says that a Secret lacks a key, which somebody may be about to add.
type MissingKeyError struct{ Key string }

func (e *MissingKeyError) Error() string { return fmt.Sprintf("has no key %s", e.Key) }

// TLSKeys are the keys that servers of mc mount of the Secret for TLS.
func TLSKeys(mc *v1alpha1.Memcached) []string {
	if mc.Spec.TLS.ClientAuth == v1alpha1.ClientAuthNone {
		return []string{keyCertificate, keyPrivateKey}
	}
	return []string{keyCertificate, keyPrivateKey, keyCA}
}

// authKeys are those of the Secret with passwords.
var authKeys = []string{keyAuthFile}

// CheckTLS returns the digest of what servers of mc mount of a Secret, or why they could not start with it. No error
// holds any of its content.
func CheckTLS(mc *v1alpha1.Memcached, s *corev1.Secret) (string, error) {
	keys := TLSKeys(mc)
	if err := has(s, keys[:2]); err != nil {
		return "", err
	}
	if _, err := tls.X509KeyPair(s.Data[keyCertificate], s.Data[keyPrivateKey]); err != nil {
		return "", fmt.Errorf("tls.crt and tls.key: %s", strings.TrimPrefix(err.Error(), "tls: "))
	}
	if len(keys) > 2 && !x509.NewCertPool().AppendCertsFromPEM(s.Data[keyCA]) {
		return "", fmt.Errorf("spec.tls.clientAuth %s needs the key ca.crt with a certificate in PEM", mc.Spec.TLS.ClientAuth)
	}
	return digestOfSecret(s, keys, 1), nil // nobody guesses a private key
}

// CheckAuth does the same for passwords.
func CheckAuth(s *corev1.Secret) (string, error) {
	if err := has(s, authKeys); err != nil {
		return "", err
	}
	file, ended := bytes.CutSuffix(s.Data[keyAuthFile], []byte("\n"))
	if !ended {
		return "", errors.New("authfile must end with a line break")
	}
	lines := strings.Split(string(file), "\n")
	users := map[string]bool{}
	for i, line := range lines {
		user, password, _ := strings.Cut(strings.TrimSuffix(line, "\r"), ":")
		switch {
		case user == "" || password == "" || strings.ContainsAny(user, " \r\x00") || strings.ContainsAny(password, "\r\x00"):
			return "", fmt.Errorf("line %d of authfile must be a user without spaces, a colon and a password", i+1)
		case len(line) > maxAuthLine:
			return "", fmt.Errorf("line %d of authfile has more than %d bytes", i+1, maxAuthLine)
		case users[user]:
			return "", fmt.Errorf("line %d of authfile names a user again", i+1)
		}
		users[user] = true
	}
	if len(lines) > maxUsers {
		return "", fmt.Errorf("authfile has %d users, and memcached reads %d", len(lines), maxUsers)
	}
	return digestOfSecret(s, authKeys, passwordRounds), nil
}

func has(s *corev1.Secret, keys []string) error {
	for _, key := range keys {
		if len(s.Data[key]) == 0 {
			return &MissingKeyError{key}
		}
	}
	return nil
}

// passwordRounds make guessing slow, as OWASP's Password Storage Cheat Sheet has it for PBKDF2 with SHA-256: whoever
// may read pods may read the digest.
const passwordRounds = 600_000

// digestOfSecret identifies content, by PBKDF2.
func digestOfSecret(s *corev1.Secret, keys []string, rounds int) string {
	var content []byte
	for _, key := range keys {
		content = fmt.Appendf(content, "%s %d ", key, len(s.Data[key]))
		content = append(content, s.Data[key]...)
	}
	salt := sha256.Sum256([]byte(s.Namespace + "/" + s.Name))
	sum, err := pbkdf2.Key(sha256.New, string(content), salt[:], rounds, 16)
	if err != nil {
		panic(err) // only of lengths that are constant here
	}
	return hex.EncodeToString(sum)
}
