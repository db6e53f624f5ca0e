package controllers

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// apply writes the changed children, all of them even where one fails, and tells whether the workload changed. alive says that the
// Memcached is known to exist and not to be going away.
func (p *pass) apply(ctx context.Context, changes []child, alive bool) (workload bool, _ error) {
	var errs []error
	for _, c := range changes {
		if !alive && (c.live == nil || ownership(p.mc, c.live) == orphaned) {
			if err := p.proveAlive(ctx); err != nil {
				return workload, err
			}
			alive = true
		}
		changed, err := p.applyChild(ctx, c)
		if err != nil {
			errs = append(errs, err)
		}
		workload = workload || changed && c.gvk.Kind == kindDeployment
	}
	return workload, errors.Join(errs...)
}

func (p *pass) applyChild(ctx context.Context, c child) (changed bool, _ error) {
	live, err := p.find(ctx, c)
	if err != nil {
		return false, err
	}
	adopt := false
	if live != nil {
		switch ownership(p.mc, live) {
		case foreign:
			return false, &conflictError{c.gvk.Kind, p.mc.Name}
		case orphaned:
			adopt = true
		}
		if live.GetDeletionTimestamp() != nil {
			return false, nil // its end is an event, which brings us back to create it anew
		}
		// The uid keeps a namesake that took the place of our child meanwhile from being overwritten.
		c.meta.WithUID(live.GetUID())
	}
	options := []client.ApplyOption{client.FieldOwner(operatorName)}
	if live != nil {
		options = append(options, client.ForceOwnership)
	} // else force would take over a namesake that came since we looked
	delete(p.mem.verified, c.gvk.Kind) // whatever comes of the apply, what was compared is no more
	if err := p.Client.Apply(ctx, c.config, options...); err != nil {
		return false, fmt.Errorf("apply %s %s: %w", c.gvk.Kind, p.mc.Name, err)
	}
	p.mem.wrote(c.gvk.Kind, *c.meta.ResourceVersion, p.now)
	if live != nil && live.GetResourceVersion() == *c.meta.ResourceVersion {
		// Nothing changed: an admission plugin has the last word on a field of ours. Asking again would not help.
		p.mem.verified[c.gvk.Kind] = c.fingerprint
		return false, nil
	}
	if adopt {
		p.Recorder.Eventf(p.mc, live, corev1.EventTypeNormal, "Adopted", "Adopt",
			"%s %s had no controller and is managed again", c.gvk.Kind, p.mc.Name)
	}
	return true, nil
}

// find returns the live object of the name of a child, nil where there is none. The cache holds only objects with our labels, so what
// it does not show is looked up.
func (p *pass) find(ctx context.Context, c child) (client.Object, error) {
	if c.live != nil {
		return c.live, nil
	}
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(c.gvk)
	switch err := p.APIReader.Get(ctx, client.ObjectKeyFromObject(p.mc), live); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look up %s %s: %w", c.gvk.Kind, p.mc.Name, err)
	}
	return live, nil
}

// onlyResized tells whether two Deployments have the same pod template and different numbers of servers.
func onlyResized(own, want runtime.ApplyConfiguration) bool {
	a, b := own.(*appsv1ac.DeploymentApplyConfiguration), want.(*appsv1ac.DeploymentApplyConfiguration)
	return a.Spec != nil && !equality.Semantic.DeepEqual(a.Spec.Replicas, b.Spec.Replicas) &&
		equality.Semantic.DeepEqual(a.Spec.Template, b.Spec.Template)
}

// addFinalizer applies the one list item. The uid keeps an object that was deleted meanwhile from being created anew.
func (p *pass) addFinalizer(ctx context.Context) error {
	u := reference(p.mc)
	u.SetFinalizers([]string{v1alpha1.Finalizer})
	if err := p.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.ForceOwnership, client.FieldOwner(operatorName)); err != nil {
		return fmt.Errorf("add the finalizer to Memcached %s: %w", p.mc.Name, err)
	}
	p.mem.wrote(kindMemcached, u.GetResourceVersion(), p.now)
	return nil
}

// removeFinalizer lets the Memcached go. An apply would leave the item where another manager owns it too, as after the restore of a backup.
func (p *pass) removeFinalizer(ctx context.Context) error {
	mc := p.mc.DeepCopy()
	controllerutil.RemoveFinalizer(mc, v1alpha1.Finalizer)
	if err := p.Client.Patch(ctx, mc, client.MergeFromWithOptions(p.mc, client.MergeFromWithOptimisticLock{}), client.FieldOwner(operatorName)); err != nil {
		return fmt.Errorf("remove the finalizer of Memcached %s: %w", p.mc.Name, err)
	}
	p.mem.wrote(kindMemcached, mc.ResourceVersion, p.now)
	return nil
}

// writeStatus applies the status when it differs from the one that the API server has, and tells the transitions as events.
func (p *pass) writeStatus(ctx context.Context, out outcome) error {
	s := status(p.mc, p.obs, out, p.now)
	if equality.Semantic.DeepEqual(p.written, s) && p.written.Nodes != nil {
		return nil
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&s)
	if err != nil {
		return fmt.Errorf("convert status: %w", err)
	}
	var u *unstructured.Unstructured
	// An apply that takes the last item of a set makes null of the set, and the API server drops that. Where there is none, an empty one
	// is kept: then it is applied once more.
	for attempts, complete := 0, false; attempts < 2 && !complete; attempts++ {
		u = reference(p.mc)
		u.Object["status"] = content
		if err := p.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.ForceOwnership, client.FieldOwner(operatorName)); err != nil {
			return fmt.Errorf("apply status of Memcached %s: %w", p.mc.Name, err)
		}
		_, complete, _ = unstructured.NestedFieldNoCopy(u.Object, "status", "nodes")
	}
	p.mem.wrote(kindMemcached, u.GetResourceVersion(), p.now)
	p.tell(ctx, p.written.Conditions, s.Conditions)
	p.written = s
	return nil
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
