package credentials

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"
)

// authFiles are what memcached 1.6.45 was seen to accept, and to refuse or to read otherwise than its author means,
// with a part of the error.
func authFiles() map[string]string {
	users := func(n int) string {
		var file strings.Builder
		for i := range n {
			fmt.Fprintf(&file, "user%d:secret\n", i)
		}
		return file.String()
	}
	return map[string]string{
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
		"a:secret\na:secret2\n":                "line 2 of authfile repeats a user",
		"a:" + strings.Repeat("x", 252) + "\n": "",
		"a:" + strings.Repeat("x", 253) + "\n": "more than 254 bytes",
	}
}

func TestUsers(t *testing.T) {
	t.Parallel()
	for file, want := range authFiles() {
		_, err := Data{KeyAuthFile: []byte(file)}.Users()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", file, err, want)
		}
	}
}

// FuzzUsers: users are the lines of the authfile, within memcached's limits. An error names the key, and quotes no
// password.
func FuzzUsers(f *testing.F) {
	for file := range authFiles() {
		f.Add([]byte(file))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		users, err := Data{KeyAuthFile: file}.Users()
		if err != nil {
			if !strings.Contains(err.Error(), KeyAuthFile) || strings.Contains(err.Error(), "secret") {
				t.Errorf("the error %q quotes a password or names no key", err)
			}
			return
		}
		if strings.Join(users, "\n")+"\n" != strings.ReplaceAll(string(file), "\r\n", "\n") || len(users) > maxUsers {
			t.Errorf("got %q", users)
		}
		names := map[string]bool{}
		for _, login := range users {
			user, password, _ := strings.Cut(login, ":")
			if user == "" || password == "" || names[user] || len(login) > maxAuthLine || strings.ContainsAny(login, "\x00\r") {
				t.Errorf("got %q", login)
			}
			names[user] = true
		}
	})
}

// certificate is what issue makes a certificate from.
type certificate struct {
	name     string
	from, to time.Time
	key      *ecdsa.PrivateKey // nil for a new one
}

// issue returns a certificate, signed by itself or by another, with its key.
func issue(t testing.TB, c certificate, by *certificate) (file, keyFile []byte) {
	t.Helper()
	if c.key == nil {
		c.key = newKey(t)
	}
	if by == nil {
		by = &c
	}
	template := func(c *certificate) *x509.Certificate {
		return &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: c.name}, IsCA: c == by,
			BasicConstraintsValid: true, NotBefore: c.from, NotAfter: c.to}
	}
	der, err := x509.CreateCertificate(rand.Reader, template(&c), template(by), c.key.Public(), by.key)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(c.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestTLS(t *testing.T) {
	t.Parallel()
	now := time.Now()
	hours := func(name string, from, to int) certificate {
		return certificate{name, now.Add(time.Duration(from) * time.Hour), now.Add(time.Duration(to) * time.Hour), newKey(t)}
	}
	of := func(c, ca certificate) Data {
		file, key := issue(t, c, &ca)
		root, _ := issue(t, ca, nil)
		return Data{KeyCertificate: file, KeyPrivateKey: key, KeyCA: root}
	}
	ca := hours("ca", -1, 1)
	valid, other, expired := of(hours("a", -1, 1), ca), of(hours("a", -1, 1), ca), of(hours("a", -2, -1), ca)
	with := func(key string, content []byte) Data {
		data := maps.Clone(valid)
		data[key] = content
		return data
	}
	broken := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})
	for name, tt := range map[string]struct {
		checks Checks
		data   Data
		want   string
	}{
		"valid":                         {CheckClient, valid, ""},
		"no ca.crt, which is not used":  {CheckPair, with(KeyCA, nil), ""},
		"bad ca.crt, which is not used": {CheckPair, with(KeyCA, []byte("x")), ""},
		"empty":                         {CheckPair, nil, "has no key tls.crt"},
		"no key":                        {CheckPair, with(KeyPrivateKey, nil), "has no key tls.key"},
		"no certificate in PEM":         {CheckPair, with(KeyCertificate, []byte("x")), "tls.crt has no certificate in PEM"},
		"a broken certificate":          {CheckPair, with(KeyCertificate, broken), "tls.crt has no certificate in PEM, or"},
		"a broken chain": {CheckPair, with(KeyCertificate, slices.Concat(valid[KeyCertificate], broken)),
			"tls.crt has no certificate in PEM, or one that cannot be parsed"},
		"no key in PEM": {CheckPair, with(KeyPrivateKey, []byte("x")), "tls.key has no private key in PEM"},
		"a broken key": {CheckPair, with(KeyPrivateKey, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY"})),
			"tls.key has no private key in PEM that can be parsed"},
		"the key of another": {CheckPair, with(KeyPrivateKey, other[KeyPrivateKey]), "tls.key is not the private key of"},
		"expired":            {CheckPair, expired, "expired at " + now.Add(-time.Hour).UTC().Format(time.RFC3339)},
		"without ca.crt":     {CheckCA, with(KeyCA, nil), "ca.crt has no certificate in PEM"},
		"a broken ca.crt":    {CheckCA, with(KeyCA, broken), "ca.crt has no certificate in PEM, or one"},
		"another CA":         {CheckCA, with(KeyCA, of(hours("b", -1, 1), hours("other", -1, 1))[KeyCA]), ""},
		"another CA, for the agent": {CheckClient,
			with(KeyCA, of(hours("b", -1, 1), hours("other", -1, 1))[KeyCA]), "ca.crt must accept"},
		"a CA that expires first":        {CheckClient, of(hours("a", -1, 48), ca), ""},
		"a CA that was renewed after":    {CheckClient, of(hours("a", -1, 48), hours("ca", 0, 1)), ""},
		"a CA that has expired":          {CheckClient, of(hours("a", -1, 48), hours("ca", -2, -1)), "ca.crt must accept"},
		"a CA that has expired, for all": {CheckCA, of(hours("a", -1, 48), hours("ca", -2, -1)), ""},
	} {
		_, err := tt.data.TLS(tt.checks, now)
		missing := (*MissingKeyError)(nil)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) ||
			errors.As(err, &missing) != strings.HasPrefix(tt.want, "has no key") {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// FuzzTLS: content that passes more checks passes those before, and content that fails one fails those after, for the
// same reason. An error names the key, and does not quote the Secret, wherever the text is in a PEM file.
func FuzzTLS(f *testing.F) {
	now := time.Now()
	file, key := issue(f, certificate{"TOPSECRET", now.Add(-time.Hour), now.Add(time.Hour), nil}, nil)
	_, otherKey := issue(f, certificate{"TOPSECRET", now.Add(-time.Hour), now.Add(time.Hour), nil}, nil)
	words := func(blockType string) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: blockType, Headers: map[string]string{"TOPSECRET": "TOPSECRET"},
			Bytes: []byte("TOPSECRET")})
	}
	blocks := [][]byte{nil, []byte("TOPSECRET"), words("TOPSECRET"), words("CERTIFICATE"), words("TOPSECRET PRIVATE KEY"),
		words("TOPSECRET does not match")}
	for _, block := range blocks {
		for _, valid := range [][]byte{nil, file, key, otherKey} {
			for _, content := range [][]byte{slices.Concat(block, valid), slices.Concat(valid, block)} {
				f.Add(content, key, file)
				f.Add(file, content, file)
				f.Add(file, key, content)
			}
		}
	}
	f.Fuzz(func(t *testing.T, certificate, key, ca []byte) {
		data := Data{KeyCertificate: certificate, KeyPrivateKey: key, KeyCA: ca}
		var before error
		for _, checks := range []Checks{CheckPair, CheckCA, CheckClient} { // each includes the one before
			content, err := data.TLS(checks, now)
			switch {
			case before != nil && (err == nil || err.Error() != before.Error()):
				t.Errorf("%s: %v, and without that check %v", checks, err, before)
			case err == nil && (!now.Before(content.Leaf.NotAfter) || (checks == CheckPair) != (len(content.CAs) == 0)):
				t.Errorf("%s: valid until %s, with %d CAs", checks, content.Leaf.NotAfter, len(content.CAs))
			case err != nil && (!strings.Contains(err.Error(), "tls.") && !strings.Contains(err.Error(), KeyCA) ||
				strings.Contains(err.Error(), "TOPSECRET")):
				t.Errorf("%s: the error %q quotes the Secret or names no key", checks, err)
			}
			before = err
		}
	})
}

// TestTrustedCAs: a CA is identified by subject and public key, whatever surrounds it.
func TestTrustedCAs(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Second).UTC()
	pair := certificate{"m", now.Add(-time.Hour), now.Add(time.Hour), nil}
	one := certificate{"one", now, now.Add(time.Hour), newKey(t)}
	renewed, renamed, rekeyed := one, one, one
	renewed.to, renamed.name, rekeyed.key = now.Add(2*time.Hour), "two", newKey(t)
	of := func(cas ...certificate) []CA {
		data := Data{}
		data[KeyCertificate], data[KeyPrivateKey] = issue(t, pair, nil)
		for _, ca := range cas {
			file, key := issue(t, ca, nil)
			data[KeyCA] = slices.Concat(data[KeyCA], []byte("# a CA\n"), file, key)
		}
		content, err := data.TLS(CheckCA, now)
		if err != nil {
			t.Fatal(err)
		}
		return content.TrustedCAs()
	}
	first := of(one)[0]
	if len(first.ID) != 16 || !first.NotAfter.Equal(one.to) {
		t.Errorf("a CA is %+v", first)
	}
	for name, tt := range map[string]struct {
		ca   certificate
		same bool
	}{"the same": {one, true}, "renewed": {renewed, true}, "renamed": {renamed, false}, "another key": {rekeyed, false}} {
		if got := of(rekeyed, tt.ca)[1]; (got.ID == first.ID) != tt.same || !got.NotAfter.Equal(tt.ca.to) {
			t.Errorf("%s: %+v and %+v", name, got, first)
		}
	}
}
