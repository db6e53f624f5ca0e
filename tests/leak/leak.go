// Package leak finds parts of the contents of Secrets in texts.
package leak

import (
	"encoding/base64"
	"fmt"
	"maps"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// partSize is the length of parts in bytes. Shorter contents are not looked for: they could be words.
const partSize = 16

// Contents are parts of the contents of Secrets, with the key and the Secret.
type Contents map[string]string

// certificate is a certificate, which is public.
var certificate = regexp.MustCompile(`(?s)-{5}BEGIN CERTIFICATE-{5}.*?-{5}END CERTIFICATE-{5}`)

// Add adds the contents of a Secret: each line, what follows the user in a line of an authfile, and all of it in
// base64. What a certificate of the Secret has too, such as the public part of a key, is left out.
func (c Contents) Add(s *corev1.Secret) {
	values := map[string]string{}
	maps.Copy(values, s.StringData)
	for key, value := range s.Data {
		values[key] = string(value)
	}
	var public strings.Builder
	for _, value := range values {
		for _, cert := range certificate.FindAllString(value, -1) {
			public.WriteString(cert)
		}
		if isPublic(value) {
			public.WriteString(encode(value))
		}
	}
	for key, value := range values {
		if isPublic(value) {
			continue
		}
		texts := []string{encode(value)}
		for line := range strings.Lines(certificate.ReplaceAllString(value, "")) {
			if line = strings.TrimSpace(line); !strings.HasPrefix(line, "-----") {
				_, password, _ := strings.Cut(line, ":")
				texts = append(texts, line, password, encode(password))
			}
		}
		for _, text := range texts {
			for i := 0; i+partSize <= len(text); i += partSize / 2 {
				if part := text[i : i+partSize]; !strings.Contains(public.String(), part) {
					c[part] = fmt.Sprintf("key %s of Secret %s/%s", key, s.Namespace, s.Name)
				}
			}
		}
	}
}

// isPublic reports whether a value holds nothing but certificates.
func isPublic(value string) bool {
	return strings.TrimSpace(certificate.ReplaceAllString(value, "")) == ""
}

func encode(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// In returns the key and the Secret of which a text has a part; empty for none.
func (c Contents) In(text string) string {
	for i := range max(0, len(text)-partSize+1) {
		if secret, ok := c[text[i:i+partSize]]; ok {
			return secret
		}
	}
	return ""
}
