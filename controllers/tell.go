package controllers

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
)

// tellPods makes the kubelets look at what changed of what pods mount: they look at the pod that is written.
func (p *pass) tellPods(ctx context.Context) error {
	if p.mc.Spec.Paused || p.obs.NamespaceTerminating {
		return nil
	}
	var errs []error
	if config, ok := p.observed[p.proxyConfigKey()].(*corev1.ConfigMap); ok {
		errs = append(errs, p.tell(ctx, p.obs.ProxyPods, v1alpha1.ProxyConfigAnnotation, desired.Digest(config.Data)))
	}
	if versions := p.current.Annotation(); versions != "" {
		errs = append(errs, p.tell(ctx, p.obs.Pods, v1alpha1.SecretsAnnotation, versions))
	}
	return errors.Join(errs...)
}

func (p *pass) tell(ctx context.Context, pods []corev1.Pod, annotation, value string) error {
	for i := range pods {
		pod := &pods[i]
		if pod.Annotations[annotation] == value || !pod.DeletionTimestamp.IsZero() {
			continue
		}
		told := pod.DeepCopy()
		metav1.SetMetaDataAnnotation(&told.ObjectMeta, annotation, value)
		err := p.Client.Patch(ctx, told, client.MergeFrom(pod), client.FieldOwner(names.Operator))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("annotate pod %s: %w", pod.Name, err)
		}
	}
	return nil
}
