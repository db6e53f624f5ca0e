package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/tests/manifest"
)

// apiServer starts a real API server on first use. It has no controllers: the tests play them, and the cache.
var apiServer = sync.OnceValues(func() (client.WithWatch, error) {
	environment.CRDDirectoryPaths = []string{"../config/crd/bases"}
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		environment.BinaryAssetsDirectory, _ = filepath.Abs("../bin")
	}
	config, err := environment.Start()
	if err != nil {
		return nil, fmt.Errorf("start the API server (make test-unit builds it): %w", err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	return client.NewWithWatch(config, client.Options{Scheme: scheme})
})

var environment envtest.Environment

func TestMain(m *testing.M) {
	code := m.Run()
	if err := environment.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// fixture is a reconciler on a real API server, in a namespace of its own, with one Memcached.
type fixture struct {
	*testing.T
	ctx    context.Context
	api    client.WithWatch
	r      *MemcachedReconciler
	mc     *v1alpha1.Memcached
	events *events.FakeRecorder

	mutex    sync.Mutex               // children are written at the same time
	requests []string                 // of the last reconcile, except reads of the informer cache
	cached   map[string]client.Object // what the cache shows instead of the truth, by kind; nil for nothing
	fail     map[string]error         // what the API server answers to an apply of a kind, "get Kind", or "patch name"
	now      time.Time
}

// newFixture has a Memcached of size 3.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureOf(t, "{size: 3}")
}

func newFixtureOf(t *testing.T, spec string) *fixture {
	t.Helper()
	t.Parallel()
	api, err := apiServer()
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, ctx: t.Context(), api: api, now: time.Now(), events: events.NewFakeRecorder(100),
		cached: map[string]client.Object{}, fail: map[string]error{}}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	f.must(api.Create(f.ctx, ns))
	f.r = &MemcachedReconciler{
		Client: f.cache(), APIReader: f.live(), Recorder: f.events,
		Options: desired.Options{DefaultImage: "memcached:1", AgentImage: "operator:1"},
		Now:     func() time.Time { return f.now },
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

// request records a request, and returns the error that fail has for it.
func (f *fixture) request(name, failure string) error {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.requests = append(f.requests, name)
	return f.fail[failure]
}

// cache reads as the manager's cache does, from the labelled objects only, and writes to the API server.
func (f *fixture) cache() client.Client {
	return interceptor.NewClient(f.api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object,
			_ ...client.GetOption) error {
			kind := reflect.TypeOf(obj).Elem().Name()
			missing := apierrors.NewNotFound(schema.GroupResource{Resource: kind}, key.Name)
			if old, ok := f.cached[kind]; ok {
				if old == nil {
					return missing
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
			return f.showCached(list)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch,
			opts ...client.SubResourcePatchOption) error {
			if err := f.request("patch "+sub, sub); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch,
			opts ...client.PatchOption) error {
			kind, verb := reflect.TypeOf(obj).Elem().Name(), "patch "
			if patch.Type() == types.ApplyPatchType {
				verb = "apply "
			}
			if slices.Contains(opts, client.PatchOption(client.DryRunAll)) {
				verb = "ask "
			}
			failure := kind
			if verb == "patch " {
				failure = "patch " + obj.GetName()
			}
			if err := f.request(verb+kind, failure); err != nil {
				return err
			}
			return c.Patch(ctx, obj, patch, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			if err := f.request("delete "+reflect.TypeOf(obj).Elem().Name(), "delete"); err != nil {
				return err
			}
			return c.Delete(ctx, obj, opts...)
		},
	})
}

// showCached puts what the cache shows instead of the truth into a list.
func (f *fixture) showCached(list client.ObjectList) error {
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

// live reads from the API server.
func (f *fixture) live() client.Client {
	return interceptor.NewClient(f.api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object,
			opts ...client.GetOption) error {
			kind := obj.GetObjectKind().GroupVersionKind().Kind // of metadata alone
			request := "get " + cmp.Or(kind, reflect.TypeOf(obj).Elem().Name())
			if err := f.request(request, request); err != nil {
				return err
			}
			return c.Get(ctx, key, obj, opts...)
		},
	})
}

// reconcile runs the reconciler once and reads the Memcached anew, if it is still there.
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

// get reads the child of a type.
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

// roll plays the Deployment controller and the kubelets: all servers of the current Deployment run, ready of them are
// available.
func (f *fixture) roll(ready int32) {
	f.Helper()
	d := get[appsv1.Deployment](f)
	n := *d.Spec.Replicas
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: n,
		ReadyReplicas: ready, AvailableReplicas: ready}
	f.must(f.api.Status().Update(f.ctx, d))
	f.must(f.api.DeleteAllOf(f.ctx, &corev1.Pod{}, client.InNamespace(f.mc.Namespace), client.GracePeriodSeconds(0)))
	for i := range n {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("cache-%d", i), Namespace: f.mc.Namespace,
			Labels: podLabels(names.Servers.Labels(f.mc)), OwnerReferences: byReplicaSet("cache")}}
		p.Spec.Containers = []corev1.Container{{Name: names.Container, Image: "memcached"}}
		f.must(f.api.Create(f.ctx, p))
		if i < ready {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			f.must(f.api.Status().Update(f.ctx, p))
		}
	}
}

// byReplicaSet is the owner reference of pods of a Deployment, whose labels podLabels makes.
func byReplicaSet(deployment string) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: deployment + "-1", UID: "rs",
		Controller: ptr.To(true)}}
}

func podLabels(labels map[string]string) map[string]string {
	labels[appsv1.DefaultDeploymentUniqueLabelKey] = "1"
	return labels
}

// servers plays the StatefulSet controller and the kubelets: the servers are as setOf has them.
func (f *fixture) servers(servers ...string) {
	f.Helper()
	set := get[appsv1.StatefulSet](f)
	model, pods := setOf(int32(len(servers)), f.now, servers...)
	f.must(f.api.DeleteAllOf(f.ctx, &corev1.Pod{}, client.InNamespace(f.mc.Namespace), client.GracePeriodSeconds(0)))
	set.Status = model.Status
	set.Status.ObservedGeneration = set.Generation
	if !slices.ContainsFunc(servers, func(s string) bool { return strings.Contains(s, "new") }) && set.Generation == 1 {
		set.Status.UpdateRevision = "old"
	}
	for _, p := range pods {
		revision := p.Labels[appsv1.StatefulSetRevisionLabel]
		p.Namespace, p.Labels = f.mc.Namespace, names.Servers.Labels(f.mc)
		p.Labels[appsv1.StatefulSetRevisionLabel] = revision
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set,
			appsv1.SchemeGroupVersion.WithKind("StatefulSet"))}
		p.Spec.Containers = []corev1.Container{{Name: names.Container, Image: "memcached"}}
		conditions := p.Status.Conditions
		f.must(f.api.Create(f.ctx, &p))
		set.Status.Replicas++
		if revision == set.Status.UpdateRevision {
			set.Status.UpdatedReplicas++
		}
		if len(conditions) > 0 {
			p.Status.Conditions = conditions
			f.must(f.api.Status().Update(f.ctx, &p))
			set.Status.ReadyReplicas++
			set.Status.AvailableReplicas++
		}
	}
	f.must(f.api.Status().Update(f.ctx, set))
}

func (f *fixture) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: f.mc.Namespace, Name: name}
}

func mergePatch(json string) client.Patch { return client.RawPatch(types.MergePatchType, []byte(json)) }

// ready brings the Memcached from nothing to Ready.
func (f *fixture) ready() {
	f.Helper()
	f.mustReconcile()
	f.roll(3)
	f.mustReconcile()
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// restart deletes the state that the operator keeps in memory.
func (f *fixture) restart() { f.r.states = states{} }

func (f *fixture) wantTemplate(want corev1.PodTemplateSpec) {
	f.Helper()
	if got := get[appsv1.Deployment](f).Spec.Template; !equality.Semantic.DeepEqual(got, want) {
		f.Errorf("the template is\n%+v\nwant\n%+v", got, want)
	}
}

func (f *fixture) want(conditionType string, status metav1.ConditionStatus, reason string) {
	f.Helper()
	c := meta.FindStatusCondition(f.mc.Status.Conditions, conditionType)
	if c == nil || c.Status != status || c.Reason != reason || c.ObservedGeneration != f.mc.Generation {
		f.Errorf("%s is %+v, want %s/%s of generation %d", conditionType, c, status, reason, f.mc.Generation)
	}
}

// wantRequests compares the requests of the last reconcile. Children are written at the same time, in no order; the
// finalizer of the Memcached comes before them, or nothing of theirs would be sure to be cleaned up.
func (f *fixture) wantRequests(want ...string) {
	f.Helper()
	sorted := func(requests []string) (all []string) {
		write := func(r string) bool {
			return r != "apply Memcached" && (strings.HasPrefix(r, "apply ") || strings.HasPrefix(r, "delete "))
		}
		for i, r := range requests {
			if at := len(all); i > 0 && write(r) && write(requests[i-1]) {
				for at > 0 && write(all[at-1]) && all[at-1] > r {
					at--
				}
				all = slices.Insert(all, at, r)
				continue
			}
			all = append(all, r)
		}
		return all
	}
	if !slices.Equal(sorted(f.requests), sorted(want)) {
		f.Errorf("requests were %q, want %q", f.requests, want)
	}
}

func (f *fixture) wantEvent(part string) {
	f.Helper()
	for len(f.events.Events) > 0 {
		if e := <-f.events.Events; strings.Contains(e, part) {
			return
		}
	}
	f.Errorf("no event says %q", part)
}
