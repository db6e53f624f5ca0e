package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/credentials"
)

// Only the metadata of Secrets is watched, so that no content is kept in memory. The content of a Secret that a
// Memcached names is read from the API server after a change.
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch

// bySecret indexes Memcacheds by the Secrets that they name.
const bySecret = "secret"

func secretNames(obj client.Object) []string {
	spec := &obj.(*v1alpha1.Memcached).Spec
	tls, auth := ptr.Deref(spec.TLS, v1alpha1.TLSSpec{}), ptr.Deref(spec.Auth, v1alpha1.AuthSpec{})
	ca := ptr.Deref(tls.ClientCA, v1alpha1.ClientCASource{})
	return sets.List(sets.New(tls.SecretName, ca.SecretName, auth.SecretName).Delete(""))
}

// secrets returns the records of the Secrets that servers mount, and an error if one cannot be used. For that Secret,
// it returns the previous record, so that the other Secret can be rotated meanwhile.
//
// st.tls holds the record that was last read. Its CAs count as trusted, even if the record could not be written to the
// workload yet: removing one replaces the servers.
func (r *MemcachedReconciler) secrets(ctx context.Context, mc *v1alpha1.Memcached, st *state, recorded desired.Secrets,
	now time.Time) (desired.Secrets, error) {
	var current desired.Secrets
	var tlsErr, authErr error
	if t := mc.Spec.TLS; t != nil {
		var ca *corev1.Secret
		current.TLS = recorded.TLS
		if ca, tlsErr = r.clientCA(ctx, mc); tlsErr == nil {
			current.TLS, tlsErr = r.secret(ctx, mc, t.SecretName, ca, recorded.TLS,
				func(s *corev1.Secret) (*desired.Secret, error) { return desired.ReadTLS(mc, s, now) })
		}
		if tlsErr == nil {
			current.TLS = current.TLS.WithRevocation(st.tls, now)
			st.tls = current.TLS
		}
	}
	if a := mc.Spec.Auth; a != nil {
		current.Auth, authErr = r.secret(ctx, mc, a.SecretName, nil, recorded.Auth, desired.ReadAuth)
	}
	if untilExpiry(current, now) < 0 {
		tlsErr = errors.Join(tlsErr, invalid(current.TLS.Name, fmt.Errorf("the servers' certificate "+
			"expired at %s; renew it", current.TLS.NotAfter.UTC().Format(time.RFC3339))))
	}
	return current, errors.Join(tlsErr, authErr)
}

// untilExpiry returns the time until the servers' certificate expires; 0 without TLS.
func untilExpiry(s desired.Secrets, now time.Time) time.Duration {
	if s.TLS == nil {
		return 0
	}
	return s.TLS.NotAfter.Sub(now)
}

func invalid(secret string, err error) error {
	return &children.StallError{Reason: v1alpha1.ReasonInvalid, Message: fmt.Sprintf("Secret %s: %s", secret, err)}
}

// clientCA returns the object with the CAs of clients, a ConfigMap in the form of a Secret; nil if the Secret for TLS
// has them. It is read each time: the informer cache has neither ConfigMaps of users nor the content of Secrets.
func (r *MemcachedReconciler) clientCA(ctx context.Context, mc *v1alpha1.Memcached) (*corev1.Secret, error) {
	kind, name := desired.ClientCA(mc)
	if name == "" {
		return nil, nil
	}
	ca, configMap := &corev1.Secret{}, &corev1.ConfigMap{}
	object := map[string]client.Object{desired.KindSecret: ca, desired.KindConfigMap: configMap}[kind]
	err := r.APIReader.Get(ctx, client.ObjectKey{Namespace: mc.Namespace, Name: name}, object)
	if kind == desired.KindConfigMap {
		ca.ObjectMeta = configMap.ObjectMeta
		ca.Data = map[string][]byte{credentials.KeyCA: []byte(configMap.Data[credentials.KeyCA])}
	}
	if ca.Kind = kind; client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read %s %s: %w", kind, name, err)
	} else if len(ca.Data[credentials.KeyCA]) == 0 {
		return nil, fmt.Errorf("%sNotFound: there is no %s %s with the key %s", kind, kind, name, credentials.KeyCA)
	}
	return ca, nil
}

// secret returns the record of a Secret, with ca.crt of another object if ca is not nil. It reads the content only if
// the recorded version is outdated. With an error, it returns the previous record.
func (r *MemcachedReconciler) secret(ctx context.Context, mc *v1alpha1.Memcached, name string, ca *corev1.Secret,
	recorded *desired.Secret, read func(*corev1.Secret) (*desired.Secret, error)) (*desired.Secret, error) {
	key := client.ObjectKey{Namespace: mc.Namespace, Name: name}
	meta := &metav1.PartialObjectMetadata{}
	meta.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	err := r.Client.Get(ctx, key, meta)
	desired.AddCA(meta, ca)
	switch {
	case err == nil && recorded.IsCurrent(mc, meta):
		return recorded, nil
	case client.IgnoreNotFound(err) != nil:
		return recorded, fmt.Errorf("look up Secret %s: %w", name, err)
	}
	s := &corev1.Secret{}
	if err := r.APIReader.Get(ctx, key, s); apierrors.IsNotFound(err) {
		return recorded, fmt.Errorf("SecretNotFound: there is no Secret %s", name)
	} else if err != nil {
		return recorded, fmt.Errorf("read Secret %s: %w", name, err)
	}
	desired.AddCA(s, ca)
	current, err := read(s)
	if missing := (*credentials.MissingKeyError)(nil); errors.As(err, &missing) {
		return recorded, fmt.Errorf("SecretNotFound: Secret %s %w", name, err)
	} else if err != nil {
		return recorded, invalid(s.Name, err)
	}
	return current, nil
}
