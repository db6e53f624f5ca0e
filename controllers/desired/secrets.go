package desired

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/credentials"
)

// Kinds of objects of the user that servers mount.
const (
	KindSecret    = "Secret"
	KindConfigMap = "ConfigMap"
)

// Secrets are the Secrets that servers mount; nil where they mount none.
type Secrets struct {
	TLS  *Secret `json:"tls,omitempty"`
	Auth *Secret `json:"auth,omitempty"`
}

// Secret is the record of a Secret, which never holds its content.
type Secret struct {
	Name string `json:"name"`
	// Version is uid and resourceVersion. With spec.tls.clientCA, those of that object follow.
	Version string `json:"version"`
	// Checks are those that this version passed; empty for passwords, which have only one.
	Checks credentials.Checks `json:"checks,omitempty"`
	// CAs are those that servers trust.
	CAs []credentials.CA `json:"authorities,omitempty"`
	// NotAfter is when the certificate expires; zero for passwords.
	NotAfter time.Time `json:"notAfter,omitzero"`
	// RevokedVersion is the version in which a CA was last removed. memcached trusts a removed CA until it restarts.
	RevokedVersion string `json:"restart,omitempty"`
}

// Annotation returns the value of SecretsAnnotation on the pods of servers; empty if they mount no Secret.
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

// revokedVersion is that of the Secret with CAs; empty for none.
func (s Secrets) revokedVersion() string { return ptr.Deref(s.TLS, Secret{}).RevokedVersion }

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
//   - a CA's certificate was replaced by one that expires earlier: the previous certificate stays recorded, because
//     servers trust it until it expires
//   - memcached no longer asks clients for certificates: that replaces the servers; the CAs stay recorded until it asks
//     again
//   - another Secret is named: nothing, because the new name replaces the servers
func (s *Secret) WithRevocation(known *Secret, now time.Time) *Secret {
	if s == nil || known == nil || s.Name != known.Name {
		return s
	}
	next := *s
	next.RevokedVersion = cmp.Or(s.RevokedVersion, known.RevokedVersion)
	for _, before := range known.CAs {
		same := func(ca credentials.CA) bool { return ca.ID == before.ID }
		later := func(ca credentials.CA) bool { return same(ca) && !ca.NotAfter.Before(before.NotAfter) }
		switch {
		case !before.NotAfter.After(now) || slices.ContainsFunc(s.CAs, later):
		case s.Checks == credentials.CheckPair, slices.ContainsFunc(s.CAs, same):
			next.CAs = append(slices.Clip(next.CAs), before)
		default:
			next.RevokedVersion = s.Version
		}
	}
	return &next
}

// updatedBy returns newer if it is the same Secret, and s otherwise: a frozen template still mounts the Secret that it
// names.
func (s *Secret) updatedBy(newer *Secret) *Secret {
	if s != nil && newer != nil && s.Name == newer.Name {
		return newer
	}
	return s
}

// tlsChecks says what the Secret for TLS must contain. With Require, an agent that connects to memcached must be
// accepted as a client.
func tlsChecks(mc *v1alpha1.Memcached) credentials.Checks {
	switch t := mc.Spec.TLS; {
	case t == nil:
		return ""
	case t.ClientAuth == v1alpha1.ClientAuthNone:
		return credentials.CheckPair
	case t.ClientAuth == v1alpha1.ClientAuthRequire && (serversReport(mc) || mc.Spec.Auth != nil):
		return credentials.CheckClient
	}
	return credentials.CheckCA
}

// ClientCA returns kind and name of the object with the CAs of clients; empty if the Secret for TLS has them, or if
// memcached asks clients for no certificate.
func ClientCA(mc *v1alpha1.Memcached) (kind, name string) {
	if t := mc.Spec.TLS; t != nil && t.ClientCA != nil && t.ClientAuth != v1alpha1.ClientAuthNone {
		if kind, name = KindSecret, t.ClientCA.SecretName; name == "" {
			kind, name = KindConfigMap, t.ClientCA.ConfigMapName
		}
	}
	return kind, name
}

// AddCA gives the Secret for TLS, or its metadata, a version that identifies another object with ca.crt too. It gives
// the Secret that ca.crt, and a name for messages. It does nothing if ca is nil.
func AddCA(meta metav1.Object, ca *corev1.Secret) {
	if ca == nil {
		return
	}
	meta.SetResourceVersion(meta.GetResourceVersion() + "+" + secretVersion(ca))
	if s, ok := meta.(*corev1.Secret); ok {
		s.Name += ", with ca.crt of " + ca.Kind + " " + ca.Name
		s.Data = map[string][]byte{credentials.KeyCertificate: s.Data[credentials.KeyCertificate],
			credentials.KeyPrivateKey: s.Data[credentials.KeyPrivateKey], credentials.KeyCA: ca.Data[credentials.KeyCA]}
	}
}

// ReadTLS returns the record of the Secret for TLS, or why servers of mc must not use it.
func ReadTLS(mc *v1alpha1.Memcached, s *corev1.Secret, now time.Time) (*Secret, error) {
	checks := tlsChecks(mc)
	content, err := credentials.Data(s.Data).TLS(checks, now)
	if err != nil {
		return nil, err
	}
	return &Secret{Name: mc.Spec.TLS.SecretName, Version: secretVersion(s), Checks: checks, CAs: content.TrustedCAs(),
		NotAfter: content.Leaf.NotAfter}, nil
}

// ReadAuth returns the record of the Secret for passwords, or why servers must not use it.
func ReadAuth(s *corev1.Secret) (*Secret, error) {
	if _, err := credentials.Data(s.Data).Users(); err != nil {
		return nil, err
	}
	return &Secret{Name: s.Name, Version: secretVersion(s)}, nil
}

// tlsArguments returns the options that enable TLS on every listener of memcached.
// https://docs.memcached.org/features/tls/
func tlsArguments(mc *v1alpha1.Memcached) []string {
	t := mc.Spec.TLS
	if t == nil {
		return nil
	}
	mode := map[v1alpha1.ClientAuth]int{v1alpha1.ClientAuthRequest: 1, v1alpha1.ClientAuthRequire: 2}[t.ClientAuth]
	version := map[v1alpha1.TLSVersion]int{v1alpha1.TLS12: 2, v1alpha1.TLS13: 3}[t.MinVersion]
	options := fmt.Sprintf("ssl_chain_cert=%s/%s,ssl_key=%s/%s,ssl_verify_mode=%d,ssl_min_version=%d",
		contract.TLSPath, credentials.KeyCertificate, contract.TLSPath, credentials.KeyPrivateKey, mode, version)
	if mode > 0 {
		options += fmt.Sprintf(",ssl_ca_cert=%s/%s", contract.TLSPath, credentials.KeyCA)
	}
	return []string{"--enable-ssl", "--extended=" + options}
}

// mountSecret mounts the keys of a Secret that memcached reads, and no others, into memcached and its agent (sidecar).
// The two share a process namespace, so that the agent can signal memcached to reload its files.
func mountSecret(pod *corev1ac.PodSpecApplyConfiguration, sidecar *corev1ac.ContainerApplyConfiguration,
	volume, secret, path string, keys []string) {
	source := corev1ac.SecretVolumeSource().WithSecretName(secret)
	for _, key := range keys {
		source.WithItems(corev1ac.KeyToPath().WithKey(key).WithPath(key))
	}
	pod.WithVolumes(corev1ac.Volume().WithName(volume).WithSecret(source)).WithShareProcessNamespace(true)
	mount := corev1ac.VolumeMount().WithName(volume).WithMountPath(path).WithReadOnly(true)
	pod.Containers[0].WithVolumeMounts(mount)
	sidecar.WithVolumeMounts(mount)
}

// projectCA mounts ca.crt, the last key of a volume with a Secret, from another object.
func projectCA(volume *corev1ac.VolumeApplyConfiguration, kind, name string) {
	last, ca := len(volume.Secret.Items)-1, corev1ac.VolumeProjection()
	pair := corev1ac.SecretProjection().WithName(*volume.Secret.SecretName)
	pair.Items = volume.Secret.Items[:last]
	if item := &volume.Secret.Items[last]; kind == KindSecret {
		ca.WithSecret(corev1ac.SecretProjection().WithName(name).WithItems(item))
	} else {
		ca.WithConfigMap(corev1ac.ConfigMapProjection().WithName(name).WithItems(item))
	}
	volume.Secret = nil
	volume.WithProjected(corev1ac.ProjectedVolumeSource().WithSources(corev1ac.VolumeProjection().WithSecret(pair), ca))
}
