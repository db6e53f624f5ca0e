package desired

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/example/memcached-operator/agent"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// agentConnections are added to spec.maxConnections: the agent keeps one connection for the metrics, and opens another
// to verify what memcached has reloaded.
const agentConnections = 2

// needsAgent reports whether an agent runs beside each server of mc.
func needsAgent(mc *v1alpha1.Memcached) bool {
	return mc.Spec.Metrics != nil || mc.Spec.TLS != nil || mc.Spec.Auth != nil
}

// agentContainer is a sidecar container: it starts before memcached, stops after it, and is restarted without it.
// https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/
// It has no probe: memcached serves clients even if the agent does not respond.
func agentContainer(mc *v1alpha1.Memcached, image string) *corev1ac.ContainerApplyConfiguration {
	options := agent.Options{Port: int(mc.Spec.ContainerPort), TLS: tlsChecks(mc), Auth: mc.Spec.Auth != nil}
	var ports []*corev1ac.ContainerPortApplyConfiguration
	if m := mc.Spec.Metrics; m != nil {
		options.MetricsPort = int(m.Port)
		ports = append(ports, containerPort(names.MetricsPort, m.Port))
	}
	resources := agentResources(mc)
	limit := (*resources.Limits)[corev1.ResourceMemory]
	return restricted("agent", image, options.Args(), resources).
		WithEnv(corev1ac.EnvVar().WithName("GOMAXPROCS").WithValue("1"),
			corev1ac.EnvVar().WithName("GOMEMLIMIT").WithValue(agent.GoMemoryLimit(limit.Value()))).
		WithPorts(ports...).
		WithRestartPolicy(corev1.ContainerRestartPolicyAlways)
}

// addAgent adds the agent to a pod, with the volumes that it needs.
func addAgent(mc *v1alpha1.Memcached, image string, pod *corev1ac.PodSpecApplyConfiguration) {
	c := agentContainer(mc, image)
	mountSecrets(mc, pod, &pod.Containers[0], c)
	if mc.Spec.Metrics != nil {
		mount(pod, corev1ac.Volume().WithName("agent").WithEmptyDir(corev1ac.EmptyDirVolumeSource().
			WithMedium(corev1.StorageMediumMemory).WithSizeLimit(resource.MustParse("1Mi"))),
			corev1ac.VolumeMount().WithMountPath(agent.RunPath), c)
	}
	if mc.Spec.TLS != nil || mc.Spec.Auth != nil {
		pod.WithShareProcessNamespace(true) // for the signal on which memcached reloads its files
	}
	pod.WithInitContainers(c)
}
