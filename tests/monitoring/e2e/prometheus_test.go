package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus-operator/prometheus-operator/pkg/assets"
	generator "github.com/prometheus-operator/prometheus-operator/pkg/prometheus"
	"github.com/prometheus/client_golang/api"
	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/internal/testing/harness"
)

const (
	// monitoringNamespace is the namespace of Prometheus and kube-state-metrics in kube-prometheus.
	monitoringNamespace = "monitoring"
	scrapeInterval      = "1s"
	// rateInterval is at least what Grafana sets for $__rate_interval.
	rateInterval = "10s"
	// faster is the factor by which the test shortens the durations in the rules: minutes become seconds.
	faster = 60
)

// prometheus is a Prometheus with the configuration that the Prometheus operator would generate.
type prometheus struct {
	world
	promv1.API
}

// installMonitoring applies config/prometheus, like a user of the Prometheus operator. Only the CRDs of that operator
// are installed, so that the API server validates the objects.
func (w world) installMonitoring() {
	w.Helper()
	module, _, err := harness.Module(w.Context(), filepath.Join(w.root, "tests/monitoring"),
		"github.com/prometheus-operator/prometheus-operator")
	harness.Must(w, err)
	var crds []string
	for _, kind := range []string{"podmonitors", "prometheusrules", "servicemonitors"} {
		crds = append(crds, "--filename",
			filepath.Join(module, "example/prometheus-operator-crd/monitoring.coreos.com_"+kind+".yaml"))
	}
	w.must(w.kubectl(append([]string{"apply", "--server-side"}, crds...)...))
	w.Cleanup(func() { w.must(w.kubectl(append([]string{"delete", "--ignore-not-found"}, crds...)...)) })
	w.must(w.kubectl(append([]string{"wait", "--for=condition=Established"}, crds...)...))

	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: monitoringNamespace}}
	harness.Must(w, client.IgnoreAlreadyExists(w.Create(w.Context(), ns)))
	w.Cleanup(func() { w.must(w.kubectl("delete", "namespace", monitoringNamespace, "--ignore-not-found")) })
	for _, from := range [][]string{{"--kustomize", filepath.Join(w.root, "config/prometheus")},
		{"--filename", filepath.Join(w.root, "config/kube-state-metrics/rbac.yaml")}} {
		w.must(w.kubectl(append([]string{"apply", "--server-side"}, from...)...))
		w.Cleanup(func() { w.must(w.kubectl(append([]string{"delete", "--ignore-not-found"}, from...)...)) })
	}
}

// startPrometheus runs Prometheus beside the cluster, with the permissions, the configuration and the rules that it
// would have in the cluster. stateMetrics is the address of kube-state-metrics.
func (w world) startPrometheus(stateMetrics string) prometheus {
	w.Helper()
	config := w.cluster.KubernetesRestConfig()
	harness.Must(w, rest.LoadTLSFiles(config))
	const account = "prometheus-k8s"
	w.account(account)
	token := w.must(w.kubectl("create", "token", account, "--namespace", monitoringNamespace, "--duration=1h"))
	files := map[string][]byte{
		"ca.crt": config.CAData, "token": []byte(strings.TrimSpace(token)),
		"rules.yaml": w.fastRules(), "prometheus.yml": w.configuration(config, stateMetrics),
	}
	address, stop, err := w.cluster.Prometheus(w.Context(), files)
	harness.Must(w, err)
	w.Cleanup(func() { harness.Must(w, stop()) })
	c, err := api.NewClient(api.Config{Address: address})
	harness.Must(w, err)
	return prometheus{w, promv1.NewAPI(c)}
}

// configuration returns what the Prometheus operator generates from the monitors on the cluster.
func (w world) configuration(config *rest.Config, stateMetrics string) []byte {
	w.Helper()
	harness.Must(w, monitoringv1.AddToScheme(w.Scheme()))
	clients, err := kubernetes.NewForConfig(config)
	harness.Must(w, err)
	p := &monitoringv1.Prometheus{
		ObjectMeta: metav1.ObjectMeta{Namespace: monitoringNamespace, Name: "k8s"},
		Spec: monitoringv1.PrometheusSpec{
			EvaluationInterval: scrapeInterval,
			CommonPrometheusFields: monitoringv1.CommonPrometheusFields{
				Version: "v3.10.0", ScrapeInterval: scrapeInterval,
				ServiceDiscoveryRole: ptr.To(monitoringv1.EndpointSliceRole),
				APIServerConfig: &monitoringv1.APIServerConfig{
					Host:          config.Host,
					Authorization: &monitoringv1.Authorization{CredentialsFile: "token"},
					TLSConfig:     &monitoringv1.TLSConfig{TLSFilesConfig: monitoringv1.TLSFilesConfig{CAFile: "ca.crt"}},
				},
			},
		},
	}
	cg, err := generator.NewConfigGenerator(nil, p, generator.WithEndpointSliceSupport())
	harness.Must(w, err)
	store := assets.NewStoreBuilder(clients.CoreV1(), clients.CoreV1())
	var services monitoringv1.ServiceMonitorList
	var pods monitoringv1.PodMonitorList
	harness.Must(w, errors.Join(w.List(w.Context(), &services), w.List(w.Context(), &pods)))
	serviceMonitors, podMonitors := map[string]*monitoringv1.ServiceMonitor{}, map[string]*monitoringv1.PodMonitor{}
	for _, m := range services.Items {
		serviceMonitors[m.Namespace+"/"+m.Name] = &m
		for _, endpoint := range m.Spec.Endpoints {
			// The control plane writes the token into the Secret after a moment.
			harness.Eventually(w, "token of "+m.Name, harness.Patience, func() error {
				return store.AddSafeAuthorizationCredentials(w.Context(), m.Namespace, endpoint.Authorization)
			})
		}
	}
	for _, m := range pods.Items {
		podMonitors[m.Namespace+"/"+m.Name] = &m
	}
	additional := fmt.Sprintf("- job_name: kube-state-metrics\n  honor_labels: true\n"+
		"  static_configs: [{targets: [%q]}]\n", stateMetrics)
	text, err := cg.GenerateServerConfiguration(p, serviceMonitors, podMonitors, nil, nil, store, []byte(additional), nil,
		nil, nil)
	harness.Must(w, err)
	var generated map[string]any
	// Values of the environment variables in the pod of Prometheus.
	environment := strings.NewReplacer("$(SHARD)", "0", "$(POD_NAME)", "prometheus-k8s-0")
	harness.Must(w, yaml.Unmarshal([]byte(environment.Replace(string(text))), &generated))
	generated["rule_files"] = []string{"rules.yaml"}
	text, err = yaml.Marshal(generated)
	harness.Must(w, err)
	return text
}

// fastRules returns the rules on the cluster with shorter durations.
func (w world) fastRules() []byte {
	w.Helper()
	harness.Must(w, monitoringv1.AddToScheme(w.Scheme()))
	var rules monitoringv1.PrometheusRuleList
	harness.Must(w, w.List(w.Context(), &rules))
	if len(rules.Items) != 1 {
		w.Fatalf("%d PrometheusRules, want 1", len(rules.Items))
	}
	spec := rules.Items[0].Spec
	for i := range spec.Groups {
		for j := range spec.Groups[i].Rules {
			rule := &spec.Groups[i].Rules[j]
			if rule.For != nil {
				rule.For = ptr.To(monitoringv1.Duration(w.fast(string(*rule.For))))
			}
			rule.Expr.StrVal = fast(w, rule.Expr.StrVal)
		}
	}
	text, err := yaml.Marshal(spec)
	harness.Must(w, err)
	return text
}

var ranges = regexp.MustCompile(`\[\w+\]`)

// fast shortens the ranges in an expression.
func fast(w world, expr string) string {
	return ranges.ReplaceAllStringFunc(expr, func(r string) string { return "[" + w.fast(strings.Trim(r, "[]")) + "]" })
}

func (w world) fast(duration string) string {
	w.Helper()
	d, err := model.ParseDuration(duration)
	harness.Must(w, err)
	return model.Duration(time.Duration(d) / faster).String()
}

// startStateMetrics runs kube-state-metrics with the configuration and the permissions of config/kube-state-metrics,
// and returns its address.
func (w world) startStateMetrics() string {
	w.Helper()
	w.account("kube-state-metrics")
	address, stop, err := w.cluster.StateMetrics(w.Context(), monitoringNamespace, "kube-state-metrics",
		filepath.Join(w.root, "config/kube-state-metrics/custom-resource-state.yaml"))
	harness.Must(w, err)
	w.Cleanup(func() { harness.Must(w, stop()) })
	return address
}

// ask returns the present result of a query.
func (p prometheus) ask(query string) (model.Value, error) {
	value, _, err := p.Query(p.Context(), query, time.Now())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", query, err)
	}
	return value, nil
}

// holds waits until a query has a result.
func (p prometheus) holds(query string) {
	p.Helper()
	harness.Eventually(p, query, harness.Patience, func() error {
		value, err := p.ask(query)
		if vector, _ := value.(model.Vector); err == nil && len(vector) == 0 {
			err = errors.New("no result")
		}
		return err
	})
}

// fires waits until an alert of a Memcached fires, or no longer fires if want is false. It calls meanwhile before each
// check.
func (p prometheus) fires(alert, memcached string, want bool, meanwhile func() error) {
	p.Helper()
	harness.Eventually(p, fmt.Sprintf("%s of %s fires: %t", alert, memcached, want), harness.Patience, func() error {
		if err := meanwhile(); err != nil {
			return err
		}
		alerts, err := p.Alerts(p.Context())
		if err != nil {
			return err
		}
		var states []string
		firing := false
		for _, a := range alerts.Alerts {
			of := cmp.Or(a.Labels["memcached"], a.Labels["memcached_proxy"])
			if a.Labels["namespace"] != model.LabelValue(p.ns) || of != model.LabelValue(memcached) {
				continue
			}
			states = append(states, fmt.Sprintf("%s %s", a.Labels["alertname"], a.State))
			firing = firing || a.Labels["alertname"] == model.LabelValue(alert) && a.State == promv1.AlertStateFiring
		}
		if firing != want {
			return fmt.Errorf("alerts are %v", states)
		}
		return nil
	})
}
