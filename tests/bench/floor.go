package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/agent/contract"
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
	// lists are the ConfigMaps that clients discover, with the list to publish once all servers are ready, by object.
	lists map[string]runtime.ApplyConfiguration
}

type task func(context.Context) error

func newFloor(ctx context.Context, w *world, fail func(error)) (*floor, error) {
	c, err := w.clientOf()
	if err != nil {
		return nil, err
	}
	f := &floor{world: w, client: c, fail: fail, finishing: make(chan task, len(w.names)),
		starting: make(chan task, len(w.names)), written: map[string]int64{}, podsLeft: map[string]int{},
		lists: map[string]runtime.ApplyConfiguration{}}
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
	plan := func(list contract.List) []runtime.ApplyConfiguration {
		return desired.NewPlan(mc, desired.Resolve(mc, desired.Current{List: list, Published: time.Now()},
			desired.Options{DefaultImage: "docker.io/library/memcached:1.6.45", AgentImage: "example.com/agent:bench"})).Children
	}
	var group errgroup.Group
	for _, child := range plan(contract.List{}) {
		group.Go(func() error { return f.applyChild(ctx, child) })
	}
	if mc.Spec.Discovery != nil {
		list := contract.List{Version: time.Now().Unix()}
		for n := range *mc.Spec.Size {
			list.Nodes = append(list.Nodes, fmt.Sprintf("%[1]s-%[2]d|%[1]s-%[2]d|11211", mc.Name, n))
		}
		children := plan(list)
		config := children[slices.IndexFunc(children, func(child runtime.ApplyConfiguration) bool {
			_, ok := child.(*corev1ac.ConfigMapApplyConfiguration)
			return ok
		})]
		f.mu.Lock()
		f.lists[mc.Name] = config
		f.mu.Unlock()
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

// changed does the operator's work after the user changed an object: it patches the workload.
func (f *floor) changed(ctx context.Context, u *unstructured.Unstructured, patch string) error {
	if err := f.client.Patch(ctx, f.subject.workload(u.GetName()), merge(patch)); err != nil {
		return err
	}
	f.recordWritten(u.GetName(), u.GetGeneration())
	return nil
}

// deleted does the operator's work after the user deleted an object: it deletes the workload. Garbage collection
// deletes the other children.
func (f *floor) deleted(ctx context.Context, u *unstructured.Unstructured) error {
	return f.client.Delete(ctx, f.subject.workload(u.GetName()),
		client.PropagationPolicy(metav1.DeletePropagationBackground))
}

// recordWritten records that all children of a generation of an object are written. The object becomes ready once its
// workload is complete too.
func (f *floor) recordWritten(name string, generation int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.written[name] = generation
	if f.workloads.good[name] {
		f.queueReady(name)
	}
}

// queueReady queues the write of the Ready status of an object with a complete workload, if all its children are
// written. The caller holds the lock.
func (f *floor) queueReady(name string) {
	generation, ok := f.written[name]
	if !ok {
		return
	}
	delete(f.written, name)
	list := f.lists[name]
	f.finishing <- func(ctx context.Context) error {
		if list != nil {
			if err := f.applyChild(ctx, list); err != nil {
				return err
			}
		}
		return f.writeStatus(ctx, name, generation, metav1.ConditionTrue)
	}
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

func (f *floor) applyChild(ctx context.Context, child runtime.ApplyConfiguration) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(child)
	if err != nil {
		return err
	}
	return f.apply(ctx, &unstructured.Unstructured{Object: content})
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

func merge(patch string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(patch)) }
