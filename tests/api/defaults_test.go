package api

import (
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/api/v1alpha1"
)

const defaultSpec = `
size: 1
workload: Deployment
serverAddresses: DNS
containerPort: 11211
memory: 64Mi
maxConnections: 1024
threads: 4
maxItemSize: 1Mi
rollout: {maxUnavailable: 1, minReadySeconds: 0, progressDeadlineSeconds: 600}
disruptionBudget: {policy: Managed, maxUnavailable: 1}
`

// defaultStatus is the status before an operator has seen the Memcached: nothing in it may look healthy.
const defaultStatus = `
observedGeneration: -1
phase: Pending
conditions:
- {type: Ready, status: Unknown, reason: Pending, message: Waiting for controller,
	lastTransitionTime: "1970-01-01T00:00:00Z"}
- {type: Available, status: Unknown, reason: Pending, message: Waiting for controller,
	lastTransitionTime: "1970-01-01T00:00:00Z"}
`

func TestDefaultSpec(t *testing.T) {
	const nulls = `{size: null, workload: null, serverAddresses: null, image: null, containerPort: null, memory: null,
 maxConnections: null, threads: null, maxItemSize: null, extraArgs: null, tls: null, auth: null, networkPolicy: null,
 metrics: null, agent: null, proxy: null, discovery: null, service: null, pod: null, rollout: null,
 disruptionBudget: null, labels: null, annotations: null, paused: null}`
	for name, document := range map[string]string{
		"no spec":       "apiVersion: cache.example.com/v1alpha1\nkind: Memcached\nmetadata: {name: test}\n",
		"empty spec":    document(`{}`),
		"null":          document(`null`),
		"null fields":   document(nulls),
		"nested fields": document(`{rollout: {}, disruptionBudget: {}}`),
		"nested nulls": document(`{rollout: {maxUnavailable: null, minReadySeconds: null},
 disruptionBudget: {policy: null, maxUnavailable: null, minAvailable: null}}`),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := dryRun(t.Context(), document)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, got.Object["spec"], defaultSpec)
			equal(t, got.Object["status"], defaultStatus)
		})
	}
}

func TestDefaultStatus(t *testing.T) {
	// Restoring a backup creates the object with the status from the backup.
	created := memcached("restored")
	created.Object["status"] = unmarshal(t, `
observedGeneration: 1
phase: Ready
conditions:
- {type: Ready, status: "True", reason: Ready, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}
`)
	create(t, created)
	equal(t, get(t, created).Object["status"], defaultStatus)
	inProgress(t, created)
}

// TestPartialStatus: kstatus is InProgress, whichever part of the status is written first.
func TestPartialStatus(t *testing.T) {
	for name, status := range map[string]string{
		"empty":              `{}`,
		"replicas":           `{replicas: 3, readyReplicas: 3}`,
		"phase":              `{phase: Progressing}`,
		"observedGeneration": `{observedGeneration: 1}`,
		"available": `{conditions: [{type: Available, status: "True", reason: ServersAvailable, message: "",
 lastTransitionTime: "2026-01-01T00:00:00Z"}]}`,
		"reconciling": `{observedGeneration: 1, conditions: [{type: Reconciling, status: "True", reason: RollingOut,
 message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}`,
		"null": `{observedGeneration: null, conditions: null, phase: null}`,
	} {
		t.Run(name, func(t *testing.T) {
			obj := memcached("")
			create(t, obj)
			obj.Object["status"] = unmarshal(t, status)
			if err := c.Status().Update(t.Context(), obj); err != nil {
				t.Fatal(err)
			}
			inProgress(t, get(t, obj))
		})
	}
}

// TestReadyOfGeneration: kstatus is Current only while the status is of the current generation.
func TestReadyOfGeneration(t *testing.T) {
	obj := memcached("")
	create(t, obj)
	obj.Object["status"] = map[string]any{
		"observedGeneration": obj.GetGeneration(),
		"nodes":              []any{},
		"conditions": []any{map[string]any{
			"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
		}},
	}
	if err := c.Status().Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	if res := compute(t, obj); res.Status != kstatus.CurrentStatus {
		t.Errorf("want Current, got %s: %s", res.Status, res.Message)
	}
	if nodes, found, err := unstructured.NestedStringSlice(obj.Object, "status",
		"nodes"); !found || len(nodes) != 0 || err != nil {
		t.Errorf("want the API server to keep an empty list of nodes, got %v", obj.Object["status"])
	}
	if err := unstructured.SetNestedField(obj.Object, int64(2), "spec", "size"); err != nil {
		t.Fatal(err)
	}
	if err := c.Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	inProgress(t, obj)
}

var gvk = v1alpha1.GroupVersion.WithKind("Memcached")

// memcached returns a Memcached with an empty spec. If name is empty, the API server generates a name.
func memcached(name string) *unstructured.Unstructured {
	obj := &unstructured.Unstructured{Object: map[string]any{}}
	obj.SetGroupVersionKind(gvk)
	obj.SetNamespace("default")
	obj.SetName(name)
	if name == "" {
		obj.SetGenerateName("test-")
	}
	obj.Object["spec"] = map[string]any{}
	return obj
}

func create(t *testing.T, obj *unstructured.Unstructured) {
	t.Helper()
	if err := c.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, obj *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	got := &unstructured.Unstructured{}
	got.SetGroupVersionKind(gvk)
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(obj), got); err != nil {
		t.Fatal(err)
	}
	return got
}

func compute(t *testing.T, obj *unstructured.Unstructured) *kstatus.Result {
	t.Helper()
	res, err := kstatus.Compute(obj)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func inProgress(t *testing.T, obj *unstructured.Unstructured) {
	t.Helper()
	if res := compute(t, obj); res.Status != kstatus.InProgressStatus {
		t.Errorf("want InProgress, got %s: %s\n%v", res.Status, res.Message, obj.Object["status"])
	}
}

// unmarshal decodes YAML as Kubernetes does, with integers as int64.
func unmarshal(t *testing.T, document string) map[string]any {
	t.Helper()
	var v map[string]any
	b, err := yaml.YAMLToJSON([]byte(document))
	if err == nil {
		err = utiljson.Unmarshal(b, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// equal fails unless got equals the YAML in want.
func equal(t *testing.T, got any, want string) {
	t.Helper()
	if w := unmarshal(t, want); !reflect.DeepEqual(got, any(w)) {
		t.Errorf("want %v\n got %v", w, got)
	}
}
