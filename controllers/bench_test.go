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
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/internal/testing/manifest"
)

// readyMemcached is a Memcached with three servers that are ready, and a client that reads it and its children from
// memory.
type readyMemcached struct {
	mc       *v1alpha1.Memcached
	client   client.Client
	observed children.Observed
	pods     []corev1.Pod
}

// childrenOf returns the children of a new Memcached.
func childrenOf(mc *v1alpha1.Memcached, secrets desired.Secrets) []runtime.ApplyConfiguration {
	return desired.NewPlan(mc, desired.Resolve(mc, desired.Current{Secrets: secrets}, benchOptions)).Children
}

var benchOptions = desired.Options{DefaultImage: "memcached:1", AgentImage: "operator:1"}

func newReadyMemcached(b *testing.B) *readyMemcached {
	b.Helper()
	m := &readyMemcached{mc: manifest.Parse(b, manifest.Named("cache", "{size: 3}")), observed: children.Observed{}}
	m.mc.Generation, m.mc.Finalizers = 1, []string{v1alpha1.Finalizer}

	// The children as the API server would store them, with managedFields.
	server := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithReturnManagedFields().Build()
	for _, config := range childrenOf(m.mc, desired.Secrets{}) {
		harness.Must(b, server.Apply(b.Context(), config, client.FieldOwner(names.Operator)))
	}
	set := childSet(server, server)
	set.Owner = owner(m.mc)
	for _, kind := range childKinds {
		harness.Must(b, client.IgnoreNotFound(set.LookUp(b.Context(), children.Key{Kind: kind.Kind, Name: "cache"},
			m.observed)))
	}
	for _, obj := range m.observed {
		m.store(obj)
	}
	for _, name := range []string{"cache-1", "cache-2", "cache-3"} {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: m.mc.Namespace,
			Labels: names.Servers.Labels(m.mc), OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1",
				Kind: "ReplicaSet", Name: "cache-1", UID: "rs", Controller: ptr.To(true)}}}}
		pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = "1"
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		m.pods = append(m.pods, pod)
	}
	m.client = interceptor.NewClient(server, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object,
			options ...client.GetOption) error {
			switch o := obj.(type) {
			case *v1alpha1.Memcached:
				m.mc.DeepCopyInto(o)
			case *metav1.PartialObjectMetadata: // of the owner
				m.mc.ObjectMeta.DeepCopyInto(&o.ObjectMeta)
			default:
				return c.Get(ctx, key, obj, options...)
			}
			return nil
		},
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
			if pods, ok := list.(*corev1.PodList); ok {
				pods.Items = m.pods
				return nil
			}
			items := reflect.ValueOf(list).Elem().FieldByName("Items")
			for _, obj := range m.observed {
				if reflect.TypeOf(obj).Elem() == items.Type().Elem() {
					items.Set(reflect.Append(items, reflect.ValueOf(obj).Elem()))
				}
			}
			return nil
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch,
			options ...client.PatchOption) error {
			err := c.Patch(ctx, obj, patch, options...)
			m.store(obj)
			return err
		},
		SubResourcePatch: func(_ context.Context, _ client.Client, _ string, obj client.Object, _ client.Patch,
			_ ...client.SubResourcePatchOption) error {
			obj.(*v1alpha1.Memcached).Status.DeepCopyInto(&m.mc.Status)
			return nil
		},
	})
	return m
}

// store stores a child, with the status that its controller would write.
func (m *readyMemcached) store(obj client.Object) {
	if d, ok := obj.(*appsv1.Deployment); ok {
		d.Generation = 1
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 3, UpdatedReplicas: 3, ReadyReplicas: 3,
			AvailableReplicas: 3}
	}
	m.observed[children.Key{Kind: reflect.TypeOf(obj).Elem().Name(), Name: obj.GetName()}] = obj
}

// BenchmarkReconcile measures a reconcile that changes nothing.
func BenchmarkReconcile(b *testing.B) {
	m := newReadyMemcached(b)
	r := &MemcachedReconciler{Client: m.client, APIReader: m.client, Recorder: events.NewFakeRecorder(10),
		Options: benchOptions, Now: time.Now}
	req := request(m.mc.Namespace, m.mc.Name)
	for range 2 { // the first one writes the status
		if _, err := r.Reconcile(b.Context(), req); err != nil || m.mc.Status.Phase != v1alpha1.PhaseReady {
			b.Fatalf("got error %v and status %+v, want Ready", err, m.mc.Status)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Reconcile(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
}
