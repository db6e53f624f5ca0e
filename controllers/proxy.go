package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]string{v1alpha1.ProxyConfigAnnotation: digest}}})
	if err != nil {
		return err
	}
	for i := range p.obs.ProxyPods {
		pod := &p.obs.ProxyPods[i]
		if pod.Annotations[v1alpha1.ProxyConfigAnnotation] == digest || !pod.DeletionTimestamp.IsZero() {
			continue
		}
		err := p.Client.Patch(ctx, pod.DeepCopy(), client.RawPatch(types.MergePatchType, patch),
			client.FieldOwner(names.Operator))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("annotate proxy %s: %w", pod.Name, err)
		}
	}
	return nil
}
