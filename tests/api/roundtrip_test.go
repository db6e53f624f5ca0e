package api

import (
	"encoding/json"
	"reflect"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
)

func TestScale(t *testing.T) {
	obj := memcached("")
	create(t, obj)
	obj.Object["status"] = map[string]any{"replicas": int64(1), "nodes": []any{"a"},
		"selector": "cache.example.com/name=x"}
	if err := c.Status().Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}

	typed := &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Namespace: obj.GetNamespace(), Name: obj.GetName()}}
	scale := &autoscalingv1.Scale{}
	if err := c.SubResource("scale").Get(t.Context(), typed, scale); err != nil {
		t.Fatal(err)
	}
	if scale.Spec.Replicas != 1 || scale.Status.Replicas != 1 || scale.Status.Selector != "cache.example.com/name=x" {
		t.Errorf("want the default size, the replicas and the selector, got %+v %+v", scale.Spec, scale.Status)
	}
	for _, size := range []int32{5, 0, 1000} {
		scale.Spec.Replicas = size
		if err := c.SubResource("scale").Update(t.Context(), typed, client.WithSubResourceBody(scale)); err != nil {
			t.Fatal(err)
		}
		if got, _, err := unstructured.NestedInt64(get(t, obj).Object, "spec", "size"); err != nil || got != int64(size) {
			t.Errorf("want size %d, got %d, %v", size, got, err)
		}
	}
	if got := get(t, obj).GetGeneration(); got != 4 {
		t.Errorf("want a new generation for each size, got generation %d", got)
	}
	for _, size := range []int32{-1, 1001} {
		scale.Spec.Replicas = size
		if err := c.SubResource("scale").Update(t.Context(), typed,
			client.WithSubResourceBody(scale)); !apierrors.IsInvalid(err) {
			t.Errorf("want size %d refused, got %v", size, err)
		}
	}
	if out, err := kubectl(t, "scale", "memcached/"+obj.GetName(), "--replicas=2"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestRoundTrip: the API server keeps a spec exactly as the user wrote it, and the operator's writes of the finalizer
// and of the status change neither the spec nor the generation.
func TestRoundTrip(t *testing.T) {
	const spec = `
size: 0
workload: StatefulSet
serverAddresses: ClusterIP
tls: {secretName: certificate, clientAuth: None, clientCA: {configMapName: clients}, minVersion: "1.2"}
auth: {secretName: passwords}
networkPolicy: {from: [{podSelector: {}}]}
memory: 1024Mi
maxItemSize: 1024Ki
maxConnections: 1024
threads: 4
containerPort: 11211
image: docker.io/library/memcached:1.6
extraArgs: []
paused: false
rollout: {maxUnavailable: 1, minReadySeconds: 0, progressDeadlineSeconds: 600}
labels: {}
annotations: {example.com/empty: ""}
disruptionBudget: {policy: Managed, maxUnavailable: 0, minAvailable: 50%}
service: {type: NodePort, labels: {}, annotations: {example.com/empty: ""}, ipFamilyPolicy: SingleStack}
pod:
  labels: {}
  annotations: {example.com/empty: ""}
  nodeSelector: {}
  priorityClassName: ""
  schedulerName: ""
  serviceAccountName: ""
  imagePullPolicy: IfNotPresent
  containerSecurityContext: {readOnlyRootFilesystem: false, capabilities: {drop: []}}
  resources:
    limits: {memory: 2147483648, cpu: "1.0", example.com/device: 1}
    requests: {memory: 0.5Gi, cpu: "0.10", ephemeral-storage: 1000M, example.com/device: "+01"}
  securityContext: {runAsUser: 1000, fsGroup: 0, runAsNonRoot: false}
  tolerations:
  - {key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 0}
`
	want := unmarshal(t, spec)
	obj := memcached("")
	obj.Object["spec"] = want
	create(t, obj)
	unchanged := func(after string) {
		t.Helper()
		if got := get(t, obj); !reflect.DeepEqual(got.Object["spec"], any(want)) {
			t.Errorf("after %s: want %v\n got %v", after, want, got.Object["spec"])
		} else if got.GetGeneration() != 1 {
			t.Errorf("after %s: want generation 1, got %d", after, got.GetGeneration())
		}
	}
	unchanged("create")

	finalizer := &unstructured.Unstructured{Object: map[string]any{}}
	finalizer.SetGroupVersionKind(gvk)
	finalizer.SetNamespace(obj.GetNamespace())
	finalizer.SetName(obj.GetName())
	finalizer.SetUID(obj.GetUID())
	finalizer.SetFinalizers([]string{v1alpha1.Finalizer})
	if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(finalizer),
		client.FieldOwner("memcached-operator")); err != nil {
		t.Fatal(err)
	}
	unchanged("the finalizer")

	typed := &v1alpha1.Memcached{}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(obj), typed); err != nil {
		t.Fatal(err)
	}
	typed.Status = v1alpha1.MemcachedStatus{ObservedGeneration: 1, Nodes: []string{}}
	if err := c.Status().Update(t.Context(), typed); err != nil {
		t.Fatal(err)
	}
	unchanged("the status")

	// The same spec again is no change.
	b, err := json.Marshal(map[string]any{"spec": want})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Patch(t.Context(), obj.DeepCopy(), client.RawPatch("application/merge-patch+json", b)); err != nil {
		t.Fatal(err)
	}
	unchanged("the same patch")

	finalizer = get(t, obj)
	finalizer.SetFinalizers(nil)
	if err := c.Update(t.Context(), finalizer); err != nil {
		t.Fatal(err)
	}
}
