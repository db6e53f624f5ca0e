package desired

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// proxyProgram configures memcached's proxy. The stock configuration, routelib, cannot treat a failed server as a miss:
// with a route that does, memcached 1.6.45 crashes with a segmentation fault.
//
//go:embed proxy.lua
var proxyProgram string

const (
	// proxyDelay is how long a proxy may take to use a server that became ready again, in seconds: proxy.lua tries twice,
	// and one second more, because Kubernetes stores times in whole seconds, so that minReadySeconds may end up to a
	// second early.
	proxyDelay = 3
	// proxyReady is the minReadySeconds of the proxies: kube-proxy, which sends clients to them, writes its rules once a
	// second (minSyncPeriod in KubeProxyConfiguration).
	proxyReady = 2
)

// proxyConfig lists the servers by the addresses of their Services. The position of a server in the list decides which
// keys the server stores.
func proxyConfig(mc *v1alpha1.Memcached, servers contract.Servers) *corev1ac.ConfigMapApplyConfiguration {
	// Limit the responses that slow clients have not read to half of the memory, or the kernel would kill the proxy.
	memory := resource.MustParse(mc.Spec.Proxy.Memory)
	source, _ := proxySource(mc.Spec.Proxy.Source)
	program := fmt.Sprintf("local answers = %d -- KiB\nlocal source = %s\n%s", memory.Value()/2/1024, source, proxyProgram)
	servers.Program = Digest(program)
	return owned(corev1ac.ConfigMap(names.Proxy(mc), mc.Namespace).
		WithData(servers.Files()).
		WithData(map[string]string{"proxy.lua": fmt.Sprintf("local program = %q\n%s", servers.Program, program)}),
		mc, names.Proxies)
}

// proxySource returns proxy.source as a table for the program: for ketama with one pool of all servers, otherwise with
// a pool for each. Ketama hashes the names of the servers, so the proxies connect to the names. The aliases let their
// pods resolve these: a look-up by DNS would block the clients of a thread.
func proxySource(source *v1alpha1.ProxySource) (table string, aliases []*corev1ac.HostAliasApplyConfiguration) {
	if source == nil {
		return "nil", nil
	}
	separator, part := "}, {", 1
	if source.Hash == v1alpha1.HashKetama {
		separator, part = ", ", 0
	}
	var servers []string
	for _, node := range source.Servers {
		parts := strings.Split(node, "|")
		servers = append(servers, fmt.Sprintf("%q", parts[part]+":"+parts[2]))
		if parts[part] != parts[1] {
			aliases = append(aliases, corev1ac.HostAlias().WithIP(parts[1]).WithHostnames(parts[0]))
		}
	}
	ends, _ := time.Parse(time.RFC3339, source.Until) // the CRD admits nothing else
	return fmt.Sprintf("{ ends = %d, hash = %q, pools = { { %s } } }", ends.Unix(), source.Hash,
		strings.Join(servers, separator)), aliases
}

// CanMove reports whether the items of a memcached with these arguments can be moved: memcached must list its keys, and
// number the versions of items.
func CanMove(args []string) bool {
	return !slices.ContainsFunc(args, func(arg string) bool {
		return arg == "--disable-cas" || arg == "--disable-dumping" || strings.Contains(arg, "no_lru_crawler") ||
			strings.Contains(arg, "no_modern")
	})
}

// MovesWhenReplaced reports whether the items of a server of mc move before the server is replaced.
func MovesWhenReplaced(mc *v1alpha1.Memcached) bool {
	p := mc.Spec.Proxy
	return p != nil && p.MoveItems != v1alpha1.MoveItemsOnResize && CanMove(mc.Spec.ExtraArgs)
}

// proxyDeployment runs the proxies. They hold no items, so a new one starts before an old one stops, and an upgrade of
// the operator may replace them.
func proxyDeployment(mc *v1alpha1.Memcached, in Inputs) *appsv1ac.DeploymentApplyConfiguration {
	p := mc.Spec.Proxy
	// Each thread has a connection to each server, and while servers change, to those before and after. A proxy that may
	// not open that many files exits. The number grows in steps, because a new number replaces the proxies.
	needed := 2 * max(names.Size(mc), in.size-1) // a spare server runs only during a rollout
	if p.Source != nil {
		needed += int32(len(p.Source.Servers))
	}
	servers := int32(256)
	for servers < needed {
		servers *= 2
	}
	connections := mc.Spec.MaxConnections + servers*p.Threads + agentConnections
	itemSize := resource.MustParse(mc.Spec.MaxItemSize)
	items := max(64*mebi, 2*itemSize.Value()) // memcached requires -m to be at least twice -I; proxies store no items
	memory := resource.MustParse(p.Memory)
	args := append(baseArguments(mc, items, connections, p.Threads),
		"--extended=proxy_config="+contract.ProxyPath+"/proxy.lua")
	template := memcachedPod(mc, names.Proxies, in.image, in.options, args,
		replaceResources("50m", memory, memory, p.Resources))
	template.Spec.WithVolumes(corev1ac.Volume().WithName("proxy").
		WithConfigMap(corev1ac.ConfigMapVolumeSource().WithName(names.Proxy(mc))))
	_, aliases := proxySource(p.Source)
	template.Spec.WithHostAliases(aliases...)
	template.WithAnnotations(names.Pod(mc).Annotations)
	addAgent(mc, names.Proxies, in.options.AgentImage, template.Spec)
	mount := corev1ac.VolumeMount().WithName("proxy").WithMountPath(contract.ProxyPath).WithReadOnly(true)
	template.Spec.Containers[0].WithVolumeMounts(mount)
	template.Spec.InitContainers[0].WithVolumeMounts(mount)
	return owned(appsv1ac.Deployment(names.Proxy(mc), mc.Namespace).
		WithLabels(in.labels). // the same as on the servers' workload
		WithAnnotations(map[string]string{v1alpha1.TemplateAnnotation: Digest(template)}).
		WithSpec(deploymentSpec(mc, names.Proxies, 1, 0).
			WithReplicas(p.Size).
			WithMinReadySeconds(proxyReady).
			// The API server requires more than minReadySeconds.
			WithProgressDeadlineSeconds(max(mc.Spec.Rollout.ProgressDeadlineSeconds, proxyReady+1)).
			WithTemplate(template)), mc, names.Proxies)
}

// ReadProxyServers reads ProxyServersAnnotation of a StatefulSet. If it was lost, the ConfigMap of the proxies, which
// has the list too, replaces it.
func ReadProxyServers(annotations map[string]string, config contract.Servers) (s contract.Servers) {
	if json.Unmarshal([]byte(annotations[v1alpha1.ProxyServersAnnotation]), &s) != nil {
		return config
	}
	return s
}

// Ordinals returns the ordinals of servers.
func Ordinals(mc *v1alpha1.Memcached, servers []contract.Server) (list []int) {
	for _, s := range servers {
		list = append(list, names.Ordinal(mc.Name, s.Name))
	}
	return list
}
