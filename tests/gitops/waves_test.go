package gitops

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/argoproj/gitops-engine/pkg/health"
	"github.com/argoproj/gitops-engine/pkg/sync/common"
	jsonpatch "github.com/evanphx/json-patch"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var configMapKind = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}

// laterWave is a client of the cache. It must not start before the cache is healthy.
const laterWave = `apiVersion: v1
kind: ConfigMap
metadata:
  name: client
  annotations: {argocd.argoproj.io/sync-wave: "1"}
`

// TestArgoWithoutOperator: without an operator, a Memcached is never healthy, and the next wave waits.
func TestArgoWithoutOperator(t *testing.T) {
	a := newArgo(t, true)
	start := a.stopOperator()
	a.dryRun()
	memcacheds := a.observe(memcachedKind, a.namespace)
	configMaps := a.observe(configMapKind, a.namespace)
	a.commit(map[string]string{"caches/cache.yaml": cacheYAML, "caches/client.yaml": laterWave})
	op := a.try(3 * time.Second)
	assert.Equal(t, common.OperationRunning, op.phase, op.message)
	assert.Empty(t, configMaps.all("client"))
	start()
	a.sync()
	ready := memcacheds.until("cache", rowOf("ready").check)
	created := configMaps.until("client", func(event) string { return "" })
	assert.Less(t, version(ready.Unstructured), version(created.Unstructured),
		"the later wave did not wait for the servers")
	for _, got := range memcacheds.all("cache") {
		status, err := health.GetResourceHealth(got.Unstructured, overrides(t))
		require.NoError(t, err)
		if version(got.Unstructured) < version(ready.Unstructured) {
			assert.Equal(t, health.HealthStatusProgressing, status.Status, "%v", got.Object["status"])
		}
	}
}

// TestArgoStalled: if only a new commit can help, the sync fails at once.
func TestArgoStalled(t *testing.T) {
	a := newArgo(t, true)
	a.commit(map[string]string{"caches/cache.yaml": cacheYAML + refused, "caches/client.yaml": laterWave})
	op := a.try(patience)
	assert.Equal(t, common.OperationFailed, op.phase, op.message)
	assert.Equal(t, health.HealthStatusDegraded, a.health("cache"))
	a.push(map[string]string{"caches/cache.yaml": cacheYAML, "caches/client.yaml": laterWave})
}

// dryRun checks that the API server validates, sets defaults and reports a Memcached as not ready, all without an
// operator.
func (e *env) dryRun() {
	e.Helper()
	mc := e.memcached("dry", "{size: 3}")
	require.NoError(e, e.Create(e.Context(), mc, client.DryRunAll))
	assert.Empty(e, rowOf("not-seen").mismatch(mc))
	port, _, _ := unstructured.NestedInt64(mc.Object, "spec", "containerPort")
	assert.Equal(e, int64(11211), port)
	e.run("bin/kubectl", "apply", "--dry-run=server", "--namespace", e.namespace, "--filename",
		"config/samples/cache_v1alpha1_memcached.yaml")
	bad := e.memcached("dry", "{size: -1}")
	assert.ErrorContains(e, e.Create(e.Context(), bad, client.DryRunAll), "spec.size")
}

// act runs an action of Argo CD on a Memcached like Argo CD's API server, which sends the changes of the script as a
// merge patch.
func (a *argo) act(name, action string) {
	a.Helper()
	live := a.get(a.object(memcachedKind, name))
	was, err := json.Marshal(live)
	require.NoError(a, err)
	is, err := json.Marshal(runAction(a.T, live, action))
	require.NoError(a, err)
	patch, err := jsonpatch.CreateMergePatch(was, is)
	require.NoError(a, err)
	a.patch(live, "argocd-server", string(patch))
}

func (a *argo) health(name string) health.HealthStatusCode {
	a.Helper()
	status, err := health.GetResourceHealth(a.get(a.object(memcachedKind, name)), overrides(a.T))
	require.NoError(a, err)
	return status.Status
}

// TestArgoActions runs the actions on a cache with self-healing.
func TestArgoActions(t *testing.T) {
	for name, serverSide := range map[string]bool{"client-side apply": false, "server-side apply": true} {
		t.Run(name, func(t *testing.T) {
			a := newArgo(t, serverSide)
			cache := a.object(memcachedKind, "cache")
			a.push(map[string]string{"caches/cache.yaml": cacheYAML + "  size: 2\n"})
			a.restarted(a, func() { a.act("cache", "restart") })

			// Git does not set paused, so self-healing does not revert the action.
			a.act("cache", "pause")
			a.await(cache, rowOf("paused").check)
			a.commit(map[string]string{"caches/cache.yaml": cacheYAML + "  size: 3\n", "caches/client.yaml": laterWave})
			op := a.try(3 * time.Second)
			assert.Equal(t, common.OperationRunning, op.phase, "a paused cache must delay the next wave")
			a.await(cache, rowOf("paused-drifted").check)
			assert.Equal(t, health.HealthStatusSuspended, a.health("cache"))
			a.act("cache", "resume")
			a.sync()
			a.await(cache, hasSize(3))

			// Git sets paused to false, so self-healing reverts the action at once.
			a.push(map[string]string{"caches/cache.yaml": cacheYAML + "  size: 3\n  paused: false\n"})
			a.act("cache", "pause")
			a.sync()
			assert.Equal(t, health.HealthStatusHealthy, a.health("cache"))
		})
	}
}

// restarted restarts the servers, and checks that they restart only once, whatever the engine does with the annotation.
func (e *env) restarted(engine gitops, restart func()) {
	e.Helper()
	deployments := e.observe(deploymentKind, e.namespace)
	deployments.until("cache", complete(2))
	restart()
	annotation := func(got event) string {
		_, has, _ := unstructured.NestedString(got.Object, "spec", "template", "metadata", "annotations", restartedAt)
		if !has {
			return "the servers are not restarted"
		}
		return complete(2)(got)
	}
	generation := deployments.until("cache", annotation).GetGeneration()
	engine.sync()
	engine.sync()
	e.await(e.object(memcachedKind, "cache"), rowOf("ready").check)
	assert.Equal(e, generation, e.get(e.object(deploymentKind, "cache")).GetGeneration(),
		"the servers were restarted again")
}
