package credentials

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/example/memcached-operator/tests/authority"
)

// TestUsers: what memcached 1.6.45 was seen to refuse, or to read otherwise than its author means.
func TestUsers(t *testing.T) {
	t.Parallel()
	users := func(n int) string {
		var file strings.Builder
		for i := range n {
			fmt.Fprintf(&file, "user%d:secret\n", i)
		}
		return file.String()
	}
	for file, want := range map[string]string{
		"app:secret\n":                         "",
		"app:se cret:x\n":                      "",
		"app:secret\r\n":                       "",
		users(8):                               "",
		users(9):                               "9 users",
		"app:secret":                           "must end with a line break",
		"app\n":                                "line 1 of authfile must be",
		"app:secret\n\n":                       "line 2 of authfile must be",
		":secret\n":                            "line 1 of authfile must be",
		"app:\n":                               "line 1 of authfile must be",
		"a pp:secret\n":                        "line 1 of authfile must be",
		"app:sec\x00ret\n":                     "line 1 of authfile must be",
		"app:sec\rret\n":                       "line 1 of authfile must be",
		"a:secret\na:secret2\n":                "line 2 of authfile names a user again",
		"a:" + strings.Repeat("x", 252) + "\n": "",
		"a:" + strings.Repeat("x", 253) + "\n": "more than 254 bytes",
	} {
		_, err := Data{KeyAuthFile: []byte(file)}.Users()
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %q", file, err, want)
		case err != nil && strings.Contains(err.Error(), "secret"):
			t.Errorf("%q: the error %q tells the password", file, err)
		}
	}
}

// pair is a certificate that signs itself, with its key.
func pair(t *testing.T) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
}

func TestPair(t *testing.T) {
	t.Parallel()
	certificate, key := pair(t)
	_, otherKey := pair(t)
	files := func(certificate, key, ca []byte) Data {
		return Data{"tls.crt": certificate, "tls.key": key, "ca.crt": ca}
	}
	for name, tt := range map[string]struct {
		clientAuth bool
		data       Data
		missing    bool
		want       string
	}{
		"no client certificates":      {false, files(certificate, key, nil), false, ""},
		"no key":                      {false, files(certificate, nil, nil), true, "has no key tls.key"},
		"empty":                       {false, nil, true, "has no key tls.crt"},
		"the key of another":          {false, files(certificate, otherKey, nil), false, "does not match public key"},
		"without ca.crt":              {true, files(certificate, key, nil), false, "clientAuth needs the key ca.crt"},
		"with a bad ca.crt":           {true, files(certificate, key, key), false, "clientAuth needs the key ca.crt"},
		"with ca.crt":                 {true, files(certificate, key, certificate), false, ""},
		"a bad ca.crt that is unused": {false, files(certificate, key, key), false, ""},
	} {
		_, err := tt.data.Pair(tt.clientAuth)
		if missing := (*MissingKeyError)(nil); errors.As(err, &missing) != tt.missing ||
			tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// TestDigest: equal content has one digest in each Secret, and other content another.
func TestDigest(t *testing.T) {
	t.Parallel()
	digest := func(name, file string) string {
		return Data{KeyAuthFile: []byte(file), "other": []byte(name)}.Digest("shop", name, AuthKeys)
	}
	first := digest("a", "app:one\n")
	if digest("a", "app:one\n") != first {
		t.Error("equal content has another digest")
	}
	if digest("a", "app:two\n") == first {
		t.Error("another password has the same digest")
	}
	if digest("b", "app:one\n") == first {
		t.Error("one table of guesses serves all Secrets")
	}
}

// TestAuthorities: a CA is known again whatever stands around it.
func TestAuthorities(t *testing.T) {
	t.Parallel()
	one, key := pair(t)
	two, _ := pair(t)
	of := func(parts ...[]byte) []string { return Data{KeyCA: bytes.Join(parts, nil)}.Authorities() }
	if both := of(one, two); len(both) != 2 || !slices.Equal(both, of([]byte("# two\n"), two, key, one, one)) {
		t.Errorf("the same two CAs are %v", both)
	}
	if both := of(one, two); !slices.Contains(both, of(one)[0]) || !slices.Contains(both, of(two)[0]) {
		t.Errorf("%v has not both CAs", both)
	}
}

// TestCheckClient: the agent is let in where any client with the certificate is.
func TestCheckClient(t *testing.T) {
	t.Parallel()
	ours, err := authority.New()
	if err != nil {
		t.Fatal(err)
	}
	data, err := ours.Secret("m.shop.svc")
	if err != nil {
		t.Fatal(err)
	}
	if err := Data(data).CheckClient(); err != nil {
		t.Error(err)
	}
	data[KeyCA], _ = pair(t)
	if err := Data(data).CheckClient(); err == nil {
		t.Error("a certificate of another CA is taken for one that lets the agent in")
	}
	now := time.Now()
	for name, from := range map[string]time.Time{
		"ends long before": now.Add(-50 * time.Minute), "was renewed after": now,
	} {
		if err := short(t, now.Add(-time.Minute), from).CheckClient(); err != nil {
			t.Errorf("a CA that %s the certificate by it: %v", name, err)
		}
	}
	if err := short(t, now, now.Add(-2*time.Hour)).CheckClient(); err == nil {
		t.Error("a CA that ended before the certificate began is taken for one that lets the agent in")
	}
}

// short is a certificate for two days, by a CA for an hour, that start at these times.
func short(t *testing.T, leaf, ca time.Time) Data {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true,
		BasicConstraintsValid: true, NotBefore: ca, NotAfter: ca.Add(time.Hour)}
	own := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: leaf, NotAfter: leaf.Add(48 * time.Hour)}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	data := Data{KeyPrivateKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})}
	for name, template := range map[string]*x509.Certificate{KeyCertificate: own, KeyCA: root} {
		der, err := x509.CreateCertificate(rand.Reader, template, root, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		data[name] = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	return data
}
