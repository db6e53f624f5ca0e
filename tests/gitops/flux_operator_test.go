package gitops

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const operatorAPI = "github.com/operator-framework/api@v0.43.0" // for the CRDs of OLM

var (
	subscriptionKind  = schema.GroupVersionKind{Group: "operators.coreos.com", Version: "v1alpha1", Kind: "Subscription"}
	catalogSourceKind = schema.GroupVersionKind{Group: "operators.coreos.com", Version: "v1alpha1", Kind: "CatalogSource"}
)

// impatient shortens the health check timeout and the retry interval of a Kustomization.
func impatient(k *unstructured.Unstructured) *unstructured.Unstructured {
	spec := k.Object["spec"].(map[string]any)
	spec["timeout"], spec["retryInterval"] = "30s", "1s" // the shortest timeout of Flux
	return k
}

// unhealthy returns a check that Flux has reported a failed health check since the last event of another object.
func unhealthy(since *unstructured.Unstructured) func(event) string {
	return func(got event) string {
		ready := conditions(got.Unstructured)["Ready"]
		if ready != "Ready=False/HealthCheckFailed" || version(got.Unstructured) < version(since) {
			return fmt.Sprintf("Ready is %q", ready)
		}
		return ""
	}
}

// TestFluxWithoutOperator: without an operator, a Memcached is never ready for Flux.
func TestFluxWithoutOperator(t *testing.T) {
	f := newFlux(t)
	start := f.stopOperator()
	f.dryRun()
	kustomizations := f.observe(kustomizationKind, f.namespace)
	revision := f.push(map[string]string{"caches/cache.yaml": cacheYAML})
	f.create(impatient(f.kustomization("caches", "./caches")))
	failed := kustomizations.until("caches", unhealthy(f.get(f.source)))
	assert.Contains(t, fmt.Sprint(failed.Object["status"]), "status: 'InProgress'")
	start()
	ready := kustomizations.until("caches", applied(revision))
	healthy := f.await(f.object(memcachedKind, "cache"), rowOf("ready").check)
	assert.Less(t, version(healthy), version(ready.Unstructured))
}

// TestFluxByHand runs the commands of docs/how-to/flux.md. Flux does not revert them, because of their field
// managers.
func TestFluxByHand(t *testing.T) {
	f := newFlux(t)
	engine := f.engine()
	engine.push(map[string]string{"caches/cache.yaml": cacheYAML + "  size: 2\n"})
	f.restarted(engine, func() {
		f.run("bin/kubectl", "annotate", "--namespace", f.namespace, "memcached/cache", "--field-manager=restart",
			restartedAt+"=now")
	})
	pause := func(manager, value string) {
		f.run("bin/kubectl", "patch", "--namespace", f.namespace, "memcached/cache", "--type=merge",
			"--field-manager="+manager,
			"--patch", `{"spec": {"paused": `+value+`}}`)
		engine.sync()
	}
	paused := func() bool {
		p, _, _ := unstructured.NestedBool(f.get(f.object(memcachedKind, "cache")).Object, "spec", "paused")
		return p
	}
	pause("pause", "true")
	assert.True(t, paused())
	pause("pause", "null")
	assert.False(t, paused())
	pause("kubectl-patch", "true") // kubectl's default field manager
	assert.False(t, paused(), "docs/how-to/flux.md says that Flux reverts changes of kubectl-patch, but Flux did not")
}

// refused is a spec that the CRD accepts, but with which the API server refuses the Deployment.
const (
	refused    = "  pod: " + refusedPod + "\n"
	refusedPod = "{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: " +
		"{nodeSelectorTerms: [{matchExpressions: [{key: no key, operator: Exists}]}]}}}}"
)

// TestFluxStalled: if only a new commit can help, Flux fails at once instead of after its timeout of ten minutes.
func TestFluxStalled(t *testing.T) {
	f := newFlux(t)
	kustomizations := f.observe(kustomizationKind, f.namespace)
	k := f.kustomization("caches", "./caches")
	start := time.Now()
	f.push(map[string]string{"caches/cache.yaml": cacheYAML + refused})
	f.create(k)
	failed := kustomizations.until("caches", unhealthy(f.get(f.source)))
	assert.Contains(t, fmt.Sprint(failed.Object["status"]), "status: 'Failed'")
	f.measured("commit to failed: Kustomization %.2f s", failed.at.Sub(start).Seconds())
	f.await(k, applied(f.push(map[string]string{"caches/cache.yaml": cacheYAML})))
}

// operatorAndCaches returns the folders of config/gitops, all with the test's namespace.
func (e *env) operatorAndCaches() map[string]string {
	e.Helper()
	files := map[string]string{}
	for _, folder := range []string{"operator", "caches"} {
		paths, err := filepath.Glob(root + "/config/gitops/" + folder + "/*.yaml")
		require.NoError(e, err)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			require.NoError(e, err)
			files[strings.TrimPrefix(path, root+"/")] = strings.NewReplacer(
				"memcached-operator-system", e.namespace, "namespace: caches", "namespace: "+e.namespace).Replace(string(text))
		}
	}
	delete(files, "config/gitops/caches/namespace.yaml")
	kustomization := "config/gitops/caches/kustomization.yaml"
	files[kustomization] = strings.ReplaceAll(files[kustomization], "- namespace.yaml\n", "")
	return files
}

// installOLM installs the CRDs of OLM. The test writes the status as OLM would.
func (e *env) installOLM() {
	e.Helper()
	var module struct{ Dir string }
	require.NoError(e, json.Unmarshal([]byte(e.run("go", "mod", "download", "-json", operatorAPI)), &module))
	for _, name := range []string{"catalogsources", "operatorgroups", "subscriptions"} {
		e.run("bin/kubectl", "apply", "--server-side", "--filename", module.Dir+"/crds/operators.coreos.com_"+name+".yaml")
		e.established(name + ".operators.coreos.com")
	}
}

// olm writes a status, as OLM would.
func (e *env) olm(kind schema.GroupVersionKind, status string) *unstructured.Unstructured {
	e.Helper()
	obj := e.object(kind, "memcached-operator")
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"status": `+status+`}`))
	require.NoError(e, e.Status().Patch(e.Context(), obj, patch))
	return obj
}

const (
	catalogReady   = `{"connectionState": {"lastObservedState": "READY"}}`
	upgradePending = `{"state": "UpgradePending", "currentCSV": "memcached-operator.v0.1.0",
		"lastUpdated": "2026-01-01T00:00:00Z"}`
	installed = `{"state": "AtLatestKnown", "currentCSV": "memcached-operator.v0.1.0",
		"installedCSV": "memcached-operator.v0.1.0", "lastUpdated": "2026-01-01T00:00:00Z",
		"conditions": [{"type": "CatalogSourcesUnhealthy", "status": "False"}]}`
)

// TestFluxSubscription: with config/gitops/flux, the caches wait until OLM has installed the operator.
func TestFluxSubscription(t *testing.T) {
	f := newFlux(t)
	f.installOLM()
	kustomizations := f.observe(kustomizationKind, f.namespace)
	memcacheds := f.observe(memcachedKind, f.namespace)
	revision := f.push(f.operatorAndCaches())
	for _, name := range []string{"operator", "caches"} {
		k := readObject(t, root+"/config/gitops/flux/"+name+".yaml")
		k.SetNamespace(f.namespace)
		require.NoError(t, unstructured.SetNestedField(k.Object, f.source.GetName(), "spec", "sourceRef", "name"))
		f.create(impatient(k))
	}
	f.await(f.object(subscriptionKind, "memcached-operator"), func(event) string { return "" })
	f.olm(catalogSourceKind, catalogReady)
	kustomizations.until("memcached-operator", unhealthy(f.olm(subscriptionKind, upgradePending)))
	kustomizations.until("memcached", func(got event) string {
		if ready := conditions(got.Unstructured)["Ready"]; ready != "Ready=False/DependencyNotReady" {
			return fmt.Sprintf("Ready is %q", ready)
		}
		return ""
	})
	assert.Empty(t, memcacheds.all(""))

	f.olm(subscriptionKind, installed)
	operator := kustomizations.until("memcached-operator", applied(revision))
	caches := kustomizations.until("memcached", applied(revision))
	created := memcacheds.until("memcached-sample", func(event) string { return "" })
	ready := memcacheds.until("memcached-sample", rowOf("ready").check)
	assert.Less(t, version(operator.Unstructured), version(created.Unstructured))
	assert.Less(t, version(ready.Unstructured), version(caches.Unstructured))
}

// TestArgoSubscription: with config/gitops/argocd/app, the second wave waits until OLM has installed the operator.
func TestArgoSubscription(t *testing.T) {
	newEnv(t).installOLM()
	a := newArgo(t, true)
	app, err := os.ReadFile(root + "/config/gitops/argocd/app/kustomization.yaml")
	require.NoError(t, err)
	files := a.operatorAndCaches()
	files["config/gitops/argocd/app/kustomization.yaml"] = string(app)
	a.commit(files)
	manifests := a.run("bin/kustomize", "build", a.dir+"/config/gitops/argocd/app")
	a.commit(map[string]string{"app/all.yaml": manifests})

	memcacheds := a.observe(memcachedKind, a.namespace)
	a.try(3 * time.Second)
	a.olm(catalogSourceKind, catalogReady)
	a.olm(subscriptionKind, upgradePending)
	a.try(3 * time.Second)
	assert.Empty(t, memcacheds.all(""), "the caches did not wait for the operator")
	a.olm(subscriptionKind, installed)
	a.sync()
	memcacheds.until("memcached-sample", rowOf("ready").check)
}
