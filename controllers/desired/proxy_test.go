package desired

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/internal/testing/manifest"
)

// TestProxyFiles: a proxy may open as many files as its threads have connections to servers, and a few servers more do
// not replace it.
func TestProxyFiles(t *testing.T) {
	t.Parallel()
	const clients, threads = 1024, 4
	limit := func(size int) int {
		mc := manifest.Parse(t, manifest.Named("cache", fmt.Sprintf("{size: %d, workload: StatefulSet, proxy: {}}", size)))
		args := proxyDeployment(mc, Inputs{image: "memcached:1", size: names.Size(mc)}).Spec.Template.Spec.Containers[0].Args
		n, err := strconv.Atoi(args[slices.Index(args, "-c")+1])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, size := range []int{0, 1, 128, 129, 400, 1000} {
		if got := limit(size); got < clients+threads*size {
			t.Errorf("with %d servers a proxy may open %d files", size, got)
		}
	}
	if limit(1) != limit(128) || limit(300) != limit(500) {
		t.Error("a few servers more replace the proxies")
	}
}

// TestProxyPlacement: servers and proxies each have an affinity and spread constraints of their own, because the
// selectors in them match the pods of one component. The other fields of spec.pod are for all pods.
func TestProxyPlacement(t *testing.T) {
	t.Parallel()
	mc := manifest.Parse(t, manifest.Named("cache", `{workload: StatefulSet, proxy: {}, pod: {
		affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: rack}]}},
		priorityClassName: high,
		topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}]}}`))
	server := podTemplate(mc, Record{}, Options{}).Spec
	if server.Affinity == nil || len(server.TopologySpreadConstraints) != 1 || server.PriorityClassName == nil {
		t.Errorf("servers lack a field of spec.pod: %+v", server)
	}
	proxy := proxyDeployment(mc, Inputs{size: names.Size(mc)}).Spec.Template.Spec
	if proxy.TopologySpreadConstraints != nil || proxy.PriorityClassName == nil {
		t.Errorf("proxies are placed as servers, or lack a field of spec.pod: %+v", proxy)
	}
	mc.Spec.Proxy.Affinity, mc.Spec.Pod.Affinity = mc.Spec.Pod.Affinity, nil
	server = podTemplate(mc, Record{}, Options{}).Spec
	proxy = proxyDeployment(mc, Inputs{size: names.Size(mc)}).Spec.Template.Spec
	required := func(pod *corev1ac.PodSpecApplyConfiguration) int {
		return len(pod.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	if required(server) != 0 || required(proxy) != 1 {
		t.Errorf("want the affinity of the proxies alone, got %+v and %+v", server.Affinity, proxy.Affinity)
	}
}

// TestSpread: pods are spread over nodes and over zones unless the user says how. A constraint without a selector
// counts the pods of the component.
func TestSpread(t *testing.T) {
	t.Parallel()
	const nodes, zones = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
	constraints := func(more ...string) string {
		const constraint = "{maxSkew: 1, whenUnsatisfiable: DoNotSchedule, topologyKey: "
		return "topologySpreadConstraints: [" + constraint + strings.Join(more, "}, "+constraint) + "}]"
	}
	for pod, want := range map[string][]string{
		"{}":                                {nodes, zones},
		"{affinity: {}}":                    {nodes, zones},
		"{affinity: {nodeAffinity: {}}}":    {nodes, zones},
		"{affinity: {podAntiAffinity: {}}}": nil,
		"{" + constraints("rack") + "}":     {nodes, zones},
		"{" + constraints(zones) + "}":      {nodes},
		"{" + constraints(nodes+", matchLabelKeys: [a]") + "}":          {zones},
		"{" + constraints(nodes+", labelSelector: {}") + "}":            {zones},
		"{" + constraints(nodes, zones) + "}":                           nil,
		"{" + constraints(zones) + ", affinity: {podAntiAffinity: {}}}": nil,
	} {
		mc := manifest.Parse(t, manifest.Named("cache", fmt.Sprintf("{workload: StatefulSet, pod: %s, proxy: %s}", pod, pod)))
		for component, template := range map[string]*corev1ac.PodTemplateSpecApplyConfiguration{
			"server": podTemplate(mc, Record{}, Options{}),
			"proxy":  proxyDeployment(mc, Inputs{size: names.Size(mc)}).Spec.Template} {
			var terms []corev1ac.WeightedPodAffinityTermApplyConfiguration
			if a := template.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
				terms = a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
			}
			var keys []string
			for _, term := range terms {
				keys = append(keys, *term.PodAffinityTerm.TopologyKey)
				if got := term.PodAffinityTerm.LabelSelector.MatchLabels[v1alpha1.ComponentLabel]; got != component {
					t.Errorf("%s: each %s is spread against the pods of %q", pod, component, got)
				}
			}
			if !slices.Equal(keys, want) {
				t.Errorf("%s: want each %s spread over %q, got %q", pod, component, want, keys)
			}
			for i, c := range template.Spec.TopologySpreadConstraints {
				wantLabels, given := names.Component(component).Selector(mc), mc.Spec.Pod.TopologySpreadConstraints[i]
				if given.LabelSelector != nil {
					wantLabels = nil
				}
				if got := c.LabelSelector.MatchLabels; !maps.Equal(got, wantLabels) ||
					!slices.Equal(c.MatchLabelKeys, given.MatchLabelKeys) {
					t.Errorf("%s: the constraint of each %s selects %v and %v", pod, component, got, c.MatchLabelKeys)
				}
			}
		}
	}
}
