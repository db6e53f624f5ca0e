package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

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

// floor does what no operator of Memcacheds can avoid, and nothing else, as soon as it can be done: in the user's own
// workers, with no queue and no cache. What it needs is what the cluster needs. It has the permissions of the operator.
type floor struct {
	client client.Client
	fail   func(error)
	status chan status // to be written by workers of the floor's own

	mu   sync.Mutex
	half map[string]int64 // objects of which the children are written, or complete, but not both; see step
}

// status is one to be written: Ready for a generation, or where that is 0 nothing but the object's end.
type status struct {
	name       string
	generation int64
}

func newFloor(ctx context.Context, w *world, fail func(error)) (*floor, error) {
	c, err := w.clientOf()
	if err != nil {
		return nil, err
	}
	f := &floor{client: c, fail: fail, status: make(chan status, len(w.names)), half: map[string]int64{}}
	for range workers {
		go f.work(ctx)
	}
	return f, nil
}

// work does what follows the cluster's own work.
func (f *floor) work(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-f.status:
			var err error
			if s.generation == 0 {
				err = f.client.Patch(ctx, memcached(s.name), merge(`{"metadata":{"finalizers":null}}`))
			} else {
				err = f.writeStatus(ctx, s.name, s.generation, metav1.ConditionTrue)
			}
			if err != nil && ctx.Err() == nil {
				f.fail(fmt.Errorf("floor: %w", err))
			}
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
	inputs := desired.Resolve(mc, nil, desired.Secrets{},
		desired.Options{DefaultImage: "docker.io/library/memcached:1.6.45"})
	var group errgroup.Group
	for _, child := range desired.Children(mc, inputs) {
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
	f.step(mc.Name, mc.Generation)
	return nil
}

// changed goes on after the user changed an object, by a merge patch of the Deployment.
func (f *floor) changed(ctx context.Context, u *unstructured.Unstructured, patch string) error {
	if err := f.client.Patch(ctx, deployment(u.GetName()), merge(patch)); err != nil {
		return err
	}
	f.step(u.GetName(), u.GetGeneration())
	return nil
}

// deleted goes on after the user deleted an object. What else there is goes with it, by garbage collection.
func (f *floor) deleted(ctx context.Context, u *unstructured.Unstructured) error {
	return f.client.Delete(ctx, deployment(u.GetName()), client.PropagationPolicy(metav1.DeletePropagationForeground))
}

// saw takes notice that a Deployment is complete, or gone.
func (f *floor) saw(name string, gone bool) {
	if gone {
		f.status <- status{name, 0} // which has room for all
	} else {
		f.step(name, 0)
	}
}

// step is taken twice in each phase, in whatever order: when all is written for a generation, and when the Deployment
// is complete. Then the object is ready.
func (f *floor) step(name string, generation int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	other, second := f.half[name]
	if !second {
		f.half[name] = generation
		return
	}
	delete(f.half, name)
	f.status <- status{name, max(generation, other)}
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
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

func deployment(name string) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func merge(patch string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(patch)) }
