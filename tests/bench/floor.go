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

// floor does what no operator of Memcacheds can avoid, and nothing else, with as many workers as the operator has, and
// without a cache: it is told what there is to do. What it needs is what the cluster needs. It has the permissions of
// the operator.
type floor struct {
	*world
	client client.Client
	fail   func(error)
	// due are tasks that end a phase for an object. They go before those of queue, which begin it, as they would wait for
	// all objects otherwise. Both have room for a task of each object, so that nobody waits for a worker.
	due, queue chan task

	// Under the lock of the world.
	written map[string]int64 // objects that are ready once their Deployments are complete, and their generations
	left    map[string]int   // numbers of pods by object
}

type task func(context.Context) error

func newFloor(ctx context.Context, w *world, fail func(error)) (*floor, error) {
	c, err := w.clientOf()
	if err != nil {
		return nil, err
	}
	f := &floor{world: w, client: c, fail: fail, due: make(chan task, len(w.names)),
		queue: make(chan task, len(w.names)), written: map[string]int64{}, left: map[string]int{}}
	for range workers {
		go f.work(ctx)
	}
	return f, nil
}

// work does one task after the other.
func (f *floor) work(ctx context.Context) {
	for {
		var do task
		select {
		case do = <-f.due:
		default:
			select {
			case <-ctx.Done():
				return
			case do = <-f.due:
			case do = <-f.queue:
			}
		}
		if err := do(ctx); err != nil && ctx.Err() == nil {
			f.fail(fmt.Errorf("floor: %w", err))
		}
	}
}

// created goes on after the user created an object.
func (f *floor) created(ctx context.Context, u *unstructured.Unstructured) error {
	mc := &v1alpha1.Memcached{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, mc); err != nil {
		return err
	}
	held := memcached(mc.Name)
	held.SetUID(mc.UID)
	held.SetFinalizers([]string{v1alpha1.Finalizer})
	if err := f.apply(ctx, held); err != nil {
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
	f.wrote(mc.Name, mc.Generation)
	return nil
}

// changed goes on after the user changed an object, by a merge patch of the Deployment.
func (f *floor) changed(ctx context.Context, u *unstructured.Unstructured, patch string) error {
	if err := f.client.Patch(ctx, deployment(u.GetName()), merge(patch)); err != nil {
		return err
	}
	f.wrote(u.GetName(), u.GetGeneration())
	return nil
}

// deleted goes on after the user deleted an object. What else there is goes with it, by garbage collection.
func (f *floor) deleted(ctx context.Context, u *unstructured.Unstructured) error {
	return f.client.Delete(ctx, deployment(u.GetName()), client.PropagationPolicy(metav1.DeletePropagationBackground))
}

// wrote takes notice that all is written for a generation of an object. It is ready when its Deployment is complete
// too, whichever comes first.
func (f *floor) wrote(name string, generation int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.written[name] = generation
	if f.deployments.good[name] {
		f.ready(name)
	}
}

// ready has the status of an object written whose Deployment is complete, if all else is written. The caller holds the
// lock.
func (f *floor) ready(name string) {
	generation, ok := f.written[name]
	if !ok {
		return
	}
	delete(f.written, name)
	f.due <- func(ctx context.Context) error { return f.writeStatus(ctx, name, generation, metav1.ConditionTrue) }
}

// count takes notice of a pod that has come or gone. With its last pod the object may go; every object has had one. The
// caller holds the lock.
func (f *floor) count(name string, gone bool) {
	if !gone {
		f.left[name]++
		return
	}
	f.left[name]--
	if f.left[name] == 0 {
		f.due <- func(ctx context.Context) error {
			// It is gone already where pods were replaced while they went, so that there were two last ones.
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
