package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/credentials"
	"github.com/example/memcached-operator/controllers/desired"
)

// Only the metadata of Secrets is watched, so that no content is kept in memory. Of the Secrets that Memcacheds name,
// the content is read when it changed.
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch

// bySecret indexes Memcacheds by the Secrets that they name.
const bySecret = "secret"

func secretNames(obj client.Object) []string {
	spec := &obj.(*v1alpha1.Memcached).Spec
	var list []string
	if spec.TLS != nil {
		list = append(list, spec.TLS.SecretName)
	}
	if spec.Auth != nil {
		list = append(list, spec.Auth.SecretName)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// requestsOfSecret are the Memcacheds that name a Secret.
func (r *MemcachedReconciler) requestsOfSecret(ctx context.Context, secret client.Object) []reconcile.Request {
	var list v1alpha1.MemcachedList
	if err := r.Client.List(ctx, &list, client.InNamespace(secret.GetNamespace()),
		client.MatchingFields{bySecret: secret.GetName()}); err != nil {
		return nil // of the cache, which is synced
	}
	var requests []reconcile.Request
	for i := range list.Items {
		requests = append(requests, request(list.Items[i].Namespace, list.Items[i].Name))
	}
	return requests
}

// secrets returns what the servers mount, or why they cannot. A Secret of which the version is known is not read again.
func (p *pass) secrets(ctx context.Context, own *desired.Workload) (now desired.Secrets, err error) {
	known := desired.KnownSecrets(own)
	if t := p.mc.Spec.TLS; t != nil {
		now.TLS, err = p.secret(ctx, t.SecretName, []*desired.Secret{known.TLS, p.mem.secrets.TLS},
			func(s *corev1.Secret) (*desired.Secret, error) { return desired.ReadTLS(p.mc, s, p.now) })
	}
	if a := p.mc.Spec.Auth; a != nil && err == nil {
		now.Auth, err = p.secret(ctx, a.SecretName, []*desired.Secret{known.Auth, p.mem.secrets.Auth}, desired.ReadAuth)
	}
	if err == nil {
		p.mem.secrets = now
	}
	return now, err
}

// secretsUnchanged reports whether the Secrets are those that were last read.
func (p *pass) secretsUnchanged(ctx context.Context) bool {
	if t := p.mc.Spec.TLS; t != nil {
		if k, _ := p.knownSecret(ctx, t.SecretName, p.mem.secrets.TLS); k == nil {
			return false
		}
	}
	if a := p.mc.Spec.Auth; a != nil {
		if k, _ := p.knownSecret(ctx, a.SecretName, p.mem.secrets.Auth); k == nil {
			return false
		}
	}
	return true
}

// knownSecret is the one among what is known that is of the present version; nil for none.
func (p *pass) knownSecret(ctx context.Context, name string, known ...*desired.Secret) (*desired.Secret, error) {
	meta := &metav1.PartialObjectMetadata{}
	meta.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	if err := p.Client.Get(ctx, client.ObjectKey{Namespace: p.mc.Namespace, Name: name}, meta); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("look up Secret %s: %w", name, err)
	}
	for _, k := range known {
		if k.IsCurrent(p.mc, meta) {
			return k, nil
		}
	}
	return nil, nil
}

func (p *pass) secret(ctx context.Context, name string, known []*desired.Secret,
	read func(s *corev1.Secret) (*desired.Secret, error)) (*desired.Secret, error) {
	if k, err := p.knownSecret(ctx, name, known...); k != nil || err != nil {
		return k, err
	}
	key := client.ObjectKey{Namespace: p.mc.Namespace, Name: name}
	s := &corev1.Secret{}
	if err := p.APIReader.Get(ctx, key, s); apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("SecretNotFound: there is no Secret %s", name)
	} else if err != nil {
		return nil, fmt.Errorf("read Secret %s: %w", name, err)
	}
	content, err := read(s)
	if missing := (*credentials.MissingKeyError)(nil); errors.As(err, &missing) {
		return nil, fmt.Errorf("SecretNotFound: Secret %s %w", name, err)
	} else if err != nil {
		return nil, &children.StallError{Reason: v1alpha1.ReasonInvalid, Message: fmt.Sprintf("Secret %s: %s", name, err)}
	}
	return content, nil
}
