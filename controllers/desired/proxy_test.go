package desired

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/example/memcached-operator/tests/manifest"
)

// TestProxyFiles: a proxy may open as many files as its threads have connections to servers, and a few servers more do
// not replace it.
func TestProxyFiles(t *testing.T) {
	t.Parallel()
	const clients, threads = 1024, 4
	limit := func(size int) int {
		mc := manifest.Parse(t, manifest.Named("cache", fmt.Sprintf("{size: %d, workload: StatefulSet, proxy: {}}", size)))
		args := proxyDeployment(mc, Inputs{image: "memcached:1"}).Spec.Template.Spec.Containers[0].Args
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

// TestProxyPlacement: affinity and spread constraints place servers, and their selectors match no proxy. The other
// fields are for all pods.
func TestProxyPlacement(t *testing.T) {
	t.Parallel()
	mc := manifest.Parse(t, manifest.Named("cache", `{workload: StatefulSet, proxy: {}, pod: {
		affinity: {podAntiAffinity: {}}, priorityClassName: high,
		topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}]}}`))
	server := podTemplate(mc, Inputs{}).Spec
	if server.Affinity == nil || len(server.TopologySpreadConstraints) != 1 || server.PriorityClassName == nil {
		t.Errorf("servers lack a field of spec.pod: %+v", server)
	}
	proxy := proxyDeployment(mc, Inputs{}).Spec.Template.Spec
	if proxy.Affinity != nil || proxy.TopologySpreadConstraints != nil || proxy.PriorityClassName == nil {
		t.Errorf("proxies are placed as servers, or lack a field of spec.pod: %+v", proxy)
	}
}
