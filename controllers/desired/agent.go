package desired

import (
	"path"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/example/memcached-operator/agent"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// agentConnections are those that the agent takes beside those of clients: one that stays, for the metrics, and one by
// which the agent checks what memcached reloaded.
const agentConnections = 2

// needsAgent reports whether an agent runs beside each server of mc.
func needsAgent(mc *v1alpha1.Memcached) bool {
	return mc.Spec.Metrics != nil || mc.Spec.TLS != nil || mc.Spec.Auth != nil
}

// agentContainer runs beside memcached: it starts before memcached, ends after it, and is started again without it.
// https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/
func agentContainer(mc *v1alpha1.Memcached, image string) *corev1ac.ContainerApplyConfiguration {
	options := agent.Options{Port: int(mc.Spec.ContainerPort), Namespace: mc.Namespace}
	var ports []*corev1ac.ContainerPortApplyConfiguration
	if m := mc.Spec.Metrics; m != nil {
		options.MetricsPort = int(m.Port)
		ports = append(ports, containerPort(names.MetricsPort, m.Port))
	}
	if t := mc.Spec.TLS; t != nil {
		options.TLSSecret, options.ClientAuth = t.SecretName, clientAuth(mc)
	}
	if a := mc.Spec.Auth; a != nil {
		options.AuthSecret = a.SecretName
	}
	return restricted("agent", image, options.Args(), agentResources(mc)).
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
		pod.WithShareProcessNamespace(true) // for the signal at which memcached reads its files again
		file := corev1ac.DownwardAPIVolumeFile().
			WithPath(path.Base(agent.WantedPath)).
			WithFieldRef(corev1ac.ObjectFieldSelector().
				WithAPIVersion("v1"). // a default that the API server would add
				WithFieldPath("metadata.annotations['" + v1alpha1.SecretsAnnotation + "']"))
		mount(pod, corev1ac.Volume().WithName("wanted").WithDownwardAPI(corev1ac.DownwardAPIVolumeSource().WithItems(file)),
			readOnly(path.Dir(agent.WantedPath)), c)
	}
	pod.WithInitContainers(c)
}
