package simulation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers"
	"github.com/example/memcached-operator/internal/testing/manifest"
	"github.com/example/memcached-operator/internal/testing/simulator"
)

// world is a namespace with one Memcached, an operator that reconciles it, and simulated controllers and kubelets.
type world struct {
	*simulator.Cluster
	server *server
	policy string // of the namespace

	connection *connection
	reconciler *controllers.MemcachedReconciler
	release    int
	queue      *queue
	onEvents   bool           // the operator reconciles only when its queue says so; otherwise each round
	lags       map[string]int // by how many states the informer cache lags behind, by kind
	folds      map[string]int // of how many rounds the changes become one event, by kind
	delivered  map[string]int // which state of the history the informer cache holds, by kind
	rounds     int
	// refusedFrom is the first of some reconciles in which a policy refuses all children; 0 for none.
	refusedFrom int
	silentFrom  int          // the first of some reconciles in which no agent answers; 0 for none
	wereSilent  bool         // an agent has not answered
	asked       map[int]bool // the reconciles in which the operator asked agents
	// Until the history has more than stuckUntil states, the informer cache does not update the kinds that are late.
	stuckUntil int

	// history are the states after each step of the operator, and after each of all others; the last one is current.
	history    []state
	time       time.Time
	reconciles int
	limit      int // the most reconciles

	dirty    map[string]bool // the kinds that were written since the last observation
	outlived bool            // servers have drained until they stopped by themselves, after the Memcached was gone
	mayStall bool            // the Memcached may be Stalled
}

type state = simulator.State

var lists = []client.ObjectList{&v1alpha1.MemcachedList{}, &appsv1.DeploymentList{}, &appsv1.StatefulSetList{},
	&appsv1.ReplicaSetList{}, &corev1.ServiceList{}, &corev1.ConfigMapList{}, &networkingv1.NetworkPolicyList{},
	&policyv1.PodDisruptionBudgetList{}, &corev1.PodList{}, &corev1.SecretList{}}

func newWorld(t testing.TB, s *server, policy string) *world {
	t.Helper()
	w := &world{server: s, policy: policy,
		connection: &connection{sent: map[int]bool{}}, time: time.Now().Truncate(time.Second),
		delivered: map[string]int{}, limit: 300, asked: map[int]bool{}, dirty: map[string]bool{}}
	w.connection.next, w.connection.refusing = noting{s.operator, w}, noting{s.refused, w}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "crash-",
		Labels: map[string]string{policyLabel: policy}}}
	if err := s.api.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	api, err := s.client(noting{s.admin, w})
	if err != nil {
		t.Fatal(err)
	}
	w.Cluster = simulator.New(t, api,
		types.NamespacedName{Namespace: ns.Name, Name: "cache"}, func() time.Time { return w.time }, w.now)
	w.Agents.Silent, w.Agents.WasReady = w.isSilent, w.wasReady
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
	w.Ctx = context.Background() // that of the test is canceled
	for _, objects := range w.now() {
		for _, obj := range objects {
			if len(obj.GetFinalizers()) > 0 {
				w.Must(client.IgnoreNotFound(w.API.Patch(w.Ctx, obj.DeepCopyObject().(client.Object),
					client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))))
			}
			w.Must(client.IgnoreNotFound(w.API.Delete(w.Ctx, obj, client.GracePeriodSeconds(0))))
		}
	}
	*w = world{} // the package testing keeps w until all tests of the scenario have ended
}

// noting is a transport that notes which kinds were written. After a deletion, the garbage collector may write all
// kinds, and may have done so before anybody looks.
type noting struct {
	http.RoundTripper
	world *world
}

// RoundTrip implements http.RoundTripper.
func (n noting) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := n.RoundTripper.RoundTrip(r)
	w := n.world
	switch isRefused := err != nil || response.StatusCode == http.StatusUnprocessableEntity; {
	case r.Method == http.MethodDelete:
		for _, list := range lists {
			w.dirty[itemKind(list)] = true
		}
	case r.Method != http.MethodGet && r.URL.Query().Get("dryRun") == "" && !isRefused:
		_, resource, _ := strings.Cut(describe(r), " ")
		resource, _, _ = strings.Cut(resource, "/")
		gvk, err := w.server.mapper.KindFor(schema.GroupVersionResource{Resource: resource})
		w.dirty[gvk.Kind] = true
		return response, err
	}
	return response, err
}

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
		w.Must(w.API.List(w.Ctx, list, client.InNamespace(w.Key.Namespace)))
		s[kind] = nil
		w.Must(meta.EachListItem(list, func(obj runtime.Object) error {
			s[kind] = append(s[kind], obj.(client.Object))
			return nil
		}))
	}
	return s
}

// itemKind returns the kind of the items of a list.
func itemKind(list client.ObjectList) string { return strings.TrimSuffix(kindOf(list), "List") }

// statusOf returns the status of the Memcached; an empty one if there is none.
func statusOf(s state) (status v1alpha1.MemcachedStatus) {
	if mc := s.Memcached(); mc != nil {
		status = mc.Status
	}
	return status
}

// wasReady reports whether all servers of the Memcached were ready at some time.
func (w *world) wasReady(mc *v1alpha1.Memcached) bool {
	return slices.ContainsFunc(w.history, func(s state) bool {
		then := s.Memcached()
		return then != nil && then.UID == mc.UID &&
			meta.IsStatusConditionTrue(then.Status.Conditions, v1alpha1.ConditionReady)
	})
}

// isSilent notes that the operator asks an agent, and reports whether no agent answers.
func (w *world) isSilent() bool {
	isSilent := w.isWithin(w.silentFrom)
	w.asked[w.reconciles], w.wereSilent = true, w.wereSilent || isSilent
	return isSilent
}

// step does a round of the others. It reports whether anything was written, or a pod becomes available by itself.
func (w *world) step() bool {
	w.Helper()
	w.Slow = max(w.folds["Pod"], w.folds["ConfigMap"]) // each step of the operator takes that many times longer
	w.Step()
	return len(w.dirty) > 0 || w.BecomesAvailable
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
			wroteStatus = !equality.Semantic.DeepEqual(statusOf(before), statusOf(w.now()))
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
		if idle == 3+most && !w.Drained.IsZero() { // the servers stop although nobody told them to
			if w.now().Memcached() != nil {
				w.Fatalf("the operator does not let servers stop")
			}
			idle, w.outlived = 0, true
			if w.time.Before(w.Drained) {
				w.time = w.Drained
			}
		}
		isDisturbed := w.connection.refused && w.connection.wasRefused || w.isWithin(w.silentFrom) && w.wereSilent
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
	mc := manifest.Parse(w.TB, manifest.Named(w.Key.Name, spec))
	mc.Namespace = w.Key.Namespace
	w.Must(w.API.Create(w.Ctx, mc))
}

// patch changes the Memcached as a user would.
func (w *world) patch(json string) {
	w.Helper()
	mc := &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Namespace: w.Key.Namespace, Name: w.Key.Name}}
	w.Must(w.API.Patch(w.Ctx, mc, client.RawPatch(types.MergePatchType, []byte(json)), client.FieldOwner("user")))
}

// ready returns an error unless the Memcached is Ready.
func (w *world) ready() error {
	mc := w.now().Memcached()
	if mc == nil {
		return errors.New("there is no Memcached")
	}
	if !meta.IsStatusConditionTrue(mc.Status.Conditions, v1alpha1.ConditionReady) ||
		mc.Status.ObservedGeneration != mc.Generation || len(mc.Status.Nodes) != int(*mc.Spec.Size) {
		return fmt.Errorf("the Memcached is not Ready: %+v", mc.Status)
	}
	return nil
}
