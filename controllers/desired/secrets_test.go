package desired

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/tests/manifest"
)

// TestCheckAuth: what memcached 1.6.45 was seen to refuse, or to read otherwise than its author means.
func TestCheckAuth(t *testing.T) {
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
		_, err := CheckAuth(&corev1.Secret{Data: map[string][]byte{"authfile": []byte(file)}})
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

func TestCheckTLS(t *testing.T) {
	t.Parallel()
	certificate, key := pair(t)
	_, otherKey := pair(t)
	files := func(certificate, key, ca []byte) map[string][]byte {
		return map[string][]byte{"tls.crt": certificate, "tls.key": key, "ca.crt": ca}
	}
	const none, request, require = "{tls: {secretName: a}}", "{tls: {secretName: a, clientAuth: Request}}",
		"{tls: {secretName: a, clientAuth: Require}}"
	for name, tt := range map[string]struct {
		spec    string
		data    map[string][]byte
		missing bool
		want    string
	}{
		"no client certificates":      {none, files(certificate, key, nil), false, ""},
		"no key":                      {none, files(certificate, nil, nil), true, "has no key tls.key"},
		"empty":                       {none, nil, true, "has no key tls.crt"},
		"the key of another":          {none, files(certificate, otherKey, nil), false, "does not match public key"},
		"Require without ca.crt":      {require, files(certificate, key, nil), false, "Require needs the key ca.crt"},
		"Request with a bad ca.crt":   {request, files(certificate, key, key), false, "Request needs the key ca.crt"},
		"Require":                     {require, files(certificate, key, certificate), false, ""},
		"a bad ca.crt that is unused": {none, files(certificate, key, key), false, ""},
	} {
		_, err := CheckTLS(manifest.Parse(t, manifest.Named("m", tt.spec)), &corev1.Secret{Data: tt.data})
		if missing := (*MissingKeyError)(nil); errors.As(err, &missing) != tt.missing ||
			tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// TestSecretDigest: equal content has one digest in each Secret, and other content another.
func TestSecretDigest(t *testing.T) {
	t.Parallel()
	digest := func(name string, data ...string) string {
		s := &corev1.Secret{Data: map[string][]byte{}}
		s.Name, s.Namespace = name, "shop"
		for i, text := range data {
			s.Data[authKeys[0]+strings.Repeat("x", i)] = []byte(text)
		}
		d, err := CheckAuth(s)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	first := digest("a", "app:one\n")
	if digest("a", "app:one\n", "another key") != first {
		t.Error("a key that nobody mounts changes the digest")
	}
	if digest("a", "app:two\n") == first {
		t.Error("another password has the same digest")
	}
	if digest("b", "app:one\n") == first {
		t.Error("one table of guesses serves all Secrets")
	}
}

// TestSecretsInTemplate: a template follows the content of its Secrets, and stays while one cannot be had.
func TestSecretsInTemplate(t *testing.T) {
	t.Parallel()
	mc := manifest.Parse(t, manifest.Named("m", "{size: 3, auth: {secretName: passwords}}"))
	with := func(own *Workload, version, digest string) *Workload {
		in := Resolve(mc, own, Secrets{Auth: &Secret{"passwords", version, digest}}, Options{DefaultImage: "memcached:1"})
		return ReadWorkload(deployment(mc, in))
	}
	first := with(nil, "1", "one")
	if known := KnownSecrets(first).Auth; known == nil || *known != (Secret{"passwords", "1", "one"}) {
		t.Errorf("remembers %+v", known)
	}
	again := with(first, "2", "one")
	if !again.SameTemplate(first) || KnownSecrets(again).Auth.Version != "2" {
		t.Error("a Secret that was written with equal content changes the template, or is read again each time")
	}
	if with(first, "2", "two").SameTemplate(first) {
		t.Error("other content changes no template")
	}
	mc.Spec.Memory = "128Mi"
	held := Resolve(mc, first, Secrets{}, Options{DefaultImage: "memcached:1"}).Hold(first)
	if now := ReadWorkload(deployment(mc, held)); !now.SameTemplate(first) ||
		*KnownSecrets(now).Auth != *KnownSecrets(first).Auth {
		t.Error("without its Secret the template changes, or what is remembered")
	}
	none := Resolve(mc, nil, Secrets{}, Options{DefaultImage: "memcached:1"}).Hold(nil)
	for _, child := range Children(mc, none) {
		if ReadWorkload(child) != nil {
			t.Error("without its Secret a workload is created")
		}
	}
}
