package desired

import (
	"encoding/json"
	"net"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

const (
	portOfDiscovery = "discovery"
	// portOfClients is the port that managed services use, and that clients take without being told.
	portOfClients = 11211
	// publishedKey is the key in the ConfigMap that has the time when the list was published.
	publishedKey = "published"
)

// discovery publishes the list of servers: by a Service, whose port the agents answer, and as a ConfigMap for
// environments and mounted files, which has a key for each form that applications take.
func discovery(mc *v1alpha1.Memcached, in Inputs) []runtime.ApplyConfiguration {
	s := service(mc, names.Discovery(mc), names.Servers, false)
	s.Spec.Ports[0].WithName(portOfDiscovery).WithPort(portOfClients).
		WithTargetPort(intstr.FromInt32(names.DiscoveryPort(mc)))
	servers := []string{}
	for _, node := range in.list.Nodes {
		parts := strings.Split(node, "|")
		servers = append(servers, net.JoinHostPort(parts[1], parts[2]))
	}
	asJSON, _ := json.Marshal(servers) // only strings
	config := owned(corev1ac.ConfigMap(names.Discovery(mc), mc.Namespace).WithData(map[string]string{
		contract.ListFile:   in.list.String(),
		publishedKey:        in.published.UTC().Format(time.RFC3339),
		"MEMCACHED_SERVERS": strings.Join(servers, ","),
		"servers":           strings.Join(servers, "\n"),
		"servers.json":      string(asJSON),
	}), mc, names.Servers)
	return []runtime.ApplyConfiguration{s, config}
}

// ReadList reads the list from the content of its ConfigMap, and when it was published; zero if that is unknown.
func ReadList(data map[string]string) (list contract.List, published time.Time) {
	published, _ = time.Parse(time.RFC3339, data[publishedKey])
	return contract.ParseList(data[contract.ListFile]), published
}

// addDiscovery mounts the list of servers for the agent.
func addDiscovery(mc *v1alpha1.Memcached, pod *corev1ac.PodSpecApplyConfiguration,
	agent *corev1ac.ContainerApplyConfiguration) {
	pod.WithVolumes(corev1ac.Volume().WithName(portOfDiscovery).WithConfigMap(corev1ac.ConfigMapVolumeSource().
		WithName(names.Discovery(mc)).
		WithOptional(true). // a kept template may need it after discovery was removed
		WithItems(corev1ac.KeyToPath().WithKey(contract.ListFile).WithPath(contract.ListFile))))
	agent.WithVolumeMounts(corev1ac.VolumeMount().WithName(portOfDiscovery).WithMountPath(contract.DiscoveryPath).
		WithReadOnly(true))
	agent.WithPorts(containerPort(portOfDiscovery, names.DiscoveryPort(mc)))
}
