package controllers

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
)

func (p *pass) proxyConfigKey() children.Key {
	return children.Key{Kind: "ConfigMap", Name: names.Proxy(p.mc)}
}

// withholdServers leaves out what the proxies read while the name of a server is somebody else's: they would send items
// there.
func (p *pass) withholdServers(changes []children.Change) []children.Change {
	foreign := slices.ContainsFunc(changes, func(c children.Change) bool {
		return c.Kind == "Service" && c.Live != nil && p.owner.Relation(c.Live) == children.Foreign
	})
	return slices.DeleteFunc(changes, func(c children.Change) bool {
		return foreign && c.Key == p.proxyConfigKey() && c.Desired != nil
	})
}

// tellProxies makes the kubelets look at what the proxies read when it changed: they look at the pod that is written.
func (p *pass) tellProxies(ctx context.Context) error {
	config, ok := p.observed[p.proxyConfigKey()].(*corev1.ConfigMap)
	if !ok || p.mc.Spec.Paused || p.obs.NamespaceTerminating {
		return nil
	}
	digest := desired.Digest(config.Data)
	for i := range p.obs.ProxyPods {
		pod := &p.obs.ProxyPods[i]
		if pod.Annotations[v1alpha1.ProxyConfigAnnotation] == digest || !pod.DeletionTimestamp.IsZero() {
			continue
		}
		told := pod.DeepCopy()
		metav1.SetMetaDataAnnotation(&told.ObjectMeta, v1alpha1.ProxyConfigAnnotation, digest)
		err := p.Client.Patch(ctx, told, client.MergeFrom(pod), client.FieldOwner(names.Operator))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("annotate proxy %s: %w", pod.Name, err)
		}
	}
	return nil
}
