package monitoring

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/common/model"
	promlabels "github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	yamlv2 "go.yaml.in/yaml/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/internal/testing/harness"
)

// built returns the objects of a kustomization, by kind and name.
func built(t *testing.T, dir string) map[string]string {
	t.Helper()
	out, err := harness.Command{}.Run(t.Context(), filepath.Join(Root, "bin", "kustomize"), "build", dir)
	require.NoError(t, err)
	objects := map[string]string{}
	for manifest := range strings.SplitSeq(out, "\n---\n") {
		var object metav1.PartialObjectMetadata
		require.NoError(t, yaml.Unmarshal([]byte(manifest), &object))
		objects[object.Kind+"/"+object.Name] = manifest
	}
	return objects
}

// decode decodes an object strictly.
func decode[T any](t *testing.T, objects map[string]string, name string) (object T) {
	t.Helper()
	require.Contains(t, objects, name)
	text, err := yaml.YAMLToJSONStrict([]byte(objects[name]))
	require.NoError(t, err)
	wrong, err := json.UnmarshalStrict(text, &object) // unlike yaml's it is case-sensitive: joblabel is not jobLabel
	require.NoError(t, err)
	require.Empty(t, wrong, name)
	return object
}

// TestMonitors: the monitors select the pods that the operator creates, and the operator's own Service.
func TestMonitors(t *testing.T) {
	objects := built(t, filepath.Join(Root, "config/prometheus"))
	operator := built(t, filepath.Join(Root, "config/default"))
	for name, manifest := range objects {
		assert.Containsf(t, manifest, "\n    release: ", "kube-prometheus-stack does not select %s", name)
	}
	decode[monitoringv1.PrometheusRule](t, objects, "PrometheusRule/memcached-operator")

	pods := decode[monitoringv1.PodMonitor](t, objects, "PodMonitor/memcached-servers")
	assert.True(t, pods.Spec.NamespaceSelector.Any)
	selector, err := metav1.LabelSelectorAsSelector(&pods.Spec.Selector)
	require.NoError(t, err)
	mc := &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Name: "carts"}}
	assert.True(t, selector.Matches(labels.Set(names.Servers.PodLabels(mc))))
	assert.True(t, selector.Matches(labels.Set(names.Proxies.PodLabels(mc))))
	assert.Equal(t, names.MetricsPort, *pods.Spec.PodMetricsEndpoints[0].Port)

	monitor := decode[monitoringv1.ServiceMonitor](t, objects,
		"ServiceMonitor/memcached-operator-controller-manager-metrics-monitor")
	service := decode[corev1.Service](t, operator, "Service/memcached-operator-controller-manager-metrics-service")
	selector, err = metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
	require.NoError(t, err)
	assert.True(t, selector.Matches(labels.Set(service.Labels)))
	assert.Equal(t, service.Namespace, monitor.Namespace)
	endpoint := monitor.Spec.Endpoints[0]
	assert.Equal(t, service.Spec.Ports[0].Name, endpoint.Port)
	assert.NotContains(t, objects["ServiceMonitor/"+monitor.Name], "bearerTokenFile", "OpenShift refuses bearerTokenFile")
	token := decode[corev1.Secret](t, objects, "Secret/"+endpoint.Authorization.Credentials.Name)
	assert.Equal(t, corev1.SecretTypeServiceAccountToken, token.Type)
	assert.Contains(t, objects, "ServiceAccount/"+token.Annotations[corev1.ServiceAccountNameKey])
	assert.Contains(t, operator, "ClusterRole/memcached-operator-metrics-reader")
	assert.Contains(t, objects["ClusterRoleBinding/memcached-operator-prometheus-metrics"],
		"name: memcached-operator-metrics-reader")

	board := decode[corev1.ConfigMap](t, objects, "ConfigMap/memcached-operator-dashboard")
	assert.Equal(t, "1", board.Labels["grafana_dashboard"])
}

// onPage returns the code block of docs/how-to/monitoring.md that starts with begin.
func onPage(t *testing.T, begin string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(Root, "docs/how-to/monitoring.md"))
	require.NoError(t, err)
	code := regexp.MustCompile("(?s)```yaml\n(" + begin + ".*?)```").FindSubmatch(page)
	require.NotNil(t, code)
	return string(code[1])
}

// TestOverlay builds the overlay of docs/how-to/monitoring.md for an operator in another namespace.
func TestOverlay(t *testing.T) {
	dir := t.TempDir()
	base, err := filepath.Abs(filepath.Join(Root, "config/prometheus"))
	require.NoError(t, err)
	base, err = filepath.Rel(dir, base)
	require.NoError(t, err)
	text := regexp.MustCompile(`https://\S+`).ReplaceAllString(onPage(t, "apiVersion: kustomize"), base)
	require.Contains(t, text, base)
	text += "namespace: elsewhere\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644))
	for name, manifest := range built(t, dir) {
		assert.Contains(t, manifest, "\n    release: monitoring\n", name)
		assert.NotContains(t, manifest, "memcached-operator-system", name)
	}
}

// TestPlainPrometheus checks the scrape configurations of docs/how-to/monitoring.md with promtool, and selects targets
// with Prometheus's own code.
func TestPlainPrometheus(t *testing.T) {
	config := onPage(t, "scrape_configs:")
	file := filepath.Join(t.TempDir(), "prometheus.yml")
	// The token file exists only where Prometheus runs.
	text := regexp.MustCompile(`credentials_file: \S+token`).ReplaceAllString(config, "credentials: token")
	require.Contains(t, text, "credentials: token")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	_, err := harness.Command{}.Run(t.Context(), filepath.Join(Root, "bin", "promtool"), "check", "config", file)
	require.NoError(t, err)

	var parsed struct {
		Jobs []struct {
			Relabelings []*relabel.Config `yaml:"relabel_configs"`
		} `yaml:"scrape_configs"`
	}
	require.NoError(t, yamlv2.Unmarshal([]byte(config), &parsed))
	require.Len(t, parsed.Jobs, 2)
	const servers, operators = 0, 1
	targets := func(job int, podLabels map[string]string, port, phase string) map[string]string {
		const meta = "__meta_kubernetes_"
		found := map[string]string{meta + "namespace": "shop", meta + "pod_name": "carts-0", meta + "pod_phase": phase,
			meta + "pod_container_port_name": port}
		for name, value := range podLabels {
			found[meta+"pod_label_"+regexp.MustCompile(`\W`).ReplaceAllString(name, "_")] = value
		}
		target := promlabels.NewBuilder(promlabels.FromMap(found))
		for _, relabeling := range parsed.Jobs[job].Relabelings {
			require.NoError(t, relabeling.Validate(model.UTF8Validation))
		}
		if !relabel.ProcessBuilder(target, parsed.Jobs[job].Relabelings...) {
			return map[string]string{}
		}
		kept := target.Labels().Map()
		maps.DeleteFunc(kept, func(name, _ string) bool { return strings.HasPrefix(name, "__") })
		return kept
	}
	mc := &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Name: "carts"}}
	server, proxy := names.Servers.PodLabels(mc), names.Proxies.PodLabels(mc)
	assert.Equal(t, map[string]string{"namespace": "shop", "pod": "carts-0", "memcached": "carts"},
		targets(servers, server, names.MetricsPort, "Running"))
	assert.Empty(t, targets(servers, server, names.MetricsPort, "Failed"))
	assert.Empty(t, targets(servers, server, names.Port, "Running"))
	assert.Equal(t, map[string]string{"namespace": "shop", "pod": "carts-0", "memcached_proxy": "carts"},
		targets(servers, proxy, names.MetricsPort, "Running"))
	operator := decode[appsv1.Deployment](t, built(t, filepath.Join(Root, "config/default")),
		"Deployment/memcached-operator-controller-manager").Spec.Template
	for _, port := range operator.Spec.Containers[0].Ports {
		want := map[string]string{}
		if port.ContainerPort == 8443 {
			want["pod"] = "carts-0"
		}
		assert.Equal(t, want, targets(operators, operator.Labels, port.Name, "Running"))
	}
	assert.Empty(t, targets(operators, server, names.MetricsPort, "Running"))
}
