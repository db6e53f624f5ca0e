package desired

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/credentials"
)

// memcachedUser is the user and the group in the upstream image. It is spelled out because the image names its user,
// and the kubelet cannot verify by a name that the user is not root.
const memcachedUser = 11211

// agentConnections are added to spec.maxConnections: the agent keeps one connection for statistics, and needs another
// to verify what memcached has reloaded.
const agentConnections = 2

// needsAgent reports whether an agent runs beside each server of mc; one runs beside each proxy in any case.
func needsAgent(mc *v1alpha1.Memcached) bool {
	return serversReport(mc) || mc.Spec.TLS != nil || mc.Spec.Auth != nil
}

// serversReport says whether the agents of servers report to the operator, and do what the operator asks for. In a
// Deployment with only tls or auth, memcached may refuse the agent.
func serversReport(mc *v1alpha1.Memcached) bool {
	return mc.Spec.Workload == v1alpha1.WorkloadStatefulSet || mc.Spec.Metrics != nil
}

// podTemplate is the pod template of the servers, without the annotations that the user gives to pods. A change of this
// function reaches a running cache only when its user changes something that replaces the servers anyway.
func podTemplate(mc *v1alpha1.Memcached, r Record, o Options) *corev1ac.PodTemplateSpecApplyConfiguration {
	template := serverTemplate(mc, r, o)
	if mc.Spec.Workload != v1alpha1.WorkloadStatefulSet {
		return template
	}
	same := template
	if canChangeMemory(mc, o) {
		other := mc.DeepCopy()
		other.Spec.Memory = "0" // that of no spec
		same = serverTemplate(other, r, o)
	}
	return template.WithAnnotations(map[string]string{
		v1alpha1.TemplateAnnotation: Digest([]any{same, names.Pod(mc).Annotations})})
}

func serverTemplate(mc *v1alpha1.Memcached, r Record, o Options) *corev1ac.PodTemplateSpecApplyConfiguration {
	template := memcachedPod(mc, names.Servers, r.Image, o, arguments(mc), resources(mc))
	if MovesWhenReplaced(mc) {
		addDrain(mc, template)
	}
	if needsAgent(mc) {
		addAgent(mc, names.Servers, r.Agent, template.Spec)
	}
	if r.RestartedAt != "" {
		template.WithAnnotations(map[string]string{v1alpha1.RestartedAtAnnotation: r.RestartedAt})
	}
	if version := r.Secrets.revokedVersion(); version != "" {
		template.WithAnnotations(map[string]string{v1alpha1.RevokedAnnotation: version})
	}
	return template
}

const (
	// drainSeconds is how long the items of a server may take to move before the server stops in any case: as long as all
	// steps of a move take, and for each GiB of memory 64 s more. In these, 20,000 items a second move, of 840 bytes each.
	drainSeconds, drainSecondsPerGi = 90, 64
	// killSeconds is how long a memcached that does not answer its probe may take to stop.
	killSeconds = 10
)

// drainToken is known only to those who may read Memcacheds or their pods.
func drainToken(mc *v1alpha1.Memcached) string { return Digest(mc.UID) }

// drainTime is the grace period of a server with a drain, in seconds.
func drainTime(mc *v1alpha1.Memcached) int64 {
	memory := resource.MustParse(mc.Spec.Memory)
	return drainSeconds + memory.Value()*drainSecondsPerGi>>30
}

// addDrain makes the kubelet ask the agent before it stops memcached. A sleep would not do: the kubelet does not
// shorten it when the operator shortens the grace period of the pod.
func addDrain(mc *v1alpha1.Memcached, template *corev1ac.PodTemplateSpecApplyConfiguration) {
	template.WithAnnotations(map[string]string{v1alpha1.DrainAnnotation: drainToken(mc)})
	pod, c := template.Spec, &template.Spec.Containers[0]
	c.Lifecycle.PreStop = corev1ac.LifecycleHandler().WithHTTPGet(corev1ac.HTTPGetAction().
		WithPath(contract.DrainPath + drainToken(mc)).WithPort(intstr.FromInt32(names.ReportPort(mc))).
		WithScheme(corev1.URISchemeHTTP))
	pod.WithTerminationGracePeriodSeconds(drainTime(mc))
	c.StartupProbe.WithTerminationGracePeriodSeconds(killSeconds)
	c.LivenessProbe.WithTerminationGracePeriodSeconds(killSeconds)
}

// memcachedPod is what the pods of all components have in common. They comply with the restricted Pod Security Standard
// unless the user overrides a field of the security context.
func memcachedPod(mc *v1alpha1.Memcached, component names.Component, image string, o Options, args []string,
	resources *corev1ac.ResourceRequirementsApplyConfiguration) *corev1ac.PodTemplateSpecApplyConfiguration {
	security := corev1ac.PodSecurityContext().
		WithRunAsNonRoot(true).
		WithSeccompProfile(corev1ac.SeccompProfile().WithType(corev1.SeccompProfileTypeRuntimeDefault))
	if !o.OpenShift {
		security.WithRunAsUser(memcachedUser).WithRunAsGroup(memcachedUser)
	}
	spec := corev1ac.PodSpec().
		WithAutomountServiceAccountToken(false).
		WithEnableServiceLinks(false).
		WithTerminationGracePeriodSeconds(30).
		WithNodeSelector(map[string]string{corev1.LabelOSStable: "linux"}).
		WithSecurityContext(security).
		WithContainers(restrictedContainer(mc, names.Container, image, resources).
			WithCommand("memcached").
			WithArgs(args...).
			WithPorts(containerPort(names.Port, mc.Spec.ContainerPort)).
			WithStartupProbe(probe(1, 60)).
			WithReadinessProbe(probe(5, 2)).
			WithLivenessProbe(probe(10, 6)).
			// Let clients and Services notice that a server terminates before it stops.
			WithLifecycle(corev1ac.Lifecycle().
				WithPreStop(corev1ac.LifecycleHandler().
					WithSleep(corev1ac.SleepAction().WithSeconds(5)))))
	given := names.Pod(mc)
	given.Resources = nil // these are the container's, not the pod's
	if component == names.Proxies {
		given.Placement = mc.Spec.Proxy.Placement
	}
	given.TopologySpreadConstraints = slices.Clone(given.TopologySpreadConstraints) // the original is in the cache
	preferred := sets.New(corev1.LabelHostname, corev1.LabelTopologyZone)
	for i := range given.TopologySpreadConstraints {
		c := &given.TopologySpreadConstraints[i]
		preferred.Delete(c.TopologyKey)
		if c.LabelSelector == nil { // would match no pod
			c.LabelSelector = &metav1.LabelSelector{MatchLabels: component.Selector(mc)}
		}
	}
	if a := given.Affinity; (a == nil || a.PodAntiAffinity == nil) && len(preferred) > 0 {
		spec.WithAffinity(spread(mc, component, sets.List(preferred)))
	}
	if len(given.ImagePullSecrets) == 0 {
		for _, name := range o.ImagePullSecrets {
			spec.WithImagePullSecrets(corev1ac.LocalObjectReference().WithName(name))
		}
	}
	if given.ServiceAccountName != "" {
		// The API server copies the name to this alias, and back once only serviceAccountName is removed.
		spec.WithDeprecatedServiceAccount(given.ServiceAccountName)
	}
	if given.ImagePullPolicy != "" {
		spec.Containers[0].WithImagePullPolicy(given.ImagePullPolicy)
	}
	return corev1ac.PodTemplateSpec().
		WithLabels(component.PodLabels(mc)).
		WithSpec(convert(given, spec))
}

// spread makes the scheduler prefer nodes and zones, those with the topology keys, with the fewest pods of the
// component, so that the loss of a node or zone loses few servers. Topology spread constraints would not do: the
// scheduler ignores nodes that lack one of the labels, which is every node of a cluster without zones.
// https://github.com/kubernetes/kubernetes/blob/v1.37.1/pkg/scheduler/framework/plugins/podtopologyspread/scoring.go
func spread(mc *v1alpha1.Memcached, component names.Component, keys []string) *corev1ac.AffinityApplyConfiguration {
	a := corev1ac.PodAntiAffinity()
	for _, key := range keys {
		a.WithPreferredDuringSchedulingIgnoredDuringExecution(corev1ac.WeightedPodAffinityTerm().
			WithWeight(100).
			WithPodAffinityTerm(corev1ac.PodAffinityTerm().
				WithTopologyKey(key).
				WithLabelSelector(matchSelector(mc, component))))
	}
	return corev1ac.Affinity().WithPodAntiAffinity(a)
}

// restrictedContainer returns a container that complies with the restricted Pod Security Standard, unless the user
// overrides a field of the security context.
func restrictedContainer(mc *v1alpha1.Memcached, name, image string,
	resources *corev1ac.ResourceRequirementsApplyConfiguration) *corev1ac.ContainerApplyConfiguration {
	security := corev1ac.SecurityContext().
		WithAllowPrivilegeEscalation(false).
		WithReadOnlyRootFilesystem(true).
		WithCapabilities(corev1ac.Capabilities().WithDrop("ALL"))
	if given := names.Pod(mc).ContainerSecurityContext; given != nil {
		security = convert(given, security)
	}
	return corev1ac.Container().
		WithName(name).
		WithImage(image).
		WithResources(resources).
		WithSecurityContext(security).
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
	args := append(baseArguments(mc, memory.Value(), connections, mc.Spec.Threads), tlsArguments(mc)...)
	if mc.Spec.Auth != nil {
		args = append(args, "--auth-file="+contract.AuthPath+"/"+credentials.KeyAuthFile)
	}
	return append(args, mc.Spec.ExtraArgs...)
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

// addAgent adds the agent to a pod, with the volumes that it needs. It is a sidecar container: it starts before
// memcached, stops after it, and is restarted without it.
// https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/
// It has no probe: memcached serves clients even if the agent does not respond.
func addAgent(mc *v1alpha1.Memcached, component names.Component, image string,
	pod *corev1ac.PodSpecApplyConfiguration) {
	options := contract.Options{Port: int(mc.Spec.ContainerPort), TLS: tlsChecks(mc), Auth: mc.Spec.Auth != nil}
	resources := agentResources(mc, component)
	c := restrictedContainer(mc, names.Agent, image, resources).
		WithEnv(corev1ac.EnvVar().WithName("GOMAXPROCS").WithValue("1"),
			corev1ac.EnvVar().WithName("GOMEMLIMIT").WithValue(contract.GoMemoryLimit(resources.Limits.Memory().Value()))).
		WithRestartPolicy(corev1.ContainerRestartPolicyAlways)
	if t := mc.Spec.TLS; t != nil {
		mountSecret(pod, c, "tls", t.SecretName, contract.TLSPath, options.TLS.Keys())
		if kind, name := ClientCA(mc); name != "" {
			projectCA(&pod.Volumes[len(pod.Volumes)-1], kind, name)
		}
	}
	if a := mc.Spec.Auth; a != nil {
		mountSecret(pod, c, "auth", a.SecretName, contract.AuthPath, credentials.AuthKeys)
	}
	if m := mc.Spec.Metrics; m != nil {
		options.MetricsPort = int(m.Port)
		c.WithPorts(containerPort(names.MetricsPort, m.Port))
	}
	if component == names.Proxies || serversReport(mc) {
		options.ReportPort = int(names.ReportPort(mc))
		c.WithPorts(containerPort("report", names.ReportPort(mc)))
	}
	if component == names.Servers && serversReport(mc) {
		addPodVolume(pod, c)
		if MovesWhenReplaced(mc) {
			options.DrainToken = drainToken(mc)
		}
	}
	if component == names.Servers && mc.Spec.Discovery != nil {
		options.DiscoveryPort = int(names.DiscoveryPort(mc))
		addDiscovery(mc, pod, c)
	}
	if component == names.Proxies {
		options.Proxy = true
		c.WithEnv(corev1ac.EnvVar().WithName(contract.PodName).WithValueFrom(corev1ac.EnvVarSource().
			WithFieldRef(corev1ac.ObjectFieldSelector().WithAPIVersion("v1").WithFieldPath("metadata.name"))))
	}
	pod.WithInitContainers(c.WithArgs(options.Args()...))
}

// convert copies an API object into an apply configuration, whose fields have the same JSON form. Objects without
// fields are left out, except in lists, where a selector without fields selects everything: an apply that empties an
// object stores null first, and the object when the same apply is sent again, which would replace pods.
func convert[T any](in any, out *T) *T {
	var fields any
	transcode(in, &fields)
	removeEmptyObjects(fields)
	transcode(fields, out)
	return out
}

// transcode copies a value into one with the same JSON form. It cannot fail for the types of k8s.io/api, which
// round-trip by contract.
func transcode(in, out any) {
	b, err := json.Marshal(in)
	utilruntime.Must(err)
	utilruntime.Must(json.Unmarshal(b, out))
}

func removeEmptyObjects(from any) {
	fields, _ := from.(map[string]any)
	maps.DeleteFunc(fields, func(_ string, field any) bool {
		removeEmptyObjects(field)
		object, isObject := field.(map[string]any)
		return isObject && len(object) == 0
	})
}
