package controllers

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// podsByInstance indexes pods by the Memcached that their labels name, so that a reconcile costs the same however many
// pods the namespace holds.
const podsByInstance = "instance"

// observed is what the cache shows of the children of one Memcached; nil where it shows none.
type observed struct {
	deployment *appsv1.Deployment
	service    *corev1.Service
	budget     *policyv1.PodDisruptionBudget
	pods       []corev1.Pod
}

// CacheOptions keep in memory only what the operator uses: children by label, without other managers' field records; pods without
// all that their status does not need.
func CacheOptions() cache.Options {
	selector := labels.SelectorFromSet(labels.Set{labelManagedBy: operatorName})
	child := cache.ByObject{Label: selector, Transform: keepOwnFields}
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&appsv1.Deployment{}:            child,
			&corev1.Service{}:               child,
			&policyv1.PodDisruptionBudget{}: child,
			&corev1.Pod{}:                   {Label: selector, Transform: stripPod},
		},
	}
}

// keepOwnFields drops the records of fields that other managers own: they change often and never matter here.
func keepOwnFields(in any) (any, error) {
	if obj, ok := in.(metav1.Object); ok {
		if own := ownFields(obj.GetManagedFields()); own != nil {
			obj.SetManagedFields([]metav1.ManagedFieldsEntry{*own})
		} else {
			obj.SetManagedFields(nil)
		}
	}
	return in, nil
}

// stripPod keeps the identity of a pod, its phase, whether it is ready, and why it waits.
func stripPod(in any) (any, error) {
	pod, ok := in.(*corev1.Pod)
	if !ok {
		return in, nil
	}
	out := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:              pod.Name,
			Namespace:         pod.Namespace,
			UID:               pod.UID,
			ResourceVersion:   pod.ResourceVersion,
			DeletionTimestamp: pod.DeletionTimestamp,
			Labels:            map[string]string{labelInstance: pod.Labels[labelInstance]},
			OwnerReferences:   pod.OwnerReferences,
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}
	for i := range pod.Status.ContainerStatuses {
		if s := &pod.Status.ContainerStatuses[i]; s.State.Waiting != nil {
			out.Status.ContainerStatuses = append(out.Status.ContainerStatuses,
				corev1.ContainerStatus{Name: s.Name, State: corev1.ContainerState{Waiting: s.State.Waiting}})
		}
	}
	for _, c := range pod.Status.Conditions {
		switch {
		case c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue:
			out.Status.Conditions = append(out.Status.Conditions, corev1.PodCondition{Type: c.Type, Status: c.Status})
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse:
			out.Status.Conditions = append(out.Status.Conditions,
				corev1.PodCondition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message})
		}
	}
	return out, nil
}

// observe reads the children from the cache.
func (p *pass) observe(ctx context.Context) (err error) {
	if p.obs.deployment, err = cached(ctx, p.Client, p.mc, &appsv1.Deployment{}); err != nil {
		return err
	}
	if p.obs.service, err = cached(ctx, p.Client, p.mc, &corev1.Service{}); err != nil {
		return err
	}
	if p.obs.budget, err = cached(ctx, p.Client, p.mc, &policyv1.PodDisruptionBudget{}); err != nil {
		return err
	}
	var pods corev1.PodList
	if err := p.Client.List(ctx, &pods, client.InNamespace(p.mc.Namespace),
		client.MatchingFields{podsByInstance: p.mc.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	// A pod without a controller carries our labels by accident: nothing of ours makes such a pod.
	p.obs.pods = slices.DeleteFunc(slices.Clone(pods.Items), func(p corev1.Pod) bool {
		return metav1.GetControllerOfNoCopy(&p) == nil
	})
	slices.SortFunc(p.obs.pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// cached reads the child of mc of the kind of obj, nil where the cache shows none.
func cached[O any, P interface {
	*O
	client.Object
}](ctx context.Context, c client.Reader, mc *v1alpha1.Memcached, obj P) (P, error) {
	if err := c.Get(ctx, client.ObjectKeyFromObject(mc), obj); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil, nil
		}
		return nil, fmt.Errorf("read %T: %w", obj, err)
	}
	return obj, nil
}

// stale tells whether the cache is older than what we wrote: then it is no evidence.
func (p *pass) stale() bool {
	stale := p.mem.stale(kindMemcached, p.mc.ResourceVersion, p.now)
	for kind, obj := range map[string]metav1.Object{kindDeployment: p.obs.deployment, kindService: p.obs.service, kindBudget: p.obs.budget} {
		resourceVersion := ""
		if !reflect.ValueOf(obj).IsNil() {
			resourceVersion = obj.GetResourceVersion()
		}
		stale = p.mem.stale(kind, resourceVersion, p.now) || stale
	}
	return stale
}
