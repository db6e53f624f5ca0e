package gitops

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var apiServiceKind = schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"}

// metricsAPI serves metrics.k8s.io. It reports for every pod that the pod uses this percentage of its CPU request. The
// API server reaches it on this machine through a Service of type ExternalName.
func (e *env) metricsAPI() (load *atomic.Int64) {
	e.Helper()
	load = &atomic.Int64{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch strings.TrimPrefix(r.URL.Path, "/apis/metrics.k8s.io/v1beta1") {
		case "":
			_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
				TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "metrics.k8s.io/v1beta1",
				APIResources: []metav1.APIResource{{Name: "pods", Namespaced: true, Kind: "PodMetrics",
					Verbs: metav1.Verbs{"get", "list"}}},
			})
		case "/namespaces/" + e.namespace + "/pods":
			e.podMetrics(w, r.URL.Query(), load.Load())
		default:
			http.NotFound(w, r)
		}
	}))
	e.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	require.NoError(e, err)
	port, err := strconv.ParseInt(address.Port(), 10, 64)
	require.NoError(e, err)

	service := e.object(serviceKind, "metrics")
	service.Object["spec"] = map[string]any{"type": "ExternalName", "externalName": "localhost"}
	api := object(apiServiceKind, "", "v1beta1.metrics.k8s.io")
	api.Object["spec"] = map[string]any{
		"group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
		"insecureSkipTLSVerify": true, "service": map[string]any{"namespace": e.namespace, "name": "metrics", "port": port},
	}
	e.delete(api, metav1.DeletePropagationBackground) // left by a run that was killed
	e.create(service, api)
	e.Cleanup(func() { _ = e.Delete(context.Background(), api) }) // discovery fails while the APIService has no server
	e.await(api, func(got event) string {
		if conditions(got.Unstructured)["Available"] == "Available=True/Passed" {
			return ""
		}
		return fmt.Sprint(got.Object["status"])
	})
	return load
}

func (e *env) podMetrics(w http.ResponseWriter, query url.Values, load int64) {
	selector, err := labels.Parse(query.Get("labelSelector"))
	pods := &unstructured.UnstructuredList{}
	pods.SetGroupVersionKind(podKind)
	if err == nil {
		err = e.List(e.Context(), pods, client.InNamespace(e.namespace), client.MatchingLabelsSelector{Selector: selector})
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	items := []any{}
	for _, pod := range pods.Items {
		containers, _, _ := unstructured.NestedSlice(pod.Object, "spec", "containers")
		request, _, _ := unstructured.NestedString(containers[0].(map[string]any), "resources", "requests", "cpu")
		cpu := resource.MustParse(request)
		items = append(items, map[string]any{
			"metadata":  map[string]any{"name": pod.GetName(), "namespace": pod.GetNamespace(), "labels": pod.GetLabels()},
			"timestamp": time.Now().UTC().Format(time.RFC3339), "window": "1s",
			"containers": []any{map[string]any{"name": "memcached", "usage": map[string]any{
				"cpu": fmt.Sprintf("%dn", cpu.MilliValue()*load*10_000), "memory": "1Mi"}}},
		})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1",
		"metadata": map[string]any{}, "items": items})
}

// gitops is an engine with a repository. push commits the whole content of the repository; push and sync return when
// everything is healthy.
type gitops interface {
	push(files map[string]string)
	sync()
}

// autoscaler returns the sample HorizontalPodAutoscaler for the test's Memcached. It scales down at once instead of
// after five minutes.
func (e *env) autoscaler() string {
	text, err := os.ReadFile(filepath.Join(root, "config/samples/autoscaler.yaml"))
	require.NoError(e, err)
	return strings.NewReplacer("name: memcached-production", "name: cache",
		"stabilizationWindowSeconds: 300", "stabilizationWindowSeconds: 0").Replace(string(text))
}

// hasSize returns a check that a Memcached is ready with this size.
func hasSize(size int64) func(event) string {
	return func(got event) string {
		if n := sizeOf(got.Unstructured); n != size {
			return fmt.Sprintf("size is %d, not %d", n, size)
		}
		return rowOf("ready").check(got)
	}
}

func sizeOf(mc *unstructured.Unstructured) int64 {
	size, _, _ := unstructured.NestedInt64(mc.Object, "spec", "size")
	return size
}

// autoscaledOutsideOfGit checks that a real HorizontalPodAutoscaler:
//   - adds one server when the load is twice the target,
//   - removes none as soon as the load is gone,
//   - keeps its size through ten syncs of a repository that does not set the size.
func (e *env) autoscaledOutsideOfGit(engine gitops) {
	e.Helper()
	load := e.metricsAPI()
	load.Store(70)
	memcacheds := e.observe(memcachedKind, e.namespace)
	engine.push(map[string]string{"caches/cache.yaml": cacheYAML})
	e.run("bin/kubectl", "scale", "--namespace", e.namespace, "memcached/cache", "--replicas=5")
	memcacheds.until("cache", hasSize(5))
	engine.push(map[string]string{"caches/cache.yaml": cacheYAML, "caches/autoscaler.yaml": e.autoscaler()})
	load.Store(140)
	memcacheds.until("cache", hasSize(6))
	load.Store(1)
	generation := e.get(e.object(memcachedKind, "cache")).GetGeneration()
	for range 10 {
		engine.sync()
	}
	cache := e.get(e.object(memcachedKind, "cache"))
	assert.Equal(e, int64(6), sizeOf(cache))
	assert.Equal(e, generation, cache.GetGeneration(), "something changed the spec")
	engine.push(map[string]string{"caches/cache.yaml": cacheYAML}) // without the HorizontalPodAutoscaler
	assert.Equal(e, int64(6), sizeOf(e.get(cache)))
}

// handOver returns the command of docs/how-to/argocd.md that takes over the size.
func handOver(namespace string) string {
	return `bin/kubectl --namespace ` + namespace + ` apply --server-side --field-manager=handover -f - <<EOF
apiVersion: cache.example.com/v1alpha1
kind: Memcached
metadata: {name: cache}
spec: {size: 3}
EOF`
}

// handedOver removes the size from git, as docs/how-to/argocd.md describes, and checks that no server is lost.
func (e *env) handedOver(engine gitops) {
	e.Helper()
	withSize := map[string]string{"caches/cache.yaml": cacheYAML + "  size: 3\n"}
	without := map[string]string{"caches/cache.yaml": cacheYAML}
	cache := e.object(memcachedKind, "cache")

	// Without the command, the size has no owner any more, and the API server sets the default.
	engine.push(withSize)
	engine.push(without)
	e.await(cache, hasSize(1))

	engine.push(withSize)
	e.run("bash", "-c", handOver(e.namespace))
	memcacheds := e.observe(memcachedKind, e.namespace)
	engine.push(without)
	engine.sync()
	e.run("bin/kubectl", "scale", "--namespace", e.namespace, "memcached/cache", "--replicas=4")
	e.await(cache, hasSize(4))
	engine.sync()
	for _, got := range memcacheds.all("cache") {
		assert.GreaterOrEqual(e, sizeOf(got.Unstructured), int64(3), "servers were lost")
	}
	assert.Equal(e, int64(4), sizeOf(e.get(cache)))
}
