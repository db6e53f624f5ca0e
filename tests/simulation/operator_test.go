package simulation

import (
	"context"
	"fmt"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers"
	"github.com/example/memcached-operator/controllers/desired"
)

// start starts an operator process, which knows nothing of the one before.
func (w *world) start(release int) {
	w.Helper()
	w.connection.crashed = false
	direct, err := w.server.client(w.connection)
	w.Must(err)
	w.release, w.queue = release, &queue{world: w}
	w.queue.Add(reconcile.Request{NamespacedName: w.Key}) // informers show a new process what there is
	w.reconciler = &controllers.MemcachedReconciler{
		Client:    interceptor.NewClient(direct, interceptor.Funcs{Get: w.getCached, List: w.listCached}),
		APIReader: direct, Recorder: discard{}, Now: w.Clock, AskAgent: w.Agents.Ask, StopServer: w.Agents.Stop,
		Options: desired.Options{DefaultImage: fmt.Sprintf("memcached:%d", release),
			AgentImage: fmt.Sprintf("operator:%d", release), Namespace: "operator", CanResize: true},
	}
}

// isWithin reports whether the present reconcile is one of those that begin with the first one; 0 for none.
func (w *world) isWithin(first int) bool {
	return first > 0 && first <= w.reconciles && w.reconciles < first+disturbed
}

// retry is after how long the operator retries a reconcile that failed.
const retry = time.Second

// reconcile reconciles once, and starts another process if that one crashes. It reports whether there is more to do
// at once.
func (w *world) reconcile() (wrote bool, err error) {
	w.Helper()
	w.reconciles++
	w.connection.hit, w.connection.reconcile = false, w.reconciles
	w.connection.refused = w.isWithin(w.refusedFrom)
	request := reconcile.Request{NamespacedName: w.Key}
	result, err := w.reconciler.Reconcile(w.Ctx, request)
	if w.connection.crashed {
		release := w.release
		if w.connection.fault.upgrade {
			release++
		}
		w.start(release)
		if late := w.connection.fault.late; len(late) > 0 {
			w.stuckUntil = len(w.history) + lateStates
			for _, kind := range late {
				w.delivered[kind] = max(0, len(w.history)-1-lateStates)
			}
		}
		return true, errCrashed
	}
	switch {
	case err != nil:
		w.queue.AddAfter(request, retry)
	case result.RequeueAfter > 0:
		w.queue.AddAfter(request, result.RequeueAfter)
	}
	return len(w.dirty) > 0, err
}

// seen is what the informer cache shows of a kind.
func (w *world) seen(kind string) []client.Object {
	if i, ok := w.delivered[kind]; ok {
		return w.history[i][kind]
	}
	return w.now()[kind] // a kind that the operator does not watch
}

// isStuck reports whether the informer cache does not update the kinds that are late.
func (w *world) isStuck() bool { return len(w.history) <= w.stuckUntil }

// getCached reads an object from the informer cache.
func (w *world) getCached(_ context.Context, _ client.WithWatch, key client.ObjectKey, into client.Object,
	_ ...client.GetOption) error {
	kind := kindOf(into)
	for _, obj := range w.seen(kind) {
		if obj.GetName() != key.Name {
			continue
		}
		cached, err := w.cached(kind, obj)
		switch into := into.(type) {
		case *metav1.PartialObjectMetadata:
			m, _ := meta.Accessor(cached)
			into.Name, into.Namespace, into.UID, into.ResourceVersion = m.GetName(), m.GetNamespace(), m.GetUID(),
				m.GetResourceVersion()
		default:
			if cached == nil {
				return apierrors.NewNotFound(schema.GroupResource{Resource: kind}, key.Name)
			}
			reflect.ValueOf(into).Elem().Set(reflect.ValueOf(cached).Elem())
		}
		return err
	}
	return apierrors.NewNotFound(schema.GroupResource{Resource: kind}, key.Name)
}

// listCached lists the objects of the Memcached from the informer cache.
func (w *world) listCached(_ context.Context, _ client.WithWatch, list client.ObjectList,
	_ ...client.ListOption) error {
	kind := itemKind(list)
	var items []runtime.Object
	for _, obj := range w.seen(kind) {
		if kind != "Memcached" && obj.GetLabels()[v1alpha1.NameLabel] != w.Key.Name {
			continue
		}
		cached, err := w.cached(kind, obj)
		if err != nil {
			return err
		}
		if cached != nil {
			items = append(items, cached)
		}
	}
	return meta.SetList(list, items)
}

// cached returns an object as the informer cache holds it; nil if it does not.
func (w *world) cached(kind string, obj client.Object) (client.Object, error) {
	obj = obj.DeepCopyObject().(client.Object)
	by, ok := cacheOptions[kind]
	if !ok {
		return obj, nil
	}
	if by.Label != nil && !by.Label.Matches(labels.Set(obj.GetLabels())) {
		return nil, nil
	}
	if by.Transform == nil {
		return obj, nil
	}
	after, err := by.Transform(obj)
	if err != nil {
		return nil, err
	}
	return after.(client.Object), nil
}

// cacheOptions are those of the operator, by kind.
var cacheOptions = func() map[string]cache.ByObject {
	by := map[string]cache.ByObject{}
	for obj, options := range controllers.CacheOptions().ByObject {
		by[kindOf(obj)] = options
	}
	return by
}()

func kindOf(obj runtime.Object) string {
	switch obj := obj.(type) {
	case *metav1.PartialObjectMetadata:
		return obj.Kind
	case *unstructured.Unstructured:
		return obj.GetKind()
	}
	return reflect.TypeOf(obj).Elem().Name()
}

// discard is a recorder of events.
type discard struct{}

// Eventf implements events.EventRecorder.
func (discard) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}
