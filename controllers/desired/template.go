package desired

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// userID and groupID are those of the memcached user in the upstream image. They are spelled out because the image
// names its user, and the kubelet cannot verify by a name that the user is not root.
const (
	userID  = 11211
	groupID = 11211
)

// podTemplate is the pod template of the servers. A change of this function reaches a running cache only when its user
// changes something that replaces the servers anyway.
func podTemplate(mc *v1alpha1.Memcached, in Inputs) *corev1ac.PodTemplateSpecApplyConfiguration {
	p := names.Pod(mc)
	server := container(in.image, mc.Spec.ContainerPort, arguments(mc), resources(mc))
	template := memcachedPod(mc, names.Servers, server, in.options)
	if needsAgent(mc) {
		addAgent(mc, in.agent, template.Spec)
	}
	if p.Affinity != nil {
		template.Spec.WithAffinity(convert(p.Affinity, corev1ac.Affinity()))
	}
	for i := range p.TopologySpreadConstraints {
		template.Spec.WithTopologySpreadConstraints(
			convert(&p.TopologySpreadConstraints[i], corev1ac.TopologySpreadConstraint()))
	}
	if in.restartedAt != "" {
		template.WithAnnotations(map[string]string{v1alpha1.RestartedAtAnnotation: in.restartedAt})
	}
	if restarts := in.secrets.revocations(); len(restarts) > 0 {
		template.WithAnnotations(map[string]string{v1alpha1.RevokedAnnotation: strings.Join(restarts, " ")})
	}
	return template
}

// memcachedPod is what the pods of all components have in common.
func memcachedPod(mc *v1alpha1.Memcached, component names.Component, c *corev1ac.ContainerApplyConfiguration,
	o Options) *corev1ac.PodTemplateSpecApplyConfiguration {
	p := names.Pod(mc)
	spec := corev1ac.PodSpec().
		WithAutomountServiceAccountToken(false).
		WithEnableServiceLinks(false).
		WithTerminationGracePeriodSeconds(30).
		WithSecurityContext(podSecurityContext(p, o)).
		WithContainers(c)
	if len(p.NodeSelector) > 0 {
		spec.WithNodeSelector(p.NodeSelector)
	}
	for i := range p.Tolerations {
		spec.WithTolerations(convert(&p.Tolerations[i], corev1ac.Toleration()))
	}
	if p.PriorityClassName != "" {
		spec.WithPriorityClassName(p.PriorityClassName)
	}
	for _, s := range p.ImagePullSecrets {
		spec.WithImagePullSecrets(corev1ac.LocalObjectReference().WithName(s.Name))
	}
	template := corev1ac.PodTemplateSpec().WithLabels(component.PodLabels(mc)).WithSpec(spec)
	if len(p.Annotations) > 0 {
		template.WithAnnotations(p.Annotations)
	}
	return template
}

func container(image string, port int32, args []string,
	resources *corev1ac.ResourceRequirementsApplyConfiguration) *corev1ac.ContainerApplyConfiguration {
	return restricted(names.Container, image, args, resources).
		WithCommand("memcached").
		WithPorts(containerPort(names.Port, port)).
		WithStartupProbe(probe(1, 60)).
		WithReadinessProbe(probe(5, 2)).
		WithLivenessProbe(probe(10, 6)).
		// Let clients and Services notice that a server terminates before it stops.
		WithLifecycle(corev1ac.Lifecycle().
			WithPreStop(corev1ac.LifecycleHandler().
				WithSleep(corev1ac.SleepAction().WithSeconds(5))))
}

// restricted returns a container that complies with the restricted Pod Security Standard.
func restricted(name, image string, args []string,
	resources *corev1ac.ResourceRequirementsApplyConfiguration) *corev1ac.ContainerApplyConfiguration {
	return corev1ac.Container().
		WithName(name).
		WithImage(image).
		WithArgs(args...).
		WithResources(resources).
		WithSecurityContext(corev1ac.SecurityContext().
			WithAllowPrivilegeEscalation(false).
			WithReadOnlyRootFilesystem(true).
			WithCapabilities(corev1ac.Capabilities().WithDrop("ALL"))).
		// The last lines of a log say why a container exited; the status quotes them.
		WithTerminationMessagePolicy(corev1.TerminationMessageFallbackToLogsOnError)
}

func containerPort(name string, port int32) *corev1ac.ContainerPortApplyConfiguration {
	return corev1ac.ContainerPort().WithName(name).WithContainerPort(port).WithProtocol(corev1.ProtocolTCP)
}

// arguments returns the options of memcached, where possible in the short form, which every version supports.
func arguments(mc *v1alpha1.Memcached) []string {
	memory, connections := resource.MustParse(mc.Spec.Memory), mc.Spec.MaxConnections
	if needsAgent(mc) {
		connections += agentConnections
	}
	return slices.Concat(baseArguments(mc, memory.Value(), connections, mc.Spec.Threads),
		tlsArguments(mc), authArguments(mc), mc.Spec.ExtraArgs)
}

func baseArguments(mc *v1alpha1.Memcached, memory int64, connections, threads int32) []string {
	itemSize := resource.MustParse(mc.Spec.MaxItemSize)
	return []string{
		"-p", strconv.Itoa(int(mc.Spec.ContainerPort)),
		"-m", strconv.FormatInt(memory/mebi, 10),
		"-c", strconv.Itoa(int(connections)),
		"-t", strconv.Itoa(int(threads)),
		"-I", strconv.FormatInt(itemSize.Value()/1024, 10) + "k",
	}
}

// probe opens a TCP connection. An exec probe would need a shell in the image, and memcached answers a command only
// after a login if spec.auth is set.
func probe(periodSeconds, failureThreshold int32) *corev1ac.ProbeApplyConfiguration {
	return corev1ac.Probe().
		WithTCPSocket(corev1ac.TCPSocketAction().WithPort(intstr.FromString(names.Port))).
		WithPeriodSeconds(periodSeconds).
		WithTimeoutSeconds(3).
		WithFailureThreshold(failureThreshold)
}

// podSecurityContext complies with the restricted Pod Security Standard. Users can override each field.
func podSecurityContext(p v1alpha1.PodSpec, o Options) *corev1ac.PodSecurityContextApplyConfiguration {
	c := corev1ac.PodSecurityContext().
		WithRunAsNonRoot(true).
		WithSeccompProfile(corev1ac.SeccompProfile().WithType(corev1.SeccompProfileTypeRuntimeDefault))
	if !o.OpenShift {
		c.WithRunAsUser(userID).WithRunAsGroup(groupID)
	}
	if p.SecurityContext != nil {
		if p.SecurityContext.SeccompProfile != nil {
			c.SeccompProfile = nil
		}
		convert(p.SecurityContext, c)
	}
	return c
}

// convert copies an API object into its apply configuration: the two have the same JSON form.
func convert[T any](in any, out *T) *T {
	b, err := json.Marshal(in)
	if err == nil {
		err = json.Unmarshal(b, out)
	}
	if err != nil {
		// Unreachable for the types of k8s.io/api, which round-trip by contract.
		panic(err)
	}
	return out
}
