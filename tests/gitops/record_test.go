package gitops

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/argoproj/gitops-engine/pkg/health"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestContractLive: with the real operator, Memcacheds reach every row of the contract, and Argo CD's health check
// gives the health of each row. With -update, the test records the documents and their health.
func TestContractLive(t *testing.T) {
	e := newEnv(t)
	seen := e.observe(memcachedKind, e.namespace)
	documents := map[string]*unstructured.Unstructured{}
	reach := func(name, row string) {
		e.Helper()
		documents[row] = seen.until(name, rowOf(row).check).Unstructured
	}

	cache := e.memcached("cache", "{size: 3, containerPort: 11211}")
	e.create(cache)
	reach("cache", "rolling-out")
	reach("cache", "ready")
	e.patch(cache, "test", `{"spec": {"size": 4}}`)
	reach("cache", "resizing")

	zero := e.memcached("zero", "{size: 0}")
	e.create(zero)
	reach("zero", "ready-at-zero")

	// No node matches: the operator retries until the progress deadline of the second one.
	e.create(e.memcached("retry", "{pod: {nodeSelector: {disk: none}}}"),
		e.memcached("deadline", "{pod: {nodeSelector: {disk: none}}, rollout: {progressDeadlineSeconds: 2}}"),
		e.memcached("invalid", "{pod: "+refusedPod+"}"))
	reach("retry", "retry")
	reach("invalid", "invalid")
	reach("deadline", "deadline")

	foreign := e.object(serviceKind, "conflict")
	foreign.Object["spec"] = map[string]any{"ports": []any{map[string]any{"port": int64(80)}}}
	e.create(foreign, e.memcached("conflict", "{}"))
	reach("conflict", "conflict")

	lost := e.memcached("lost", "{size: 3}")
	e.create(lost)
	seen.until("lost", rowOf("ready").check)
	for _, pod := range e.list(podKind) {
		if pod.GetLabels()["cache.example.com/name"] == "lost" {
			e.delete(&pod, metav1.DeletePropagationBackground)
			break
		}
	}
	reach("lost", "server-lost")

	paused := e.memcached("paused", "{size: 2}")
	e.create(paused)
	seen.until("paused", rowOf("ready").check)
	e.patch(paused, "test", `{"spec": {"paused": true}}`)
	reach("paused", "paused")
	e.patch(paused, "test", `{"spec": {"memory": "128Mi"}}`)
	reach("paused", "paused-drifted")

	e.delete(lost, metav1.DeletePropagationForeground)
	reach("lost", "deleting")

	start := e.stopOperator()
	e.create(e.memcached("unseen", "{}"))
	reach("unseen", "not-seen")
	e.patch(zero, "test", `{"spec": {"size": 1}}`)
	reach("zero", "new-spec")
	start()

	recorded := healthTests{}
	for _, row := range contract {
		obj := documents[row.name]
		require.NotNil(t, obj, row.name)
		got, err := health.GetResourceHealth(obj, overrides(t))
		require.NoError(t, err)
		assert.Equal(t, row.health, got.Status, row.name)
		if !*update {
			continue
		}
		bare, err := overrides(t).GetResourceHealth(obj)
		require.NoError(t, err)
		recorded.Tests = append(recorded.Tests, healthTest{*bare, row.path()})
		obj = obj.DeepCopy()
		for _, field := range []string{"managedFields", "resourceVersion", "uid"} {
			unstructured.RemoveNestedField(obj.Object, "metadata", field)
		}
		text := strings.ReplaceAll(toYAML(t, obj.Object), e.namespace, "default")
		require.NoError(t, os.WriteFile(filepath.Join(customization, row.path()), []byte(text), 0o644))
	}
	if *update {
		require.NoError(t, os.WriteFile(filepath.Join(customization, "health_test.yaml"), []byte(toYAML(t, recorded)), 0o644))
	}
}
