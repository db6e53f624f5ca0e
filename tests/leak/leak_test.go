package leak

import (
	"encoding/base64"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/internal/testing/testca"
)

// TestContents: contents are found in each form, and nothing else is.
func TestContents(t *testing.T) {
	t.Parallel()
	ca, err := testca.New()
	if err != nil {
		t.Fatal(err)
	}
	data, err := ca.Secret("localhost")
	if err != nil {
		t.Fatal(err)
	}
	const first, second = "first password of them", "JLMT4XA5QVZ7WKN3"
	data["authfile"] = []byte("a:" + first + "\nb:" + second + "\n")
	c := Contents{}
	c.Add(&corev1.Secret{Data: data, StringData: map[string]string{"short": "password"}})
	for name, tt := range map[string]struct {
		text  string
		found bool
	}{
		"line":              {"line 2 is b:" + second, true},
		"password":          {"the user b has " + second + ".", true},
		"part":              {"..." + first[4:] + "...", true},
		"base64":            {base64.StdEncoding.EncodeToString(data["authfile"]), true},
		"base64 of it":      {base64.StdEncoding.EncodeToString([]byte(second)), true},
		"key":               {string(data["tls.key"]), true},
		"one line of a key": {string(data["tls.key"][40:90]), true},
		"certificate":       {string(data["tls.crt"]) + base64.StdEncoding.EncodeToString(data["tls.crt"]), false},
		"CA":                {string(data["ca.crt"]), false},
		"header":            {"-----BEGIN PRIVATE KEY-----", false},
		"short":             {"a password", false},
		"empty":             {"", false},
	} {
		if secret := c.In(tt.text); (secret != "") != tt.found {
			t.Errorf("%s: found %q", name, secret)
		}
	}
}
