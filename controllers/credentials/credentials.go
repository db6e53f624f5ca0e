// Package credentials knows what memcached reads of Secrets: the keys, what is wrong with their content, and digests
// that tell one content from another. The operator asks before servers mount a Secret, and the agent before memcached
// reloads one. No error holds any of the content.
package credentials

import (
	"bytes"
	"cmp"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Keys of the Secrets that a Memcached names.
const (
	KeyCertificate = corev1.TLSCertKey
	KeyPrivateKey  = corev1.TLSPrivateKeyKey
	KeyCA          = corev1.ServiceAccountRootCAKey
	KeyAuthFile    = "authfile"
)

// Of memcached's authfile (authfile.c), which reads 255 bytes at a time, the line break among them.
const (
	maxUsers    = 8
	maxAuthLine = 254 // bytes
)

// Data is the content of a Secret, by key.
type Data map[string][]byte

// MissingKeyError says that a Secret lacks a key, which somebody may be about to add.
type MissingKeyError struct{ Key string }

func (e *MissingKeyError) Error() string { return fmt.Sprintf("has no key %s", e.Key) }

// AuthKeys are the keys that servers mount of a Secret with passwords.
var AuthKeys = []string{KeyAuthFile}

// TLSKeys are those of a Secret with a certificate: with ca.crt where clients show certificates of theirs.
func TLSKeys(clientAuth bool) []string {
	if !clientAuth {
		return []string{KeyCertificate, KeyPrivateKey}
	}
	return []string{KeyCertificate, KeyPrivateKey, KeyCA}
}

// Pair checks what servers mount of a Secret with a certificate, and returns the certificate with its key.
func (d Data) Pair(clientAuth bool) (tls.Certificate, error) {
	if err := d.has(KeyCertificate, KeyPrivateKey); err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(d[KeyCertificate], d[KeyPrivateKey])
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("tls.crt and tls.key: %s", strings.TrimPrefix(err.Error(), "tls: "))
	}
	if clientAuth && len(d.authorities()) == 0 {
		return tls.Certificate{}, errors.New("spec.tls.clientAuth needs the key ca.crt with a certificate in PEM")
	}
	return pair, nil
}

// CheckClient returns an error unless a client that shows the certificate of tls.crt is let in by ca.crt.
func (d Data) CheckClient() error {
	pair, err := d.Pair(true)
	if err != nil {
		return err
	}
	options := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	options.Roots.AppendCertsFromPEM(d[KeyCA])
	// That a certificate has ended is found by the agent, not at the next change of the Secret. If there is a time at
	// which all are valid, that at which the last of them starts is one.
	starts := []time.Time{pair.Leaf.NotBefore}
	for _, der := range slices.Concat(pair.Certificate[1:], d.authorities()) {
		if c, err := x509.ParseCertificate(der); err == nil {
			options.Intermediates.AddCert(c)
			starts = append(starts, c.NotBefore)
		}
	}
	for _, options.CurrentTime = range starts {
		_, refused := pair.Leaf.Verify(options)
		if refused == nil {
			return nil
		}
		err = cmp.Or(err, refused)
	}
	return err
}

// Users checks a file with passwords, and returns its users, each with a colon and the password.
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
			return nil, fmt.Errorf("line %d of authfile names a user again", i+1)
		}
		seen[user] = true
	}
	if len(lines) > maxUsers {
		return nil, fmt.Errorf("authfile has %d users, and memcached reads %d", len(lines), maxUsers)
	}
	return lines, nil
}

// Authorities are digests of the certificates in ca.crt, sorted.
func (d Data) Authorities() []string {
	var list []string
	for _, der := range d.authorities() {
		sum := sha256.Sum256(der)
		list = append(list, hex.EncodeToString(sum[:8]))
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func (d Data) authorities() (list [][]byte) {
	for rest := d[KeyCA]; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return list
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			list = append(list, c.Raw)
		}
	}
}

func (d Data) has(keys ...string) error {
	for _, key := range keys {
		if len(d[key]) == 0 {
			return &MissingKeyError{key}
		}
	}
	return nil
}

// passwordRounds make guessing slow, as OWASP's Password Storage Cheat Sheet has it for PBKDF2 with SHA-256: whoever
// may read pods may read the digest.
const passwordRounds = 600_000

// Digest identifies what servers mount of the Secret of that name: before a colon the name and the number of keys,
// behind it the content of the keys. It takes a fraction of a second where these hold passwords.
func (d Data) Digest(namespace, name string, keys []string) string {
	rounds := 1 // nobody guesses a private key
	if slices.Contains(keys, KeyAuthFile) {
		rounds = passwordRounds
	}
	var content []byte
	for _, key := range keys {
		content = fmt.Appendf(content, "%s %d ", key, len(d[key]))
		content = append(content, d[key]...)
	}
	salt := sha256.Sum256([]byte(namespace + "/" + name))
	sum, err := pbkdf2.Key(sha256.New, string(content), salt[:], rounds, 16)
	if err != nil {
		panic(err) // only of lengths that are constant here
	}
	return fmt.Sprintf("%s/%d:%x", name, len(keys), sum)
}
