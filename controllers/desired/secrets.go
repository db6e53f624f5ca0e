package desired

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/credentials"
)

// Secrets are the Secrets that servers mount; nil where they mount none.
type Secrets struct {
	TLS  *Secret `json:"tls,omitempty"`
	Auth *Secret `json:"auth,omitempty"`
}

// Secret is what is remembered of a Secret: never its content.
type Secret struct {
	Name string `json:"name"`
	// Version changes with each write of the Secret, and with what is checked of it.
	Version string `json:"version"`
	// Digest identifies the content of these keys.
	Digest string `json:"digest"`
	// Authorities identify the CAs that servers trust.
	Authorities []string `json:"authorities,omitempty"`
	// Restart is the version of the Secret in which a CA was last taken out. memcached forgets a CA only when it ends.
	Restart string `json:"restart,omitempty"`
}

// list are the Secrets that there are.
func (s Secrets) list() (list []*Secret) {
	for _, secret := range []*Secret{s.TLS, s.Auth} {
		if secret != nil {
			list = append(list, secret)
		}
	}
	return list
}

// Digests identify the contents of the Secrets.
func (s Secrets) Digests() (list []string) {
	for _, secret := range s.list() {
		list = append(list, secret.Digest)
	}
	return list
}

// restarts are the versions that only servers that start anew obey.
func (s Secrets) restarts() (list []string) {
	for _, secret := range s.list() {
		if secret.Restart != "" {
			list = append(list, secret.Restart)
		}
	}
	return list
}

// after is a Secret as it follows the one that servers know: a CA that they trust and shall not needs a restart.
func (s *Secret) after(known *Secret) *Secret {
	if s == nil || known == nil || s.Name != known.Name {
		return s // another name is another template
	}
	next := *s
	next.Restart = known.Restart
	for _, authority := range known.Authorities {
		if !slices.Contains(s.Authorities, authority) {
			next.Restart = s.Version
		}
	}
	return &next
}

// KnownSecrets are those that a workload remembers.
func KnownSecrets(own *Workload) Secrets {
	if own == nil {
		return Secrets{}
	}
	return sourceOf(own).Secrets
}

// tlsKeys are the keys that servers of mc mount of the Secret for TLS.
func tlsKeys(mc *v1alpha1.Memcached) []string { return credentials.TLSKeys(clientAuth(mc)) }

// TLSChecks name what ReadTLS checks. A Secret that was found right is read again where that changes.
func TLSChecks(mc *v1alpha1.Memcached) []string {
	if agentIsClient(mc) {
		return append(tlsKeys(mc), "client")
	}
	return tlsKeys(mc)
}

// clientAuth reports whether clients may or must show a certificate.
func clientAuth(mc *v1alpha1.Memcached) bool {
	return mc.Spec.TLS != nil && mc.Spec.TLS.ClientAuth != v1alpha1.ClientAuthNone
}

// agentIsClient reports whether the agent needs a certificate that memcached accepts of clients.
func agentIsClient(mc *v1alpha1.Memcached) bool {
	return mc.Spec.TLS.ClientAuth == v1alpha1.ClientAuthRequire && (mc.Spec.Metrics != nil || mc.Spec.Auth != nil)
}

// ReadTLS returns what is remembered of the Secret for TLS, or why servers of mc could not start with it.
func ReadTLS(mc *v1alpha1.Memcached, s *corev1.Secret, version string) (*Secret, error) {
	data := credentials.Data(s.Data)
	if _, err := data.Pair(clientAuth(mc)); err != nil {
		return nil, err
	}
	read := &Secret{Name: s.Name, Version: version, Digest: data.Digest(s.Namespace, s.Name, tlsKeys(mc))}
	if clientAuth(mc) {
		read.Authorities = data.Authorities()
	}
	// The agent shows the servers' own certificate, for it has no other.
	if agentIsClient(mc) {
		if err := data.CheckClient(); err != nil {
			return nil, fmt.Errorf("with spec.tls.clientAuth Require, spec.metrics and spec.auth need a tls.crt that ca.crt "+
				"lets in as a client: %w", err)
		}
	}
	return read, nil
}

// ReadAuth does the same for passwords.
func ReadAuth(s *corev1.Secret, version string) (*Secret, error) {
	data := credentials.Data(s.Data)
	if _, err := data.Users(); err != nil {
		return nil, err
	}
	return &Secret{Name: s.Name, Version: version, Digest: data.Digest(s.Namespace, s.Name, credentials.AuthKeys)}, nil
}
