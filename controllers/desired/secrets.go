package desired

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/credentials"
)

// Secrets are the Secrets that servers mount; nil where they mount none.
type Secrets struct {
	TLS  *Secret `json:"tls,omitempty"`
	Auth *Secret `json:"auth,omitempty"`
}

// Secret is the record of a Secret, which never holds its content.
type Secret struct {
	Name string `json:"name"`
	// Version is uid and resourceVersion.
	Version string `json:"version"`
	// Checks are those that this version passed; empty for passwords, which have only one.
	Checks credentials.Checks `json:"checks,omitempty"`
	// Authorities are the CAs that servers trust.
	Authorities []credentials.Authority `json:"authorities,omitempty"`
	// NotAfter is when the certificate expires; zero for passwords.
	NotAfter time.Time `json:"notAfter,omitzero"`
	// Restart is the version in which a CA was last removed. memcached trusts a removed CA until it restarts.
	Restart string `json:"restart,omitempty"`
}

// updatedBy are the Secrets that servers mount while their template is frozen, in the newest version.
func (s Secrets) updatedBy(now Secrets) Secrets {
	for _, secret := range []struct{ recorded, now **Secret }{{&s.TLS, &now.TLS}, {&s.Auth, &now.Auth}} {
		if was, is := *secret.recorded, *secret.now; was != nil && is != nil && was.Name == is.Name {
			*secret.recorded = is
		}
	}
	return s
}

// Annotation is the value of SecretsAnnotation on the pods of servers; empty where they mount no Secret. An agent of an
// earlier build ignores it.
func (s Secrets) Annotation() string {
	var list []string
	if s.TLS != nil {
		list = append(list, "tls="+s.TLS.Version)
	}
	if s.Auth != nil {
		list = append(list, "auth="+s.Auth.Version)
	}
	return strings.Join(list, " ")
}

// revocations returns the versions of Secrets in which a CA was removed. Servers trust the CA until they restart.
func (s Secrets) revocations() []string {
	if s.TLS == nil || s.TLS.Restart == "" {
		return nil
	}
	return []string{s.TLS.Restart}
}

// IsCurrent reports whether s records this version of a Secret, with the checks that servers of mc need now.
func (s *Secret) IsCurrent(mc *v1alpha1.Memcached, meta metav1.Object) bool {
	return s != nil && s.Name == meta.GetName() && s.Version == secretVersion(meta) &&
		(s.Checks == "" || s.Checks == tlsChecks(mc))
}

func secretVersion(meta metav1.Object) string {
	return string(meta.GetUID()) + "/" + meta.GetResourceVersion()
}

// WithRevocation returns s as the successor of the Secret that servers know:
//   - a CA was removed that has not expired: the servers are replaced
//   - a CA was removed that has expired: nothing, because it accepts no client any more
//   - a CA was renewed with the same subject and key: nothing
//   - a CA was replaced by a certificate of it that expires earlier: the later one is trusted until it expires
//   - another Secret is named: nothing, because the new name replaces the servers
func (s *Secret) WithRevocation(known *Secret, now time.Time) *Secret {
	if s == nil || known == nil || s.Name != known.Name {
		return s
	}
	next := *s
	next.Restart = cmp.Or(s.Restart, known.Restart)
	for _, before := range known.Authorities {
		same := func(a credentials.Authority) bool { return a.ID == before.ID }
		later := func(a credentials.Authority) bool { return same(a) && !a.NotAfter.Before(before.NotAfter) }
		switch {
		case !before.NotAfter.After(now) || slices.ContainsFunc(s.Authorities, later):
		case slices.ContainsFunc(s.Authorities, same):
			next.Authorities = append(slices.Clip(next.Authorities), before)
		default:
			next.Restart = s.Version
		}
	}
	return &next
}

// tlsChecks says what the Secret for TLS must contain. With Require, metrics and passwords need an agent that memcached
// accepts as a client.
func tlsChecks(mc *v1alpha1.Memcached) credentials.Checks {
	switch t := mc.Spec.TLS; {
	case t == nil:
		return ""
	case t.ClientAuth == v1alpha1.ClientAuthNone:
		return credentials.CheckPair
	case t.ClientAuth == v1alpha1.ClientAuthRequire && (mc.Spec.Metrics != nil || mc.Spec.Auth != nil):
		return credentials.CheckClient
	}
	return credentials.CheckCA
}

// ReadTLS returns the record of the Secret for TLS, or why servers of mc must not use it.
func ReadTLS(mc *v1alpha1.Memcached, s *corev1.Secret, now time.Time) (*Secret, error) {
	checks := tlsChecks(mc)
	content, err := credentials.Data(s.Data).TLS(checks, now)
	if err != nil {
		return nil, err
	}
	return &Secret{Name: s.Name, Version: secretVersion(s), Checks: checks, Authorities: content.Authorities(),
		NotAfter: content.Leaf.NotAfter}, nil
}

// ReadAuth does the same for passwords.
func ReadAuth(s *corev1.Secret) (*Secret, error) {
	if _, err := credentials.Data(s.Data).Users(); err != nil {
		return nil, err
	}
	return &Secret{Name: s.Name, Version: secretVersion(s)}, nil
}
