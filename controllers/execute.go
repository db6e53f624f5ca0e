package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
	"github.com/example/memcached-operator/controllers/steps"
)

// execute takes a step, and continues after an error. It returns how far the step is, the delay before the next
// reconcile, and all errors.
func (r *MemcachedReconciler) execute(ctx context.Context, o observation, v steps.View,
	s steps.Step) (progress status.ChangeProgress, wait time.Duration, err error) {
	progress, wait = s.Progress, s.Wait
	if s.IsIrreversible() {
		if s, err = r.verify(ctx, o, v, s); err != nil {
			return progress, wait, err
		}
	}
	wait = steps.Soonest(wait, r.stopServers(ctx, o.mc, s.Stop))
	var errs []error
	for _, pod := range s.Delete {
		log.FromContext(ctx).Info("replacing a server", "pod", pod.Name, "generation", o.mc.Generation)
		if err := o.set.Delete(ctx, pod, metav1.DeletePropagationBackground); err != nil {
			errs = append(errs, fmt.Errorf("replace a server: %w", err))
		}
	}
	if s.Create != nil {
		err := r.Client.Create(ctx, s.Create.DeepCopy(), client.DryRunAll, client.FieldOwner(names.Operator))
		if err != nil {
			progress = status.ChangeProgress{Percent: progress.Percent, Failure: err.Error()}
		}
		if owner := s.Create.OwnerReferences[0]; s.Retry && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			errs = append(errs, r.annotateWorkload(ctx, o, children.Key{Kind: owner.Kind, Name: owner.Name},
				v1alpha1.RetriedAnnotation, r.Now().UTC().Format(time.RFC3339)))
		}
	}
	var resizeErr error
	if s.Resize != nil {
		resizeErr = r.resize(ctx, *s.Resize)
	}
	switch {
	case apierrors.IsForbidden(resizeErr), apierrors.IsInvalid(resizeErr): // for example, the node has no room
		progress = status.ChangeProgress{Text: fmt.Sprintf("server %s: %s", s.Resize.Pod.Name, resizeErr)}
		wait = steps.Later
	case resizeErr != nil:
		errs = append(errs, fmt.Errorf("change the memory of server %s: %w", s.Resize.Pod.Name, resizeErr))
	}
	if s.Flushed != "" {
		errs = append(errs, r.annotateWorkload(ctx, o, workloadKey(o.mc), v1alpha1.FlushedAtAnnotation, s.Flushed))
	}
	for _, a := range s.Annotate {
		if a.Key != v1alpha1.MemoryAnnotation || resizeErr == nil { // it is that of the resized server
			errs = append(errs, r.annotate(ctx, a))
		}
	}
	return progress, wait, children.Join(errs...)
}

// verify returns an irreversible step with the objects of the API server, and a conflict unless the step follows from
// workload, pods and configuration of the proxies as the API server has them, too.
func (r *MemcachedReconciler) verify(ctx context.Context, o observation, v steps.View,
	s steps.Step) (steps.Step, error) {
	live, err := o.live(ctx)
	if err != nil {
		return s, err
	}
	next := steps.Next(live.update(v))
	if !next.SameIrreversible(s) {
		return s, errOutdated(o.mc)
	}
	return next, nil
}

// errOutdated is a conflict: the informer cache does not show yet what somebody has written.
func errOutdated(mc *v1alpha1.Memcached) error {
	return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("memcacheds").GroupResource(), mc.Name,
		errors.New("informer cache is outdated"))
}

// annotate changes an annotation of a pod, and notes the time, so that the kubelet refreshes the volumes of the pod.
func (r *MemcachedReconciler) annotate(ctx context.Context, a steps.Annotation) error {
	after, patch := a.Pod.DeepCopy(), client.MergeFrom(a.Pod)
	metav1.SetMetaDataAnnotation(&after.ObjectMeta, v1alpha1.RefreshedAnnotation, r.Now().UTC().Format(time.RFC3339))
	metav1.SetMetaDataAnnotation(&after.ObjectMeta, a.Key, a.Value)
	if a.Key == v1alpha1.MemoryAnnotation { // what follows from an outdated pod is a conflict
		patch = client.MergeFromWithOptions(a.Pod, client.MergeFromWithOptimisticLock{})
	}
	err := r.Client.Patch(ctx, after, patch, client.FieldOwner(names.Operator))
	if client.IgnoreNotFound(err) != nil {
		return &children.ActionError{Action: "annotate", Objects: []string{"pod " + a.Pod.Name}, Err: err}
	}
	return nil
}

// annotateWorkload changes an annotation of the workload of servers or proxies.
func (r *MemcachedReconciler) annotateWorkload(ctx context.Context, o observation, key children.Key, annotation,
	value string) error {
	workload := o.ownChild(key)
	after := workload.DeepCopyObject().(client.Object)
	after.SetAnnotations(labels.Merge(after.GetAnnotations(), labels.Set{annotation: value}))
	if err := r.Client.Patch(ctx, after, client.MergeFrom(workload), client.FieldOwner(names.Operator)); err != nil {
		return fmt.Errorf("annotate %s: %w", key, err)
	}
	o.set.State.Expect(key, after.GetResourceVersion(), r.Now())
	return nil
}

// resize changes the memory of the container of memcached.
func (r *MemcachedReconciler) resize(ctx context.Context, to steps.Resize) error {
	memory := func(bytes int64) map[string]any {
		return map[string]any{"memory": resource.NewQuantity(bytes, resource.BinarySI)}
	}
	patch, _ := json.Marshal(map[string]any{ // cannot fail: JSON types
		"metadata": map[string]any{"resourceVersion": to.Pod.ResourceVersion},
		"spec": map[string]any{"containers": []any{map[string]any{"name": names.Container,
			"resources": map[string]any{"limits": memory(to.Limit), "requests": memory(to.Request)}}}}})
	options := []client.SubResourcePatchOption{client.FieldOwner(names.Operator)}
	if to.DryRun {
		options = append(options, client.DryRunAll)
	}
	return r.Client.SubResource("resize").Patch(ctx, to.Pod.DeepCopy(),
		client.RawPatch(types.StrategicMergePatchType, patch), options...)
}
