package controllers

import (
	"context"
	"reflect"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
	"github.com/example/memcached-operator/tests/manifest"
)

// atRest is a Memcached of three servers that is ready, and a cache in memory that shows it and its children.
type atRest struct {
	mc       *v1alpha1.Memcached
	client   client.Client
	observed children.Observed
	pods     []corev1.Pod
	desired  []runtime.ApplyConfiguration
}

// childrenOf returns the children of a new Memcached.
func childrenOf(mc *v1alpha1.Memcached, secrets desired.Secrets) []runtime.ApplyConfiguration {
	return desired.NewPlan(mc, desired.Resolve(mc, desired.Current{Secrets: secrets}, benchOptions)).Children
}

var benchOptions = desired.Options{DefaultImage: "memcached:1", AgentImage: "operator:1"}

func newAtRest(b *testing.B) *atRest {
	b.Helper()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	r := &atRest{mc: manifest.Parse(b, manifest.Named("cache", "{size: 3}")), observed: children.Observed{}}
	r.mc.Generation, r.mc.Finalizers = 1, []string{v1alpha1.Finalizer}
	configs := func() []runtime.ApplyConfiguration { return childrenOf(r.mc, desired.Secrets{}) }
	r.desired = configs()

	// What the API server would make of the children, with its record of field ownership.
	server := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithReturnManagedFields().Build()
	for _, config := range configs() { // which the answers are read into
		must(server.Apply(b.Context(), config, client.FieldOwner(names.Operator)))
	}
	set := childSet(server, server)
	set.Owner = owner(r.mc)
	for _, kind := range childKinds {
		must(client.IgnoreNotFound(set.LookUp(b.Context(), children.Key{Kind: kind.Kind, Name: "cache"},
			r.observed)))
	}
	for _, obj := range r.observed {
		if d, ok := obj.(*appsv1.Deployment); ok {
			d.Generation = 1
			d.Status = appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 3, UpdatedReplicas: 3, ReadyReplicas: 3,
				AvailableReplicas: 3}
		}
	}
	for _, name := range []string{"cache-1", "cache-2", "cache-3"} {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: r.mc.Namespace,
			Labels: podLabels(names.Servers.Labels(r.mc)), OwnerReferences: byReplicaSet("cache")}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		r.pods = append(r.pods, pod)
	}
	r.client = interceptor.NewClient(server, interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, obj client.Object,
			_ ...client.GetOption) error {
			r.mc.DeepCopyInto(obj.(*v1alpha1.Memcached))
			return nil
		},
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
			if pods, ok := list.(*corev1.PodList); ok {
				pods.Items = r.pods
				return nil
			}
			items := reflect.ValueOf(list).Elem().FieldByName("Items")
			for _, obj := range r.observed {
				if reflect.TypeOf(obj).Elem() == items.Type().Elem() {
					items.Set(reflect.Append(items, reflect.ValueOf(obj).Elem()))
				}
			}
			return nil
		},
		SubResourcePatch: func(_ context.Context, _ client.Client, _ string, obj client.Object, _ client.Patch,
			_ ...client.SubResourcePatchOption) error {
			obj.(*v1alpha1.Memcached).Status.DeepCopyInto(&r.mc.Status)
			return nil
		},
	})
	return r
}

// BenchmarkReconcile is a reconcile that changes nothing.
func BenchmarkReconcile(b *testing.B) {
	w := newAtRest(b)
	r := &MemcachedReconciler{Client: w.client, APIReader: w.client, Recorder: events.NewFakeRecorder(10),
		Options: benchOptions, Now: time.Now}
	req := request(w.mc.Namespace, w.mc.Name)
	for range 2 { // the first writes the status
		if _, err := r.Reconcile(b.Context(), req); err != nil || w.mc.Status.Phase != v1alpha1.PhaseReady {
			b.Fatalf("not ready: %v, %+v", err, w.mc.Status)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Reconcile(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDesired builds the children of an object.
func BenchmarkDesired(b *testing.B) {
	w := newAtRest(b)
	b.ReportAllocs()
	for b.Loop() {
		childrenOf(w.mc, desired.Secrets{})
	}
}

// BenchmarkCompare finds that nothing differs.
func BenchmarkCompare(b *testing.B) {
	w := newAtRest(b)
	b.ReportAllocs()
	for b.Loop() {
		set := childSet(w.client, w.client)
		set.Owner, set.State = owner(w.mc), &children.State{}
		changes, err := set.Compare(b.Context(), w.desired, nil, w.observed, false)
		if err != nil || len(changes) > 0 {
			b.Fatalf("%v, %v", changes, err)
		}
	}
}

// BenchmarkStatus computes the status of an object that is ready.
func BenchmarkStatus(b *testing.B) {
	w := newAtRest(b)
	o := status.Observed{Pods: w.pods,
		Workload: status.Read(w.observed[children.Key{Kind: "Deployment", Name: "cache"}], w.pods...)}
	b.ReportAllocs()
	for b.Loop() {
		status.Compute(w.mc, o, time.Now())
	}
}
