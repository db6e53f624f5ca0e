package simulation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers"
	"github.com/example/memcached-operator/internal/testing/manifest"
)

// world is a namespace with one Memcached, an operator that reconciles it, and simulated controllers and kubelets.
type world struct {
	testing.TB
	ctx    context.Context
	server *server
	policy string        // of the namespace
	api    client.Client // of users, controllers and kubelets
	key    types.NamespacedName

	connection *connection
	reconciler *controllers.MemcachedReconciler
	release    int
	queue      *queue
	onEvents   bool           // the operator reconciles only when its queue says so; otherwise each round
	lags       map[string]int // by how many states the informer cache lags behind, by kind
	folds      map[string]int // of how many rounds the changes become one event, by kind
	delivered  map[string]int // which state of the history the informer cache holds, by kind
	rounds     int
	agents     *agents
	// refusedFrom is the first of some reconciles in which a policy refuses all children; 0 for none.
	refusedFrom int
	// Until the history has more than stuckUntil states, the informer cache does not update the kinds that are late.
	stuckUntil int

	// history are the states after each step of the operator, and after each of all others; the last one is current.
	history    []state
	time       time.Time
	reconciles int
	limit      int // the most reconciles

	dirty            map[string]bool // the kinds that were written since the last observation
	becomesAvailable bool            // a pod is ready, and will be available soon
	drained          time.Time       // when the servers that drain stop by themselves; zero for none
	outlived         bool            // servers have drained until then, after the Memcached was gone
	mayStall         bool            // the Memcached may be Stalled
	nextIP           int
	started          map[string]int // the number of pods, by component
	terminatingSince map[types.UID]time.Time
}

// state holds the objects of the namespace, by kind.
type state map[string][]client.Object

var lists = []client.ObjectList{&v1alpha1.MemcachedList{}, &appsv1.DeploymentList{}, &appsv1.StatefulSetList{},
	&appsv1.ReplicaSetList{}, &corev1.ServiceList{}, &corev1.ConfigMapList{}, &networkingv1.NetworkPolicyList{},
	&policyv1.PodDisruptionBudgetList{}, &corev1.PodList{}, &corev1.SecretList{}}

func newWorld(t testing.TB, s *server, policy string) *world {
	t.Helper()
	w := &world{TB: t, ctx: t.Context(), server: s, policy: policy,
		connection: &connection{next: s.operator, refusing: s.refused, sent: map[int]bool{}},
		time:       time.Now().Truncate(time.Second),
		delivered:  map[string]int{}, limit: 300, started: map[string]int{}, terminatingSince: map[types.UID]time.Time{}}
	w.api = interceptor.NewClient(s.api, w.noting())
	w.agents = &agents{world: w, asked: map[string]int{}, askedIn: map[int]bool{}, stopped: map[string]bool{},
		loaded: map[types.UID]proxyList{}}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "crash-",
		Labels: map[string]string{policyLabel: policy}}}
	w.must(s.api.Create(w.ctx, ns))
	w.key = types.NamespacedName{Namespace: ns.Name, Name: "cache"}
	w.start(1)
	w.observe()
	for _, watch := range w.reconciler.Watches() {
		w.delivered[kindOf(watch.Object)] = 0
	}
	t.Cleanup(w.cleanUp)
	return w
}

// cleanUp deletes what the run leaves behind: there are only so many addresses for Services.
func (w *world) cleanUp() {
	w.ctx = context.Background() // that of the test is canceled
	for _, objects := range w.now() {
		for _, obj := range objects {
			if len(obj.GetFinalizers()) > 0 {
				w.must(client.IgnoreNotFound(w.api.Patch(w.ctx, obj.DeepCopyObject().(client.Object),
					client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))))
			}
			w.must(client.IgnoreNotFound(w.api.Delete(w.ctx, obj, client.GracePeriodSeconds(0))))
		}
	}
	*w = world{} // the package testing keeps w until all tests of the scenario have ended
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// noting returns functions of a client that note which kinds were written. After a deletion, the garbage collector may
// write all kinds, and may have done so before anybody looks.
func (w *world) noting() interceptor.Funcs {
	note := func(obj runtime.Object) { w.dirty[kindOf(obj)] = true }
	return interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			note(obj)
			return c.Create(ctx, obj, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			note(obj)
			return c.Update(ctx, obj, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch,
			opts ...client.PatchOption) error {
			err := c.Patch(ctx, obj, patch, opts...)
			if !slices.Contains(opts, client.PatchOption(client.DryRunAll)) && !apierrors.IsInvalid(err) {
				note(obj)
			}
			return err
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			for _, list := range lists {
				w.dirty[itemKind(list)] = true
			}
			return c.Delete(ctx, obj, opts...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, obj client.Object,
			opts ...client.SubResourceUpdateOption) error {
			note(obj)
			return c.SubResource(sub).Update(ctx, obj, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch,
			opts ...client.SubResourcePatchOption) error {
			if !slices.Contains(opts, client.SubResourcePatchOption(client.DryRunAll)) {
				note(obj)
			}
			return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
		},
	}
}

func (w *world) clock() time.Time { return w.time }

// now is the current state.
func (w *world) now() state { return w.history[len(w.history)-1] }

// observe adds the current state to the history, once the garbage collector has done its work: it is the only one that
// works at any time. A late cache may show what was read before that.
func (w *world) observe() {
	w.Helper()
	s := w.read(len(w.history) == 0)
	if garbageOf(s) != "" {
		w.history = append(w.history, s)
	}
	for deadline := time.Now().Add(time.Minute); garbageOf(s) != ""; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatalf("the garbage collector does nothing: %s", garbageOf(s))
		}
		s = w.read(true)
	}
	w.dirty = map[string]bool{}
	w.history = append(w.history, s)
}

// read reads the objects of the kinds that were written, or of all. The others are as before.
func (w *world) read(all bool) state {
	w.Helper()
	s := state{}
	if len(w.history) > 0 {
		s = maps.Clone(w.now())
	}
	for _, list := range lists {
		kind := itemKind(list)
		if !all && !w.dirty[kind] {
			continue
		}
		list = list.DeepCopyObject().(client.ObjectList)
		w.must(w.api.List(w.ctx, list, client.InNamespace(w.key.Namespace)))
		s[kind] = nil
		w.must(meta.EachListItem(list, func(obj runtime.Object) error {
			s[kind] = append(s[kind], obj.(client.Object))
			return nil
		}))
	}
	return s
}

// itemKind returns the kind of the items of a list.
func itemKind(list client.ObjectList) string { return strings.TrimSuffix(kindOf(list), "List") }

// memcached returns the Memcached; nil for none.
func (s state) memcached() *v1alpha1.Memcached {
	for _, obj := range s["Memcached"] {
		if obj.GetName() == "cache" {
			return obj.(*v1alpha1.Memcached)
		}
	}
	return nil
}

// status returns the status of the Memcached; an empty one if there is none.
func (s state) status() (status v1alpha1.MemcachedStatus) {
	if mc := s.memcached(); mc != nil {
		status = mc.Status
	}
	return status
}

// noDeadline is a delay after which the operator would only report or give up something.
const noDeadline = 5 * time.Minute

// settle reconciles until nothing changes any more.
func (w *world) settle() {
	w.Helper()
	w.observe() // what the test has changed
	most := 0
	for _, n := range slices.Concat(slices.Collect(maps.Values(w.lags)), slices.Collect(maps.Values(w.folds))) {
		most = max(most, n)
	}
	var err error
	for idle := 0; idle < 3+most; {
		wrote := false
		w.deliver()
		reconciles := w.queue.take() || !w.onEvents
		wroteStatus := false
		if reconciles {
			wrote, err = w.reconcile()
			before := w.now()
			w.observe()
			w.checkBudget(before)
			wroteStatus = !equality.Semantic.DeepEqual(before.status(), w.now().status())
		}
		w.checkStalled()
		if err == nil && !w.connection.hit || wroteStatus { // otherwise the status may still be the one from before
			w.checkReady()
		}
		switch {
		case w.step(), wrote:
			idle = 0
			w.observe()
		default:
			idle++
			w.observe()
			if next := w.queue.next; next != nil && next.After(w.time) && next.Before(w.time.Add(noDeadline)) {
				w.time = *next
			}
		}
		if idle == 3+most && !w.drained.IsZero() { // the servers stop although nobody told them to
			if w.now().memcached() != nil {
				w.Fatalf("the operator does not let servers stop")
			}
			idle, w.outlived = 0, true
			if w.time.Before(w.drained) {
				w.time = w.drained
			}
		}
		isDisturbed := w.connection.refused && w.connection.wasRefused || w.agents.silent() && w.agents.wereSilent
		if w.isStuck() || reconciles && isDisturbed { // this will end
			idle = 0
		}
		w.time = w.time.Add(time.Second)
		if w.reconciles > w.limit {
			w.Fatalf("after %d reconciles, the operator still has something to do: %v, last requests\n%s", w.reconciles, err,
				strings.Join(w.connection.requests[max(0, len(w.connection.requests)-20):], "\n"))
		}
	}
}

// create creates a Memcached with this spec.
func (w *world) create(spec string) {
	w.Helper()
	mc := manifest.Parse(w.TB, manifest.Named(w.key.Name, spec))
	mc.Namespace = w.key.Namespace
	w.must(w.api.Create(w.ctx, mc))
}

// patch changes the Memcached as a user would.
func (w *world) patch(json string) {
	w.Helper()
	mc := &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: w.key.Name}}
	w.must(w.api.Patch(w.ctx, mc, client.RawPatch(types.MergePatchType, []byte(json)), client.FieldOwner("user")))
}

// object returns the metadata of an object in the namespace.
func (w *world) object(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: w.key.Namespace, Name: name}
}

// ready returns an error unless the Memcached is Ready.
func (w *world) ready() error {
	mc := w.now().memcached()
	if mc == nil {
		return errors.New("there is no Memcached")
	}
	if !meta.IsStatusConditionTrue(mc.Status.Conditions, v1alpha1.ConditionReady) ||
		mc.Status.ObservedGeneration != mc.Generation || len(mc.Status.Nodes) != int(*mc.Spec.Size) {
		return fmt.Errorf("the Memcached is not Ready: %+v", mc.Status)
	}
	return nil
}
