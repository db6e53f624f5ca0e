package controllers

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
	"github.com/example/memcached-operator/internal/testing/apiserver"
	"github.com/example/memcached-operator/internal/testing/manifest"
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
	return client.NewWithWatch(config, client.Options{Scheme: scheme})
}

var environment = newEnvironment()

func newEnvironment() *envtest.Environment { return apiserver.New("..", "config/crd/bases") }

func TestMain(m *testing.M) {
	flag.Parse()
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

// fixture is a reconciler that uses a real API server, with one Memcached in a namespace of its own.
type fixture struct {
	*testing.T
	ctx    context.Context
	api    client.WithWatch
	r      *MemcachedReconciler
	mc     *v1alpha1.Memcached
	events *events.FakeRecorder

	requests []string                 // of the last reconcile, such as "apply Service"; no reads of the informer cache
	failures map[string]error         // the response to a request, such as "apply Service" or "patch Pod cache-0"
	cached   map[string]client.Object // what the cache shows instead of the current object, by kind; nil for no object
	report   contract.Report          // of all agents
	items    map[string]int64         // that servers report, by the addresses of their pods
	flushed  []string                 // servers that have dropped their items
	silent   bool                     // no agent answers
	stopped  []string                 // the addresses of servers that may stop
	now      time.Time
}

// newFixture creates a Memcached with three servers.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureOf(t, "{size: 3}")
}

// newFixtureOf creates a Memcached with this spec.
func newFixtureOf(t *testing.T, spec string) *fixture {
	t.Helper()
	apiserver.Need(t)
	t.Parallel()
	api, err := apiServer()
	if err != nil {
		t.Fatal(err)
	}
	return newFixtureOn(t, api, spec)
}

// newFixtureOn creates a Memcached with this spec on another API server.
func newFixtureOn(t *testing.T, api client.WithWatch, spec string) *fixture {
	t.Helper()
	f := &fixture{T: t, ctx: t.Context(), api: api, now: time.Now(), events: events.NewFakeRecorder(100),
		cached: map[string]client.Object{}, failures: map[string]error{}}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	f.must(api.Create(f.ctx, ns))
	f.r = &MemcachedReconciler{
		Client: f.cacheClient(), APIReader: f.apiReader(), Recorder: f.events,
		Options: desired.Options{DefaultImage: "memcached:1", AgentImage: "operator:1", CanResize: true},
		Now:     func() time.Time { return f.now },
		AskAgent: func(_ context.Context, address string) (contract.Report, error) {
			if f.silent {
				return contract.Report{}, errors.New("no answer")
			}
			report := f.report
			host, _, _ := net.SplitHostPort(address)
			report.Items = f.items[host]
			for _, name := range f.flushed {
				if podIP(name) == host {
					report.Flushed = f.pod(name).Annotations[v1alpha1.FlushAnnotation]
				}
			}
			return report, nil
		},
	}
	f.r.StopServer = func(_ context.Context, address, token string) error {
		f.stopped = append(f.stopped, address+" "+token)
		return nil
	}
	f.mc = manifest.Parse(t, manifest.Named("cache", spec))
	f.mc.Namespace, f.mc.UID, f.mc.Generation, f.mc.Status = ns.Name, "", 0, v1alpha1.MemcachedStatus{}
	f.must(api.Create(f.ctx, f.mc))
	return f
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
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

// cacheClient reads as from the informer cache, which holds only objects with our labels, and writes to the API server.
func (f *fixture) cacheClient() client.Client {
	return interceptor.NewClient(f.api, interceptor.Funcs{
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
			err := c.List(ctx, list, client.InNamespace(f.mc.Namespace),
				client.MatchingLabels{names.LabelInstance: f.mc.Name, names.LabelManagedBy: names.Operator})
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
func (f *fixture) apiReader() client.Client {
	return interceptor.NewClient(f.api, interceptor.Funcs{
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
	result, err := f.r.Reconcile(f.ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(f.mc)})
	f.must(client.IgnoreNotFound(f.api.Get(f.ctx, client.ObjectKeyFromObject(f.mc), f.mc)))
	return result, err
}

func (f *fixture) mustReconcile() reconcile.Result {
	f.Helper()
	result, err := f.reconcile()
	f.must(err)
	return result
}

// get reads the child of a kind that has the name of the Memcached.
func get[O any, P interface {
	*O
	client.Object
}](f *fixture) P {
	f.Helper()
	obj := P(new(O))
	f.must(f.api.Get(f.ctx, client.ObjectKeyFromObject(f.mc), obj))
	return obj
}

// patch changes the Memcached as a user would.
func (f *fixture) patch(json string) {
	f.Helper()
	f.must(f.api.Patch(f.ctx, f.mc, client.RawPatch(types.MergePatchType, []byte(json))))
}

// setServersReady acts as the Deployment controller and the kubelets: all servers run, and some of them are ready.
func (f *fixture) setServersReady(ready int32) {
	f.Helper()
	d := get[appsv1.Deployment](f)
	n := *d.Spec.Replicas
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: n,
		ReadyReplicas: ready, AvailableReplicas: ready}
	f.must(f.api.Status().Update(f.ctx, d))
	f.deletePods()
	for i := range n {
		f.createPod(fmt.Sprintf("cache-%d", i), withTemplateHash(names.Servers.Labels(f.mc)), ownedByReplicaSet("cache"),
			i < ready)
	}
}

// setServers acts as the StatefulSet controller and the kubelets: the servers are these, by ordinal.
func (f *fixture) setServers(servers ...server) {
	f.Helper()
	set := get[appsv1.StatefulSet](f)
	f.deletePods()
	is := appsv1.StatefulSetStatus{ObservedGeneration: set.Generation, UpdateRevision: updated().template}
	t := set.Spec.Template.Spec.Containers[0]
	spec := corev1.PodSpec{Volumes: set.Spec.Template.Spec.Volumes, Containers: []corev1.Container{{Name: t.Name,
		Image: t.Image, Args: t.Args, Resources: t.Resources, Lifecycle: t.Lifecycle}}}
	owner := metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))
	for i, s := range servers {
		if s == missing {
			continue
		}
		name := fmt.Sprintf("cache-%d", i)
		labels := withRevision(s.template, names.Servers.Labels(f.mc))
		f.createPod(name, labels, []metav1.OwnerReference{*owner}, s.ready, spec)
		is.Replicas++
		if s.template == updated().template {
			is.UpdatedReplicas++
		} else {
			f.makeOutdated(name)
		}
		if s.ready {
			is.ReadyReplicas++
			is.AvailableReplicas++
		}
	}
	set.Status = is
	f.must(f.api.Status().Update(f.ctx, set))
}

// makeOutdated says that a server was created from an older template.
func (f *fixture) makeOutdated(name string) {
	f.Helper()
	f.must(f.api.Patch(f.ctx, f.pod(name), mergePatch(`{"metadata":{"annotations":{"`+v1alpha1.TemplateAnnotation+
		`":"old"}}}`)))
}

func (f *fixture) deletePods() {
	f.Helper()
	f.must(f.api.DeleteAllOf(f.ctx, &corev1.Pod{}, client.InNamespace(f.mc.Namespace), client.GracePeriodSeconds(0)))
}

// podIP is the address of a pod, by the last letter of its name.
func podIP(name string) string { return fmt.Sprintf("10.0.0.%d", name[len(name)-1]) }

func (f *fixture) pod(name string) *corev1.Pod {
	f.Helper()
	p := &corev1.Pod{}
	f.must(f.api.Get(f.ctx, f.key(name), p))
	return p
}

// createPod creates a pod that is not ready, or has been ready for an hour.
func (f *fixture) createPod(name string, labels map[string]string, owners []metav1.OwnerReference, ready bool,
	specs ...corev1.PodSpec) {
	f.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: f.mc.Namespace, Labels: labels,
		OwnerReferences: owners},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: names.Container, Image: "memcached"}}}}
	if set := (&appsv1.StatefulSet{}); f.api.Get(f.ctx, f.key(f.mc.Name), set) == nil {
		p.Annotations = set.Spec.Template.Annotations
	}
	for _, spec := range specs {
		p.Spec = spec
	}
	if ready {
		p.Spec.NodeName = "node"
	}
	f.must(f.api.Create(f.ctx, p))
	if ready {
		p.Status.PodIP = podIP(name)
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(f.now.Add(-time.Hour))}}
		f.must(f.api.Status().Update(f.ctx, p))
	}
}

// ownedByReplicaSet returns the owner reference of a Deployment's pods, which have the labels of withTemplateHash.
func ownedByReplicaSet(deployment string) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: deployment + "-1", UID: "rs",
		Controller: ptr.To(true)}}
}

// withRevision adds the label that the controller of a StatefulSet gives to pods.
func withRevision(revision string, labels map[string]string) map[string]string {
	labels[appsv1.StatefulSetRevisionLabel] = revision
	return labels
}

func withTemplateHash(labels map[string]string) map[string]string {
	labels[appsv1.DefaultDeploymentUniqueLabelKey] = "1"
	return labels
}

func (f *fixture) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: f.mc.Namespace, Name: name}
}

func mergePatch(json string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(json)) }

// becomeReady creates the children of the Memcached, and makes it Ready.
func (f *fixture) becomeReady() {
	f.Helper()
	f.mustReconcile()
	f.setServersReady(3)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// restartOperator deletes what the operator keeps in memory.
func (f *fixture) restartOperator() { f.r.states = states{} }

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

// wantRequests compares the requests of the last reconcile, in order.
func (f *fixture) wantRequests(want ...string) {
	f.Helper()
	if !slices.Equal(f.requests, want) {
		f.Errorf("got requests %q, want %q", f.requests, want)
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
