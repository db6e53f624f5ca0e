package desired

import (
	_ "embed"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// proxyProgram configures memcached's proxy. The stock configuration, routelib, cannot treat a failed server as a miss:
// with a route that does, memcached 1.6.45 crashes with a segmentation fault.
//
//go:embed proxy.lua
var proxyProgram string

const (
	proxyPath = "/etc/memcached/proxy"
	// ProxyDelay is how long a proxy may take to use a server, in seconds. For a changed list of servers: the kubelet
	// updates the file within about a second, proxy.lua reads the file within another, and one second remains for a retry
	// of the connection. For a server that became ready again: proxy.lua tries twice, and one second more, because
	// Kubernetes stores times in whole seconds, so that minReadySeconds may end up to a second early.
	ProxyDelay = 3
	// proxyReady is the minReadySeconds of the proxies: kube-proxy, which sends clients to them, writes its rules once a
	// second (minSyncPeriod in KubeProxyConfiguration).
	proxyReady = 2
)

// proxyConfig lists the servers by the addresses of their Services, in the order of their ordinals: the position in the
// list decides which keys a server stores.
func proxyConfig(mc *v1alpha1.Memcached, servers []string) *corev1ac.ConfigMapApplyConfiguration {
	// Limit the responses that slow clients have not read to half of the memory, or the kernel would kill the proxy.
	memory := resource.MustParse(mc.Spec.Proxy.Memory)
	return owned(corev1ac.ConfigMap(names.Proxy(mc), mc.Namespace).
		WithData(map[string]string{
			"proxy.lua": fmt.Sprintf("local answers = %d -- KiB\n%s", memory.Value()/2/1024, proxyProgram),
			"servers":   strings.Join(servers, "\n") + "\n",
		}), mc, names.Proxies)
}

// proxyDeployment runs the proxies. They hold no items, so a new one starts before an old one stops, and an upgrade of
// the operator may replace them.
func proxyDeployment(mc *v1alpha1.Memcached, in Inputs) *appsv1ac.DeploymentApplyConfiguration {
	p := mc.Spec.Proxy
	// Each thread has a connection to each server, and a proxy that may not open that many files exits. The number grows
	// in steps, because a new number replaces the proxies.
	servers := int32(128)
	for servers < names.Size(mc) {
		servers *= 2
	}
	connections := mc.Spec.MaxConnections + servers*p.Threads
	if needsAgent(mc) {
		connections += agentConnections
	}
	itemSize := resource.MustParse(mc.Spec.MaxItemSize)
	items := max(64*mebi, 2*itemSize.Value()) // memcached requires -m to be at least twice -I; proxies store no items
	args := append(baseArguments(mc, items, connections, p.Threads), "--extended=proxy_config="+proxyPath+"/proxy.lua")
	template := memcachedPod(mc, names.Proxies, in, args, proxyResources(p))
	template.Spec.WithVolumes(corev1ac.Volume().WithName("proxy").
		WithConfigMap(corev1ac.ConfigMapVolumeSource().WithName(names.Proxy(mc))))
	template.Spec.Containers[0].WithVolumeMounts(
		corev1ac.VolumeMount().WithName("proxy").WithMountPath(proxyPath).WithReadOnly(true))
	if needsAgent(mc) { // with spec.metrics: proxies have neither TLS nor passwords
		addAgent(mc, names.Proxies, in.options.AgentImage, template.Spec)
	}
	return owned(appsv1ac.Deployment(names.Proxy(mc), mc.Namespace).
		WithLabels(in.labels). // the same as on the servers' workload
		WithSpec(deploymentSpec(mc, names.Proxies, 1, 0).
			WithReplicas(p.Size).
			WithMinReadySeconds(proxyReady).
			// The API server requires more than minReadySeconds.
			WithProgressDeadlineSeconds(max(mc.Spec.Rollout.ProgressDeadlineSeconds, proxyReady+1)).
			WithTemplate(template)), mc, names.Proxies)
}
