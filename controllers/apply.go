package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// apply writes the changed children, all of them even where one fails, and tells whether the workload changed. alive says that mc is known
// to exist and not to be going away.
func (r *MemcachedReconciler) apply(ctx context.Context, mc *v1alpha1.Memcached, changes []child, alive bool, mem *memory, now time.Time) (workload bool, _ error) {
	var errs []error
	for _, c := range changes {
		if c.live == nil && !alive {
			if err := r.proveAlive(ctx, mc); err != nil {
				return workload, err
			}
			alive = true
		}
		changed, err := r.applyChild(ctx, mc, c, mem, now)
		if err != nil {
			errs = append(errs, err)
		}
		workload = workload || changed && c.gvk.Kind == kindDeployment
	}
	return workload, errors.Join(errs...)
}

func (r *MemcachedReconciler) applyChild(ctx context.Context, mc *v1alpha1.Memcached, c child, mem *memory, now time.Time) (changed bool, _ error) {
	live, err := r.find(ctx, mc, c)
	if err != nil {
		return false, err
	}
	adopt := false
	if live != nil {
		switch ownership(mc, live) {
		case foreign:
			return false, &conflictError{c.gvk.Kind, mc.Name}
		case orphaned:
			adopt = true
		}
		if live.GetDeletionTimestamp() != nil {
			return false, nil // its end is an event, which brings us back to create it anew
		}
		// The uid keeps a namesake that took the place of our child meanwhile from being overwritten.
		c.meta.WithUID(live.GetUID())
	}
	if err := r.Client.Apply(ctx, c.config, client.ForceOwnership, client.FieldOwner(operatorName)); err != nil {
		return false, fmt.Errorf("apply %s %s: %w", c.gvk.Kind, mc.Name, err)
	}
	mem.wrote(c.gvk.Kind, *c.meta.ResourceVersion, now)
	if live != nil && live.GetResourceVersion() == *c.meta.ResourceVersion {
		// Nothing changed: an admission plugin has the last word on a field of ours. Asking again would not help.
		mem.verified[c.gvk.Kind] = c.fingerprint
		return false, nil
	}
	if adopt {
		r.Recorder.Eventf(mc, live, corev1.EventTypeNormal, "Adopted", "Adopt",
			"%s %s had no controller and is managed again", c.gvk.Kind, mc.Name)
	}
	return true, nil
}

// find returns the live object of the name of a child, nil where there is none. The cache holds only objects with our labels, so what
// it does not show is looked up.
func (r *MemcachedReconciler) find(ctx context.Context, mc *v1alpha1.Memcached, c child) (client.Object, error) {
	if c.live != nil {
		return c.live, nil
	}
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(c.gvk)
	switch err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(mc), live); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look up %s %s: %w", c.gvk.Kind, mc.Name, err)
	}
	return live, nil
}

// onlyResized tells whether two Deployments have the same pod template and different numbers of servers.
func onlyResized(own, want runtime.ApplyConfiguration) bool {
	a, b := own.(*appsv1ac.DeploymentApplyConfiguration), want.(*appsv1ac.DeploymentApplyConfiguration)
	return a.Spec != nil && !equality.Semantic.DeepEqual(a.Spec.Replicas, b.Spec.Replicas) &&
		equality.Semantic.DeepEqual(a.Spec.Template, b.Spec.Template)
}

// applyFinalizer makes the entries the only finalizers that we own on mc; none removes ours, and nobody else's. The uid keeps
// an object that was deleted meanwhile from being created anew.
func (r *MemcachedReconciler) applyFinalizer(ctx context.Context, mc *v1alpha1.Memcached, mem *memory, now time.Time, entries ...string) error {
	u := reference(mc)
	u.SetFinalizers(entries)
	if err := r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.ForceOwnership, client.FieldOwner(operatorName)); err != nil {
		return fmt.Errorf("apply finalizers of Memcached %s: %w", mc.Name, err)
	}
	mem.wrote(kindMemcached, u.GetResourceVersion(), now)
	return nil
}

// writeStatus applies a status when it differs from the one that was written, tells the transitions as events, and
// returns the status that holds now.
func (r *MemcachedReconciler) writeStatus(ctx context.Context, mc *v1alpha1.Memcached, written, s v1alpha1.MemcachedStatus, mem *memory, now time.Time) (v1alpha1.MemcachedStatus, error) {
	if equality.Semantic.DeepEqual(written, s) {
		return s, nil
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&s)
	if err != nil {
		return s, fmt.Errorf("convert status: %w", err)
	}
	u := reference(mc)
	u.Object["status"] = content
	if err := r.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.ForceOwnership, client.FieldOwner(operatorName)); err != nil {
		return s, fmt.Errorf("apply status of Memcached %s: %w", mc.Name, err)
	}
	mem.wrote(kindMemcached, u.GetResourceVersion(), now)
	r.tell(ctx, mc, written.Conditions, s.Conditions)
	return s, nil
}

// reference names mc in an apply, with its uid.
func reference(mc *v1alpha1.Memcached) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kindMemcached))
	u.SetNamespace(mc.Namespace)
	u.SetName(mc.Name)
	u.SetUID(mc.UID)
	return u
}
