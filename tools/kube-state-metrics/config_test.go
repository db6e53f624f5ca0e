// Package config tests the configuration that users give to kube-state-metrics.
package config

import (
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-state-metrics/v2/pkg/customresourcestate"
	"k8s.io/kube-state-metrics/v2/pkg/metric"
	"sigs.k8s.io/yaml"
)

const object = `
apiVersion: cache.example.com/v1alpha1
kind: Memcached
metadata: {namespace: shop, name: carts, generation: 3}
spec: {size: 3}
status:
  observedGeneration: 2
  phase: Progressing
  image: memcached:1.6
  nodes: [carts-0, carts-1, carts-2]
  replicas: 3
  readyReplicas: 2
  conditions:
  - {type: Ready, status: "False", reason: RollingOut}
  - {type: Available, status: "True", reason: ServersAvailable}
  - {type: Degraded, status: Unknown, reason: Pending}
`

// labels are on each series.
const labels = `customresource_group="cache.example.com",customresource_kind="Memcached",` +
	`customresource_version="v1alpha1",`

// want are all series, sorted.
var want = []string{
	`kube_memcached_info{image="memcached:1.6",memcached="carts",namespace="shop",phase="Progressing"} 1`,
	`kube_memcached_metadata_generation{memcached="carts",namespace="shop"} 3`,
	`kube_memcached_spec_paused{memcached="carts",namespace="shop"} 0`,
	`kube_memcached_spec_size{memcached="carts",namespace="shop"} 3`,
	`kube_memcached_status_condition{memcached="carts",namespace="shop",reason="Pending",type="Degraded"} 0`,
	`kube_memcached_status_condition{memcached="carts",namespace="shop",reason="RollingOut",type="Ready"} 0`,
	`kube_memcached_status_condition{memcached="carts",namespace="shop",reason="ServersAvailable",type="Available"} 1`,
	`kube_memcached_status_observed_generation{memcached="carts",namespace="shop"} 2`,
	`kube_memcached_status_ready_replicas{memcached="carts",namespace="shop"} 2`,
	`kube_memcached_status_replicas{memcached="carts",namespace="shop"} 3`,
}

// TestSeries has kube-state-metrics make the series of an object.
func TestSeries(t *testing.T) {
	text, err := os.ReadFile("../../config/kube-state-metrics/custom-resource-state.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Kind string `json:"kind"`
		customresourcestate.Metrics
	}
	if err := yaml.UnmarshalStrict(text, &config); err != nil {
		t.Fatal(err)
	}
	mc := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(object), mc); err != nil {
		t.Fatal(err)
	}
	if len(config.Spec.Resources) != 1 {
		t.Fatalf("%d resources", len(config.Spec.Resources))
	}
	resource := config.Spec.Resources[0]
	if gvk := schema.GroupVersionKind(resource.GroupVersionKind); gvk != mc.GroupVersionKind() {
		t.Errorf("%s is configured, objects are %s", gvk, mc.GroupVersionKind())
	}
	for i := range resource.Metrics { // as kube-state-metrics does when it reads the file
		each := &resource.Metrics[i].Each
		each.Type = metric.Type(strings.ToLower(string(each.Type)))
	}
	factory, err := customresourcestate.NewCustomResourceMetrics(resource)
	if err != nil {
		t.Fatal(err)
	}
	if factory.Name() != "memcacheds" {
		t.Errorf("the resource is %s", factory.Name())
	}
	var got []string
	for _, generator := range factory.MetricFamilyGenerators() {
		if generator.Help == "" {
			t.Errorf("%s has no help", generator.Name)
		}
		for line := range strings.Lines(string(generator.Generate(mc).ByteSlice())) {
			got = append(got, strings.TrimSpace(strings.Replace(line, labels, "", 1)))
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
