package controllers

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
	"github.com/example/memcached-operator/controllers/steps"
	"github.com/example/memcached-operator/internal/testing/apiserver"
	"github.com/example/memcached-operator/internal/testing/manifest"
	"github.com/example/memcached-operator/internal/testing/simulator"
)

// apiServer starts a real API server on first use. No controllers run beside it: the tests simulate them, and the
// informer cache.
var apiServer = sync.OnceValues(func() (client.WithWatch, error) { return startAPIServer(environment) })

func startAPIServer(environment *envtest.Environment) (client.WithWatch, error) {
	if _, err := apiserver.Programs(); err != nil {
		return nil, err
	}
	config, err := environment.Start()
	if err != nil {
		return nil, fmt.Errorf("start the API server: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	api, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	return api, simulator.CreateNode(context.Background(), api)
}

var environment = newEnvironment("10.0.0.0/16")

func newEnvironment(services string) *envtest.Environment {
	environment := apiserver.New("..", "config/crd/bases")
	environment.ControlPlane.GetAPIServer().Configure().Set("service-cluster-ip-range", services)
	return environment
}

func TestMain(m *testing.M) {
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	// The tests wait for the API server most of the time, so more of them can run at a time than there are processors.
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set("8")
	}
	code := m.Run()
	if err := environment.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// fixture is a reconciler that uses a real API server, with one Memcached in a namespace of its own, whose controllers,
// kubelets and agents are simulated.
type fixture struct {
	*simulator.Cluster
	r        *MemcachedReconciler
	mc       *v1alpha1.Memcached
	events   *events.FakeRecorder
	state    simulator.State // as the controllers see it
	versions string          // of the state in which they acted last

	requests []string                 // of the last reconcile, such as "apply Service"; no reads of the informer cache
	failures map[string]error         // the response to a request, such as "apply Service" or "patch Pod cache-0"
	cached   map[string]client.Object // what the cache shows instead of the current object, by kind; nil for no object
	silent   bool                     // no agent answers
	now      time.Time
	skew     time.Duration // of the operator's clock
}

// The specs of most tests.
const (
	onDeployment  = "{size: 3}"
	onStatefulSet = "{size: 3, workload: StatefulSet}"
	withProxy     = "{size: 2, workload: StatefulSet, metrics: {}, proxy: {size: 1}}"
)

// newFixture creates a Memcached with this spec.
func newFixture(t *testing.T, spec string) *fixture {
	t.Helper()
	apiserver.Need(t)
	t.Parallel()
	return newFixtureIn(t, spec)
}

// newFixtureIn creates a Memcached with this spec for a test that has others.
func newFixtureIn(t *testing.T, spec string) *fixture {
	t.Helper()
	api, err := apiServer()
	if err != nil {
		t.Fatal(err)
	}
	return newFixtureOn(t, api, spec)
}

// ready creates a Memcached with this spec, which becomes Ready.
func ready(t *testing.T, spec string) *fixture {
	t.Helper()
	f := newFixture(t, spec)
	f.settle()
	f.wantReady()
	return f
}

// newFixtureOn creates a Memcached with this spec on another API server.
func newFixtureOn(t *testing.T, api client.WithWatch, spec string) *fixture {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	if err := api.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	f := &fixture{now: time.Now(), events: events.NewFakeRecorder(1000), cached: map[string]client.Object{},
		failures: map[string]error{}}
	f.Cluster = simulator.New(t, api, types.NamespacedName{Namespace: ns.Name, Name: "cache"},
		func() time.Time { return f.now }, func() simulator.State { return f.state })
	f.Agents.Silent = func() bool { return f.silent }
	f.Agents.WasReady = status.Installed
	f.r = &MemcachedReconciler{
		Client: f.cacheClient(api), APIReader: f.apiReader(api), Recorder: f.events,
		Now:      func() time.Time { return f.now.Add(f.skew) },
		Options:  desired.Options{DefaultImage: "memcached:1", AgentImage: "operator:1", CanResize: true},
		AskAgent: f.Agents.Ask, StopServer: f.Agents.Stop,
	}
	f.mc = manifest.Parse(t, manifest.Named("cache", spec))
	f.mc.Namespace, f.mc.UID, f.mc.Generation, f.mc.Status = ns.Name, "", 0, v1alpha1.MemcachedStatus{}
	f.Must(f.API.Create(f.Ctx, f.mc))
	return f
}

// forbidden returns the API server's response to a request that it denies.
func forbidden(cause string) error {
	return apierrors.NewForbidden(schema.GroupResource{}, "cache", errors.New(cause))
}

// record adds a request to requests, and returns the failure for it.
func (f *fixture) record(request, name string) error {
	f.requests = append(f.requests, request)
	return cmp.Or(f.failures[request], f.failures[request+" "+name])
}

// has reports whether the last reconcile sent a request with this beginning; with "", one that writes.
func (f *fixture) has(request string) bool {
	return slices.ContainsFunc(f.requests, func(r string) bool {
		verb, _, _ := strings.Cut(r, " ")
		return strings.HasPrefix(r, request) && (request != "" || !slices.Contains([]string{"get", "list", "dry-run"}, verb))
	})
}

// cacheClient reads as from the informer cache, which holds only objects with our labels, and writes to the API server.
func (f *fixture) cacheClient(api client.WithWatch) client.Client {
	return interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object,
			_ ...client.GetOption) error {
			kind := reflect.TypeOf(obj).Elem().Name()
			if old, ok := f.cached[kind]; ok {
				if old == nil {
					return apierrors.NewNotFound(schema.GroupResource{Resource: kind}, key.Name)
				}
				reflect.ValueOf(obj).Elem().Set(reflect.ValueOf(old.DeepCopyObject()).Elem())
				return nil
			}
			return c.Get(ctx, key, obj)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
			err := c.List(ctx, list, client.InNamespace(f.Key.Namespace),
				client.MatchingLabels{v1alpha1.NameLabel: f.Key.Name, names.LabelManagedBy: names.Operator})
			if err != nil {
				return err
			}
			if pods, ok := list.(*corev1.PodList); ok {
				for i := range pods.Items {
					pods.Items[i] = *status.StripPod(&pods.Items[i])
				}
			}
			return f.replaceCached(list)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch,
			opts ...client.SubResourcePatchOption) error {
			if err := f.record("patch "+sub, obj.GetName()); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			verb := "create "
			if slices.Contains(opts, client.CreateOption(client.DryRunAll)) {
				verb = "dry-run "
			}
			if err := f.record(verb+reflect.TypeOf(obj).Elem().Name(), obj.GetName()); err != nil {
				return err
			}
			return c.Create(ctx, obj, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch,
			opts ...client.PatchOption) error {
			verb := "patch "
			if patch.Type() == types.ApplyPatchType {
				verb = "apply "
			}
			if slices.Contains(opts, client.PatchOption(client.DryRunAll)) {
				verb = "dry-run "
			}
			if err := f.record(verb+reflect.TypeOf(obj).Elem().Name(), obj.GetName()); err != nil {
				return err
			}
			return c.Patch(ctx, obj, patch, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			if err := f.record("delete "+reflect.TypeOf(obj).Elem().Name(), obj.GetName()); err != nil {
				return err
			}
			return c.Delete(ctx, obj, opts...)
		},
	})
}

// replaceCached replaces the items of a list with what the cache shows instead.
func (f *fixture) replaceCached(list client.ObjectList) error {
	items, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	kind := strings.TrimSuffix(reflect.TypeOf(list).Elem().Name(), "List")
	if old, ok := f.cached[kind]; ok {
		items = nil
		if old != nil {
			items = append(items, old.DeepCopyObject())
		}
	}
	return meta.SetList(list, items)
}

// apiReader reads from the API server.
func (f *fixture) apiReader(api client.WithWatch) client.Client {
	return interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object,
			opts ...client.GetOption) error {
			kind := obj.GetObjectKind().GroupVersionKind().Kind // empty, unless obj is PartialObjectMetadata
			if err := f.record("get "+cmp.Or(kind, reflect.TypeOf(obj).Elem().Name()), key.Name); err != nil {
				return err
			}
			return c.Get(ctx, key, obj, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			kind := strings.TrimSuffix(reflect.TypeOf(list).Elem().Name(), "List")
			if err := f.record("list "+kind, ""); err != nil {
				return err
			}
			return c.List(ctx, list, opts...)
		},
	})
}

// reconcile reconciles once, and reads the Memcached again if it still exists.
func (f *fixture) reconcile() (reconcile.Result, error) {
	f.Helper()
	f.requests = nil
	if f.mc.Spec.Proxy != nil || f.mc.Spec.Metrics != nil {
		f.observe() // for the agents
	}
	result, err := f.r.Reconcile(f.Ctx, reconcile.Request{NamespacedName: f.Key})
	f.Must(client.IgnoreNotFound(f.API.Get(f.Ctx, f.Key, f.mc)))
	return result, err
}

func (f *fixture) mustReconcile() reconcile.Result {
	f.Helper()
	result, err := f.reconcile()
	f.Must(err)
	return result
}

// reconcileError reconciles, and fails unless that returns an error with a text.
func (f *fixture) reconcileError(text string) {
	f.Helper()
	if _, err := f.reconcile(); err == nil || !strings.Contains(err.Error(), text) {
		f.Errorf("got error %v, want one with %q", err, text)
	}
}

// observe reads the state that the controllers see, of the kinds that the Memcached uses. It returns a text that
// changes with it.
func (f *fixture) observe() (versions string) {
	f.Helper()
	f.state = simulator.State{kindMemcached: {f.mc}}
	lists := []client.ObjectList{&corev1.PodList{}}
	if f.mc.Spec.Workload == v1alpha1.WorkloadStatefulSet {
		lists = append(lists, &appsv1.StatefulSetList{})
	}
	if f.mc.Spec.Proxy != nil {
		lists = append(lists, &corev1.ConfigMapList{})
	}
	if len(lists) != 2 {
		lists = append(lists, &appsv1.DeploymentList{}, &appsv1.ReplicaSetList{})
	}
	for _, list := range lists {
		f.Must(f.API.List(f.Ctx, list, client.InNamespace(f.Key.Namespace)))
		kind := strings.TrimSuffix(reflect.TypeOf(list).Elem().Name(), "List")
		f.Must(meta.EachListItem(list, func(obj runtime.Object) error {
			f.state[kind] = append(f.state[kind], obj.(client.Object))
			versions += " " + obj.(client.Object).GetResourceVersion()
			return nil
		}))
	}
	return versions
}

// act lets the controllers and the kubelets act. It reports whether anything has changed since they last did.
func (f *fixture) act() bool {
	f.Helper()
	before := f.versions
	f.versions = f.observe()
	f.Step()
	f.now = f.now.Add(steps.Pace)
	return f.BecomesAvailable || f.versions != before
}

// round lets the operator reconcile, and then the others act. It reports whether anybody has changed something.
func (f *fixture) round() bool {
	f.Helper()
	f.mustReconcile()
	wrote := f.has("")
	return f.act() || wrote
}

// isReady reports whether the Memcached is Ready with its present spec.
func (f *fixture) isReady() bool {
	return meta.IsStatusConditionTrue(f.mc.Status.Conditions, v1alpha1.ConditionReady) &&
		f.mc.Status.ObservedGeneration == f.mc.Generation
}

// settle does rounds until nothing changes any more.
func (f *fixture) settle() {
	f.Helper()
	for idle, n := 0, 0; idle < 2 || idle < 4 && !f.isReady(); n++ {
		if n > 200 {
			f.Fatalf("each reconcile changes something, the last one by %q", f.requests)
		}
		wait := f.mustReconcile().RequeueAfter
		switch wrote := f.has(""); {
		case f.act() || wrote:
			idle = 0
		case wait < 5*time.Minute: // otherwise it is a deadline
			f.now = f.now.Add(wait)
			fallthrough
		default:
			idle++
		}
	}
}

// until does rounds until a condition holds, at most 100.
func (f *fixture) until(what string, holds func() bool) {
	f.Helper()
	for n := 0; !holds(); n++ {
		if n == 100 {
			f.Fatalf("after %d reconciles: not %s: %+v", n, what, f.mc.Status)
		}
		f.round()
	}
}

// get reads the child of a kind that has the name of the Memcached.
func get[O any, P interface {
	*O
	client.Object
}](f *fixture) P {
	f.Helper()
	return getNamed[O, P](f, f.Key.Name)
}

func getNamed[O any, P interface {
	*O
	client.Object
}](f *fixture, name string) P {
	f.Helper()
	obj := P(new(O))
	f.Must(f.API.Get(f.Ctx, f.key(name), obj))
	return obj
}

// exists reports whether there is an object with the name and the kind of this one, which it reads.
func (f *fixture) exists(name string, obj client.Object) bool {
	f.Helper()
	err := f.API.Get(f.Ctx, f.key(name), obj)
	f.Must(client.IgnoreNotFound(err))
	return err == nil
}

func (f *fixture) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: f.Key.Namespace, Name: name}
}

// user changes the Memcached as a user would, by a merge patch.
func (f *fixture) user(json string) {
	f.Helper()
	f.Must(f.API.Patch(f.Ctx, f.mc, client.RawPatch(types.MergePatchType, []byte(json))))
}

// set changes fields of the spec.
func (f *fixture) set(json string) {
	f.Helper()
	f.user(`{"spec":` + json + `}`)
}

// annotate sets an annotation of the Memcached; "" removes it.
func (f *fixture) annotate(key, value string) {
	f.Helper()
	text := "null"
	if value != "" {
		text = strconv.Quote(value)
	}
	f.user(fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, key, text))
}

// restartOperator deletes what the operator keeps in memory.
func (f *fixture) restartOperator() { f.r.states = states{} }

// pods returns those of a component, by name; of all for "".
func (f *fixture) pods(component string) (list []*corev1.Pod) {
	f.Helper()
	f.observe()
	for _, obj := range f.state["Pod"] {
		if component == "" || obj.GetLabels()[v1alpha1.ComponentLabel] == component {
			list = append(list, obj.(*corev1.Pod))
		}
	}
	if len(list) == 0 { // a loop over them would test nothing
		f.Fatal("there is no pod")
	}
	return list
}

func (f *fixture) pod(name string) *corev1.Pod {
	f.Helper()
	return getNamed[corev1.Pod](f, name)
}

// collectPods acts as the garbage collector: it deletes all ReplicaSets and pods.
func (f *fixture) collectPods() {
	f.Helper()
	for _, obj := range []client.Object{&appsv1.ReplicaSet{}, &corev1.Pod{}} {
		f.Must(f.API.DeleteAllOf(f.Ctx, obj, client.InNamespace(f.Key.Namespace), client.GracePeriodSeconds(0)))
	}
}

// lose deletes a pod at once.
func (f *fixture) lose(name string) {
	f.Helper()
	f.Must(f.API.Delete(f.Ctx, &corev1.Pod{ObjectMeta: f.Object(name)}, client.GracePeriodSeconds(0)))
}

// setStatus changes the status of a pod as its kubelet would.
func (f *fixture) setStatus(name string, change func(*corev1.PodStatus)) {
	f.Helper()
	pod := f.pod(name)
	after := pod.Status.DeepCopy()
	change(after)
	f.WriteStatus(pod, *after)
}

// setReady makes a pod ready or not.
func (f *fixture) setReady(name string, ready bool) {
	f.Helper()
	f.setStatus(name, func(is *corev1.PodStatus) {
		is.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, LastTransitionTime: metav1.NewTime(f.now),
			Status: map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[ready]}}
	})
}

func (f *fixture) wantTemplate(want corev1.PodTemplateSpec) {
	f.Helper()
	if got := get[appsv1.Deployment](f).Spec.Template; !equality.Semantic.DeepEqual(got, want) {
		f.Errorf("got the template\n%+v\nwant\n%+v", got, want)
	}
}

func (f *fixture) wantCondition(conditionType string, want metav1.ConditionStatus, reason string) {
	f.Helper()
	c := meta.FindStatusCondition(f.mc.Status.Conditions, conditionType)
	if c == nil || c.Status != want || c.Reason != reason || c.ObservedGeneration != f.mc.Generation {
		f.Errorf("got %s %+v, want %s/%s of generation %d", conditionType, c, want, reason, f.mc.Generation)
	}
}

func (f *fixture) wantReady() {
	f.Helper()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.wantNotStalled()
}

// readyMessage returns the message of Ready.
func (f *fixture) readyMessage() string {
	if c := meta.FindStatusCondition(f.mc.Status.Conditions, v1alpha1.ConditionReady); c != nil {
		return c.Message
	}
	return ""
}

// wantNotReady fails unless Ready is False for this reason, with a message that has a text.
func (f *fixture) wantNotReady(reason, text string) {
	f.Helper()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, reason)
	f.wantMessage(v1alpha1.ConditionReady, text)
}

// wantStalled fails unless Stalled is True for this reason, with a message that has a text.
func (f *fixture) wantStalled(reason, text string) {
	f.Helper()
	f.wantCondition(v1alpha1.ConditionStalled, metav1.ConditionTrue, reason)
	f.wantMessage(v1alpha1.ConditionStalled, text)
}

func (f *fixture) wantNotStalled() {
	f.Helper()
	if c := meta.FindStatusCondition(f.mc.Status.Conditions, v1alpha1.ConditionStalled); c != nil {
		f.Errorf("got Stalled with %q, want no such condition", c.Message)
	}
}

// wantMessage fails unless the message of a condition contains a text.
func (f *fixture) wantMessage(conditionType, text string) {
	f.Helper()
	c := meta.FindStatusCondition(f.mc.Status.Conditions, conditionType)
	if c == nil || !strings.Contains(c.Message, text) {
		f.Errorf("got %s %+v, want a message with %q", conditionType, c, text)
	}
}

// wantRequests compares the requests of the last reconcile, in order.
func (f *fixture) wantRequests(want ...string) {
	f.Helper()
	if !slices.Equal(f.requests, want) {
		f.Errorf("got requests %q, want %q", f.requests, want)
	}
}

// wantBefore fails unless the last reconcile sent one request before another.
func (f *fixture) wantBefore(first, then string) {
	f.Helper()
	if i := slices.Index(f.requests, first); i < 0 || i > slices.Index(f.requests, then) {
		f.Errorf("got requests %q, want %s before %s", f.requests, first, then)
	}
}

// wantEvent discards events until one contains a text.
func (f *fixture) wantEvent(text string) {
	f.Helper()
	for len(f.events.Events) > 0 {
		if e := <-f.events.Events; strings.Contains(e, text) {
			return
		}
	}
	f.Errorf("got no event with %q", text)
}
