package main

import (
	"context"
	"encoding/json"
	"fmt"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
)

// floor does only what every operator of Memcacheds must do. It has as many workers as the operator, the operator's
// permissions and no informer cache: the benchmark tells it what to do. The cost of the floor is the least cost of the
// cluster itself.
type floor struct {
	*world
	client client.Client
	fail   func(error)
	// finishing are tasks that end a phase for an object. They precede those of starting, which begin a phase: otherwise
	// no object would finish before all have started. Each channel has room for one task of each object, so that no sender
	// blocks.
	finishing, starting chan task

	// The fields below are protected by the lock of the world.
	written  map[string]int64 // generations of objects whose children are all written, by object
	podsLeft map[string]int   // number of pods, by object
}

type task func(context.Context) error

func newFloor(ctx context.Context, w *world, fail func(error)) (*floor, error) {
	c, err := w.clientOf()
	if err != nil {
		return nil, err
	}
	f := &floor{world: w, client: c, fail: fail, finishing: make(chan task, len(w.names)),
		starting: make(chan task, len(w.names)), written: map[string]int64{}, podsLeft: map[string]int{}}
	for range workers {
		go f.work(ctx)
	}
	return f, nil
}

// work runs one task after the other.
func (f *floor) work(ctx context.Context) {
	for {
		var do task
		select {
		case do = <-f.finishing:
		default:
			select {
			case <-ctx.Done():
				return
			case do = <-f.finishing:
			case do = <-f.starting:
			}
		}
		if err := do(ctx); err != nil && ctx.Err() == nil {
			f.fail(fmt.Errorf("floor: %w", err))
		}
	}
}

// created does the operator's work after the user created an object.
func (f *floor) created(ctx context.Context, u *unstructured.Unstructured) error {
	mc := &v1alpha1.Memcached{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, mc); err != nil {
		return err
	}
	withFinalizer := memcached(mc.Name)
	withFinalizer.SetUID(mc.UID)
	withFinalizer.SetFinalizers([]string{v1alpha1.Finalizer})
	if err := f.apply(ctx, withFinalizer); err != nil {
		return err
	}
	inputs := desired.Resolve(mc, desired.Current{},
		desired.Options{DefaultImage: "docker.io/library/memcached:1.6.45"})
	var group errgroup.Group
	for _, child := range desired.NewPlan(mc, inputs).Children {
		group.Go(func() error {
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(child)
			if err != nil {
				return err
			}
			return f.apply(ctx, &unstructured.Unstructured{Object: content})
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := f.writeStatus(ctx, mc.Name, mc.Generation, metav1.ConditionFalse); err != nil {
		return err
	}
	f.recordWritten(mc.Name, mc.Generation)
	return nil
}

// changed does the operator's work after the user changed an object: it patches the Deployment.
func (f *floor) changed(ctx context.Context, u *unstructured.Unstructured, patch string) error {
	if err := f.client.Patch(ctx, deployment(u.GetName()), merge(patch)); err != nil {
		return err
	}
	f.recordWritten(u.GetName(), u.GetGeneration())
	return nil
}

// deleted does the operator's work after the user deleted an object: it deletes the Deployment. Garbage collection
// deletes the other children.
func (f *floor) deleted(ctx context.Context, u *unstructured.Unstructured) error {
	return f.client.Delete(ctx, deployment(u.GetName()), client.PropagationPolicy(metav1.DeletePropagationBackground))
}

// recordWritten records that all children of a generation of an object are written. The object becomes ready once its
// Deployment is complete too.
func (f *floor) recordWritten(name string, generation int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.written[name] = generation
	if f.deployments.good[name] {
		f.queueReady(name)
	}
}

// queueReady queues the write of the Ready status of an object with a complete Deployment, if all its children are
// written. The caller holds the lock.
func (f *floor) queueReady(name string) {
	generation, ok := f.written[name]
	if !ok {
		return
	}
	delete(f.written, name)
	f.finishing <- func(ctx context.Context) error { return f.writeStatus(ctx, name, generation, metav1.ConditionTrue) }
}

// countPod counts a pod that was created or is gone. With the last pod it queues the removal of the finalizer. The
// caller holds the lock.
func (f *floor) countPod(name string, gone bool) {
	if !gone {
		f.podsLeft[name]++
		return
	}
	f.podsLeft[name]--
	if f.podsLeft[name] == 0 {
		f.finishing <- func(ctx context.Context) error {
			// Pods may be replaced while they are deleted, so that there are two last pods: the object may be gone already.
			return client.IgnoreNotFound(f.client.Patch(ctx, memcached(name), merge(`{"metadata":{"finalizers":null}}`)))
		}
	}
}

func (f *floor) writeStatus(ctx context.Context, name string, generation int64, ready metav1.ConditionStatus) error {
	text, err := json.Marshal(map[string]any{"status": map[string]any{"observedGeneration": generation,
		"conditions": []metav1.Condition{{Type: "Ready", Status: ready, Reason: "Floor", ObservedGeneration: generation,
			LastTransitionTime: metav1.Now()}}}})
	if err != nil {
		return err
	}
	return f.client.Status().Patch(ctx, memcached(name), merge(string(text)))
}

func (f *floor) apply(ctx context.Context, u *unstructured.Unstructured) error {
	return f.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(names.Operator))
}

func memcached(name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Memcached"))
	u.SetNamespace(namespaceOf(name))
	u.SetName(name)
	return u
}

func deployment(name string) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespaceOf(name), Name: name}}
}

func merge(patch string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(patch)) }
