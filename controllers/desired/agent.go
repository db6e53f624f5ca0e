package desired

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/example/memcached-operator/agent"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// agentConnections are added to those of clients: the agent keeps one for the metrics, and opens another to check what
// memcached reloaded.
const agentConnections = 2

// needsAgent reports whether an agent runs beside each server of mc.
func needsAgent(mc *v1alpha1.Memcached) bool {
	return mc.Spec.Metrics != nil || mc.Spec.TLS != nil || mc.Spec.Auth != nil
}

// agentContainer runs beside memcached: it starts before memcached, ends after it, and is restarted without it.
// https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/
// It has no probe: memcached serves clients also while the agent does not answer.
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

// addAgent puts the agent beside memcached, with what it needs of the pod.
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
