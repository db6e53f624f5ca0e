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
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/tests/cluster"
)

const (
	nodes   = 20 // at least, of a thousand pods each
	workers = 16 // of the user, and as many of the floor: the operator's own default
	prefix  = "cache-"
)

// namespaceOf is where an object of that name is: a hundred are in each namespace. Several controllers of a cluster go
// through all that a namespace holds for each pod, which no user has in the thousands.
func namespaceOf(name string) string { return name[:len(name)-2] }

// world is a fresh cluster, the user whose requests are the load, and what a watch shows of their effect.
type world struct {
	*cluster.Cluster
	subject    *subject
	kubeconfig string // of the subject
	user       client.Client
	names      []string // of all objects
	floor      *floor   // what follows the user's requests; nil where an operator runs

	informers                  cache.Cache
	mu                         sync.Mutex
	objects, deployments, pods *tally
	done                       chan struct{} // closed when what the phase wants is reached
	finished                   time.Time     // when that was
	deleting                   bool
}

// tally has what a watch shows of a kind, by name, and of which objects it is what the phase wants.
type tally struct {
	seen map[string]client.Object
	good map[string]bool
	want func(client.Object) bool
}

func newTally() *tally {
	return &tally{seen: map[string]client.Object{}, good: map[string]bool{},
		want: func(client.Object) bool { return false }}
}

// newWorld starts a cluster for a subject and that many objects. The caller destroys it, also after an error.
func newWorld(ctx context.Context, c *cluster.Cluster, s *subject, count int) (*world, error) {
	w := &world{Cluster: c, subject: s, objects: newTally(), deployments: newTally(), pods: newTally(),
		done: make(chan struct{})}
	for i := range count {
		w.names = append(w.names, fmt.Sprintf(prefix+"%05d", i))
	}
	if err := c.Destroy(ctx); err != nil {
		return nil, err
	}
	operators, _ := s.account()
	// On a machine of few cores garbage collection of the control plane takes much of the time, and memory is there.
	c.Nodes, c.AuditPolicy, c.Env = max(nodes, count*(laterSize+1)/1000), auditPolicy(operators), []string{"GOGC=400"}
	if _, err := c.Create(ctx); err != nil {
		return nil, err
	}
	var err error
	if w.kubeconfig, err = s.install(ctx, c); err != nil {
		return nil, err
	}
	config := unlimited(c.KubernetesRestConfig())
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
	go func() { _ = w.informers.Start(ctx) }() // ends with the context, and with nothing else
	object, err := s.object("any", 0)
	if err != nil {
		return nil, err
	}
	kind := &unstructured.Unstructured{}
	kind.SetGroupVersionKind(object.GroupVersionKind())
	if err := w.watch(ctx, kind, w.objects); err != nil {
		return nil, err
	}
	if err := w.watch(ctx, &appsv1.Deployment{}, w.deployments); err != nil {
		return nil, err
	}
	return w, nil
}

// unlimited leaves it to the API server how many requests a client makes.
func unlimited(config *rest.Config) *rest.Config {
	config.QPS = -1
	return config
}

// clientOf is a client with the permissions of the subject.
func (w *world) clientOf() (client.Client, error) {
	config, err := cluster.RestConfig(w.kubeconfig)
	if err != nil {
		return nil, err
	}
	return client.New(unlimited(config), client.Options{})
}

// watch follows the objects of a kind, and returns when it has seen all that exist.
func (w *world) watch(ctx context.Context, kind client.Object, t *tally) error {
	informer, err := w.informers.GetInformer(ctx, kind)
	if err != nil {
		return err
	}
	see := func(obj any) { w.see(t, obj.(client.Object), false) }
	handler, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) },
		DeleteFunc: func(obj any) {
			if last, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			w.see(t, obj.(client.Object), true)
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

// see takes notice of an object that was written or has gone.
func (w *world) see(t *tally, obj client.Object, gone bool) {
	if !strings.HasPrefix(obj.GetNamespace(), prefix) {
		return // the cluster's own
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	name, before := obj.GetName(), t.good[obj.GetName()]
	_, known := t.seen[name]
	if gone {
		delete(t.seen, name)
		delete(t.good, name)
	} else {
		t.see(obj)
	}
	switch {
	case w.floor == nil:
	case t == w.deployments && t.good[name] && !before:
		w.floor.ready(name)
	case t == w.pods && gone == known: // it is new, or was there
		w.floor.count(obj.GetLabels()[names.LabelInstance], gone)
	}
	w.check()
}

func (t *tally) see(obj client.Object) {
	t.seen[obj.GetName()] = obj
	if t.want(obj) {
		t.good[obj.GetName()] = true
	} else {
		delete(t.good, obj.GetName())
	}
}

// check closes done where all is as the phase wants it. The caller holds the lock.
func (w *world) check() {
	n := len(w.names)
	reached := len(w.objects.good) == n && len(w.deployments.good) == n && len(w.deployments.seen) == n
	if w.deleting {
		reached = len(w.objects.seen)+len(w.deployments.seen)+len(w.pods.seen) == 0
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

// expect says what the next phase wants: for each object a generation later than the present one for which the
// condition is True, and a complete Deployment of that size, where asked for with another pod template than now.
func (w *world) expect(size int, otherTemplate bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	generations, templates := map[string]int64{}, map[string]*corev1.PodTemplateSpec{}
	for name, obj := range w.objects.seen {
		generations[name] = obj.GetGeneration()
	}
	for name, obj := range w.deployments.seen {
		templates[name] = &obj.(*appsv1.Deployment).Spec.Template
	}
	w.objects.want = func(obj client.Object) bool {
		return obj.GetGeneration() > generations[obj.GetName()] &&
			isTrue(obj.(*unstructured.Unstructured), w.subject.Condition)
	}
	w.deployments.want = func(obj client.Object) bool {
		d := obj.(*appsv1.Deployment)
		return complete(d, int32(size)) &&
			(!otherTemplate || !equality.Semantic.DeepEqual(templates[d.Name], &d.Spec.Template))
	}
	w.done = make(chan struct{})
	w.objects.good, w.deployments.good = map[string]bool{}, map[string]bool{}
}

// expectNothing says that the next phase wants everything gone.
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

// await waits for what was expected, and returns how long after start it came.
func (w *world) await(ctx context.Context, start time.Time) (time.Duration, error) {
	select {
	case <-w.done:
		return w.finished.Sub(start), nil
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return 0, fmt.Errorf("of %d objects %d, of %d Deployments %d are as expected: %w", len(w.objects.seen),
		len(w.objects.good), len(w.deployments.seen), len(w.deployments.good), context.Cause(ctx))
}

// each has the user's workers make a request for each object, and the floor's what follows.
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
				w.floor.queue <- func(ctx context.Context) error { return floor(ctx, u) }
			}
			return err
		})
	}
	return group.Wait()
}

// isTrue reports whether a condition is True for the object's generation, where the API tells the generation.
func isTrue(u *unstructured.Unstructured, conditionType string) bool {
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		if condition["type"] != conditionType || condition["status"] != "True" {
			continue
		}
		observed, told := condition["observedGeneration"].(int64)
		if !told {
			observed, told, _ = unstructured.NestedInt64(u.Object, "status", "observedGeneration")
		}
		return !told || observed == u.GetGeneration()
	}
	return false
}

// complete reports whether a Deployment has that size, and all its pods are of its template and available.
func complete(d *appsv1.Deployment, size int32) bool {
	s := d.Status
	return ptr.Deref(d.Spec.Replicas, 1) == size && s.ObservedGeneration == d.Generation && s.UpdatedReplicas == size &&
		s.AvailableReplicas == size && s.Replicas == size
}

// auditPolicy asks for the requests of all service accounts of a namespace. A watch is logged when it starts, all else
// when it is answered.
func auditPolicy(namespace string) string {
	return strings.ReplaceAll(`apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: ["system:serviceaccounts:NAMESPACE"]
- level: None
`, "NAMESPACE", namespace)
}
