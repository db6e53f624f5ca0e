// Package desired builds the children that a Memcached should have. It is pure: no client, no clock.
package desired

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// Plan holds the children that a Memcached should have.
type Plan struct {
	// Children are all children that the Memcached should have, in the order in which they are written. A child that is
	// not among them is deleted.
	Children []runtime.ApplyConfiguration
	// Guards are, for a workload, the children without which it is not written: the Services that have the names and
	// addresses of its pods, the policy that restricts access, and the configuration that the pods read. A foreign object
	// could have the name of each. The configuration of the proxies is written after the workload of the servers.
	Guards map[runtime.ApplyConfiguration][]runtime.ApplyConfiguration
	// Preserve is the workload if its existing pod template stays; nil otherwise.
	Preserve runtime.ApplyConfiguration
	// Servers and Proxies are the workloads; nil for none.
	Servers, Proxies *Workload
}

// Workload says what is planned for a Deployment or StatefulSet.
type Workload struct {
	// Replicas is the number of pods.
	Replicas int32
	// NewTemplate says that existing servers get another pod template.
	NewTemplate bool
	// Template is TemplateAnnotation of the proxies.
	Template string
	// ProxyServers is ProxyServersAnnotation of the servers.
	ProxyServers string
}

// NewPlan returns the plan for mc.
func NewPlan(mc *v1alpha1.Memcached, in Inputs) Plan {
	p := Plan{Guards: map[runtime.ApplyConfiguration][]runtime.ApplyConfiguration{}}
	guards, proxyGuards := networkPolicies(mc, in.options.Namespace)
	guards = append(guards, headlessService(mc))
	if names.ServerServices(mc) {
		for i := range in.size {
			guards = append(guards, serverService(mc, i))
		}
	}
	if mc.Spec.Discovery != nil {
		guards = append(guards, discovery(mc, in)...)
	}
	var workload runtime.ApplyConfiguration
	switch {
	case in.record.Template == nil:
	case mc.Spec.Workload == v1alpha1.WorkloadStatefulSet:
		workload = statefulSet(mc, in)
	default:
		workload = deployment(mc, in)
	}
	p.add(guards, disruptionBudgets(mc, names.Servers), workload)
	if in.preserveTemplate {
		p.Preserve = workload
	}
	if workload != nil {
		p.Servers = &Workload{Replicas: in.size, NewTemplate: in.newTemplate,
			ProxyServers: in.annotations[v1alpha1.ProxyServersAnnotation]}
	}
	if mc.Spec.Proxy != nil {
		config := proxyConfig(mc, in.proxyServers)
		if workload != nil { // its annotation is the original of the list
			p.Guards[config] = []runtime.ApplyConfiguration{workload}
		}
		proxyGuards = append(proxyGuards, service(mc, names.Proxy(mc), names.Proxies, true), config)
		proxy := proxyDeployment(mc, in)
		p.add(proxyGuards, disruptionBudgets(mc, names.Proxies), proxy)
		p.Proxies = &Workload{Replicas: mc.Spec.Proxy.Size, Template: proxy.Annotations[v1alpha1.TemplateAnnotation]}
	}
	return p
}

// add adds the children of one component; workload is nil where it cannot be built.
func (p *Plan) add(guards, budgets []runtime.ApplyConfiguration, workload runtime.ApplyConfiguration) {
	p.Children = append(append(p.Children, guards...), budgets...)
	if workload != nil {
		p.Children = append(p.Children, workload)
		p.Guards[workload] = guards
	}
}

// headlessService has a name that resolves to the addresses of all ready servers, and clients spread their keys over
// them. With a cluster IP, each request for a key would reach another server. The names of a StatefulSet's servers
// resolve even while a server restarts, so that clients preserve their hash ring.
func headlessService(mc *v1alpha1.Memcached) *corev1ac.ServiceApplyConfiguration {
	s := service(mc, mc.Name, names.Servers, !names.ServerServices(mc))
	s.Spec.WithClusterIP(corev1.ClusterIPNone)
	if mc.Spec.Workload == v1alpha1.WorkloadStatefulSet {
		s.Spec.WithPublishNotReadyAddresses(true)
	}
	return s
}

// serverService gives one server of a StatefulSet an address that outlives the server's pod. Without a pod,
// connections are refused at once. A terminating server is reachable until it stops, and a starting one as soon as it
// listens.
func serverService(mc *v1alpha1.Memcached, ordinal int32) *corev1ac.ServiceApplyConfiguration {
	s := service(mc, names.Server(mc, ordinal), names.Servers, mc.Spec.Proxy == nil)
	s.Spec.WithSelector(map[string]string{appsv1.StatefulSetPodNameLabel: names.Server(mc, ordinal)}).
		WithPublishNotReadyAddresses(true)
	return s
}

// service returns a Service with a cluster IP for the pods of a component. If clients do not connect to it, it gets no
// annotation of the user: a controller such as external-dns would publish the servers behind a proxy under the name of
// the proxy.
func service(mc *v1alpha1.Memcached, name string, component names.Component,
	forClients bool) *corev1ac.ServiceApplyConfiguration {
	s := owned(corev1ac.Service(name, mc.Namespace).
		WithSpec(corev1ac.ServiceSpec().
			WithType(corev1.ServiceTypeClusterIP).
			WithSelector(component.Selector(mc)).
			WithPorts(corev1ac.ServicePort().
				WithName(names.Port).
				WithPort(mc.Spec.ContainerPort).
				WithProtocol(corev1.ProtocolTCP).
				WithTargetPort(intstr.FromString(names.Port)))), mc, component)
	o := ptr.Deref(mc.Spec.Service, v1alpha1.ServiceSpec{Type: corev1.ServiceTypeClusterIP})
	if o.IPFamilyPolicy != "" {
		s.Spec.WithIPFamilyPolicy(o.IPFamilyPolicy)
	}
	if !forClients {
		return s
	}
	s.WithLabels(o.Labels)
	for key, value := range o.Annotations {
		s.WithAnnotations(map[string]string{key: strings.ReplaceAll(value, serviceName, name)})
	}
	s.Spec.WithType(o.Type)
	if o.TrafficDistribution != "" {
		s.Spec.WithTrafficDistribution(o.TrafficDistribution)
	}
	return s
}

// serviceName in an annotation stands for the name of the Service.
const serviceName = "$(SERVICE_NAME)"

// owned completes a child with its labels and annotations and the controller owner reference.
func owned[T interface {
	WithLabels(map[string]string) T
	WithAnnotations(map[string]string) T
	WithOwnerReferences(...*metav1ac.OwnerReferenceApplyConfiguration) T
}](child T, mc *v1alpha1.Memcached, component names.Component) T {
	return child.WithLabels(mc.Spec.Labels).WithLabels(component.Labels(mc)).WithAnnotations(mc.Spec.Annotations).
		WithOwnerReferences(metav1ac.OwnerReference().
			WithAPIVersion(v1alpha1.GroupVersion.String()).
			WithKind("Memcached").
			WithName(mc.Name).
			WithUID(mc.UID).
			WithController(true).
			WithBlockOwnerDeletion(true))
}

func matchSelector(mc *v1alpha1.Memcached, component names.Component) *metav1ac.LabelSelectorApplyConfiguration {
	return metav1ac.LabelSelector().WithMatchLabels(component.Selector(mc))
}
