package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/status"
	"github.com/example/memcached-operator/tests/cluster"
)

const (
	nodes   = 20 // the least number; each has room for a thousand pods
	workers = 16 // of the user and of the floor each; the operator's default too
	prefix  = "cache-"
)

// namespaceOf returns the namespace of an object: a hundred objects share one. Several controllers of Kubernetes
// process all objects of a namespace for each pod, so thousands in one namespace would be slow and unrealistic.
func namespaceOf(name string) string { return name[:len(name)-2] }

// world is a fresh cluster, the user whose requests are the load, and the state that watches show.
type world struct {
	*cluster.Cluster
	subject    *subject
	kubeconfig string // the subject's
	user       client.Client
	names      []string // of all objects
	floor      *floor   // nil unless the floor is measured

	informers                cache.Cache
	mu                       sync.Mutex
	objects, workloads, pods *tally
	done                     chan struct{} // closed in the state that the phase wants
	finished                 time.Time     // when done was closed
	deleting                 bool
}

// tally has the observed objects of one kind by name, and marks those that are in the state that the phase wants.
type tally struct {
	seen map[string]client.Object
	good map[string]bool
	want func(client.Object) bool
}

func newTally() *tally {
	return &tally{seen: map[string]client.Object{}, good: map[string]bool{},
		want: func(client.Object) bool { return false }}
}

// newWorld starts a cluster for a subject and this number of objects. The caller destroys the cluster, also after an
// error.
func newWorld(ctx context.Context, c *cluster.Cluster, s *subject, count int) (*world, error) {
	w := &world{Cluster: c, subject: s, objects: newTally(), workloads: newTally(), pods: newTally(),
		done: make(chan struct{})}
	for i := range count {
		w.names = append(w.names, fmt.Sprintf(prefix+"%05d", i))
	}
	if err := c.Destroy(ctx); err != nil {
		return nil, err
	}
	operators, _ := s.account()
	// GOGC=400 trades memory for time: on a machine with few cores, the control plane's garbage collection would take much
	// of it.
	c.Nodes, c.AuditedNamespace, c.Env = max(nodes, count*(laterSize+1)/1000), operators, []string{"GOGC=400"}
	if _, err := c.Create(ctx); err != nil {
		return nil, err
	}
	var err error
	if w.kubeconfig, err = s.install(ctx, c); err != nil {
		return nil, err
	}
	config := c.KubernetesRestConfig()
	config.QPS = -1 // the API server's own limits remain
	if w.user, err = client.New(config, client.Options{}); err != nil {
		return nil, err
	}
	for i := 0; i < count; i += 100 {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespaceOf(w.names[i])}}
		if err := w.user.Create(ctx, ns); err != nil {
			return nil, err
		}
	}
	w.informers, err = cache.New(config, cache.Options{DefaultTransform: cache.TransformStripManagedFields()})
	if err != nil {
		return nil, err
	}
	go func() { _ = w.informers.Start(ctx) }() // returns only when ctx is done
	object, err := s.object("any", 0)
	if err != nil {
		return nil, err
	}
	kind := &unstructured.Unstructured{}
	kind.SetGroupVersionKind(object.GroupVersionKind())
	if err := w.watch(ctx, kind, w.objects); err != nil {
		return nil, err
	}
	if err := w.watch(ctx, s.workload("any"), w.workloads); err != nil {
		return nil, err
	}
	return w, nil
}

// clientOf returns a client with the permissions of the subject.
func (w *world) clientOf() (client.Client, error) {
	config, err := cluster.RestConfig(w.kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return client.New(config, client.Options{})
}

// watch starts to watch the objects of a kind, and returns when it has all existing ones.
func (w *world) watch(ctx context.Context, kind client.Object, t *tally) error {
	informer, err := w.informers.GetInformer(ctx, kind)
	if err != nil {
		return err
	}
	observe := func(obj any) { w.observe(t, obj.(client.Object), false) }
	handler, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: observe, UpdateFunc: func(_, obj any) { observe(obj) },
		DeleteFunc: func(obj any) {
			if last, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			w.observe(t, obj.(client.Object), true)
		},
	})
	if err != nil {
		return err
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
		return context.Cause(ctx)
	}
	return nil
}

// observe records an object that was written or is gone.
func (w *world) observe(t *tally, obj client.Object, gone bool) {
	if !strings.HasPrefix(obj.GetNamespace(), prefix) {
		return // not an object of the benchmark
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	name, before := obj.GetName(), t.good[obj.GetName()]
	_, known := t.seen[name]
	if gone {
		delete(t.seen, name)
		delete(t.good, name)
	} else {
		t.observe(obj)
	}
	switch {
	case w.floor == nil:
	case t == w.workloads && t.good[name] && !before:
		w.floor.queueReady(name)
	case t == w.pods && gone == known: // a new pod, or the deletion of a known one
		w.floor.countPod(obj.GetLabels()[v1alpha1.NameLabel], gone)
	}
	w.check()
}

func (t *tally) observe(obj client.Object) {
	t.seen[obj.GetName()] = obj
	if t.want(obj) {
		t.good[obj.GetName()] = true
	} else {
		delete(t.good, obj.GetName())
	}
}

// check closes done if all objects are in the state that the phase wants. The caller holds the lock.
func (w *world) check() {
	n := len(w.names)
	reached := len(w.objects.good) == n && len(w.workloads.good) == n && len(w.workloads.seen) == n
	if w.deleting {
		reached = len(w.objects.seen)+len(w.workloads.seen)+len(w.pods.seen) == 0
	}
	select {
	case <-w.done:
	default:
		if reached {
			w.finished = time.Now()
			close(w.done)
		}
	}
}

// expect sets the state that the next phase wants. For each object: a newer generation for which the condition is True,
// and a complete workload of this size, with a changed pod template if otherTemplate is set.
func (w *world) expect(size int, otherTemplate bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	generations, templates := map[string]int64{}, map[string]*corev1.PodTemplateSpec{}
	for name, obj := range w.objects.seen {
		generations[name] = obj.GetGeneration()
	}
	for name, obj := range w.workloads.seen {
		templates[name] = status.Template(obj)
	}
	w.objects.want = func(obj client.Object) bool {
		return obj.GetGeneration() > generations[obj.GetName()] &&
			isTrue(obj.(*unstructured.Unstructured), w.subject.Condition)
	}
	w.workloads.want = func(obj client.Object) bool {
		return complete(obj, int32(size)) &&
			(!otherTemplate || !equality.Semantic.DeepEqual(templates[obj.GetName()], status.Template(obj)))
	}
	w.done = make(chan struct{})
	w.objects.good, w.workloads.good = map[string]bool{}, map[string]bool{}
}

// expectNothing makes the next phase wait until everything is gone.
func (w *world) expectNothing(ctx context.Context) error {
	pod := &metav1.PartialObjectMetadata{}
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	if err := w.watch(ctx, pod, w.pods); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deleting, w.done = true, make(chan struct{})
	return nil
}

// await waits for the expected state and returns the time that it took since start.
func (w *world) await(ctx context.Context, start time.Time) (time.Duration, error) {
	select {
	case <-w.done:
		return w.finished.Sub(start), nil
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return 0, fmt.Errorf("%d of %d objects and %d of %d workloads are as expected: %w", len(w.objects.good),
		len(w.objects.seen), len(w.workloads.good), len(w.workloads.seen), context.Cause(ctx))
}

// each makes a request for each object with the user's workers, and queues the work of the floor after it.
func (w *world) each(ctx context.Context, size int, request, floor func(context.Context,
	*unstructured.Unstructured) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	for _, name := range w.names {
		group.Go(func() error {
			u, err := w.subject.object(name, size)
			if err == nil {
				err = request(ctx, u)
			}
			if err == nil && w.floor != nil {
				w.floor.starting <- func(ctx context.Context) error { return floor(ctx, u) }
			}
			return err
		})
	}
	return group.Wait()
}

// isTrue reports whether a condition is True for the object's current generation, if the status has an
// observedGeneration.
func isTrue(u *unstructured.Unstructured, conditionType string) bool {
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		if condition["type"] != conditionType || condition["status"] != "True" {
			continue
		}
		observed, known := condition["observedGeneration"].(int64)
		if !known {
			observed, known, _ = unstructured.NestedInt64(u.Object, "status", "observedGeneration")
		}
		return !known || observed == u.GetGeneration()
	}
	return false
}

// complete reports whether a workload has this size and all its pods are updated and available.
func complete(obj client.Object, size int32) bool {
	if d, ok := obj.(*appsv1.Deployment); ok {
		s := d.Status
		return ptr.Deref(d.Spec.Replicas, 1) == size && s.ObservedGeneration == d.Generation && s.UpdatedReplicas == size &&
			s.AvailableReplicas == size && s.Replicas == size
	}
	set := obj.(*appsv1.StatefulSet)
	s := set.Status
	return ptr.Deref(set.Spec.Replicas, 1) == size && s.ObservedGeneration == set.Generation &&
		s.UpdatedReplicas == size && s.AvailableReplicas == size && s.Replicas == size
}
