// Package names defines the names and labels of a Memcached's children, and the host names of its servers. The packages
// desired and status share it.
package names

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/api/v1alpha1"
)

const (
	// Operator is the field manager of every write, and the value of the managed-by label of every child.
	Operator = "memcached-operator"
	// Container is the name of the container in which memcached runs.
	Container = "memcached"
	// Agent is the name of the container in which the agent (sidecar) runs.
	Agent = "agent"
	// Port is the name of the port that memcached listens on.
	Port = "memcached"
	// PodVolume is the name of the volume from which the agent reads what annotations of the pod ask for.
	PodVolume = "pod"
	// MetricsPort is the name of the port that the agent serves metrics on.
	MetricsPort = "metrics"
)

// Labels of every child that Kubernetes recommends. Nothing of ours selects pods by them.
const (
	labelName      = "app.kubernetes.io/name"
	labelInstance  = "app.kubernetes.io/instance"
	labelComponent = "app.kubernetes.io/component"
	labelPartOf    = "app.kubernetes.io/part-of"
	LabelManagedBy = "app.kubernetes.io/managed-by"
)

// Component is a part of a Memcached: the value of the component label of the part's pods and other children.
type Component string

// Components of a Memcached.
const (
	Servers Component = "server"
	Proxies Component = "proxy"
)

// Selector selects the pods of a component of mc, and no others: two Memcacheds in one namespace never share a pod.
func (c Component) Selector(mc *v1alpha1.Memcached) map[string]string {
	return map[string]string{v1alpha1.NameLabel: mc.Name, v1alpha1.ComponentLabel: string(c)}
}

// Labels are on every child and pod of a component of mc. They do not copy those of mc itself: tracking labels of
// GitOps tools would make the children look like objects of the application, which the tools then prune.
func (c Component) Labels(mc *v1alpha1.Memcached) map[string]string {
	return labels.Merge(Labels(mc), map[string]string{v1alpha1.ComponentLabel: string(c), labelComponent: string(c)})
}

// PodLabels returns the labels of the pods of a component of mc: the user's, overridden by ours.
func (c Component) PodLabels(mc *v1alpha1.Memcached) map[string]string {
	return labels.Merge(labels.Set(Pod(mc).Labels), c.Labels(mc))
}

// Labels are on every child of mc, whatever its component. The recommended name is not memcached: by that name and the
// instance, a chart's Service, budget or policy would select the pods of a Memcached with the name of its release.
func Labels(mc *v1alpha1.Memcached) map[string]string {
	return map[string]string{
		v1alpha1.NameLabel: mc.Name,
		labelName:          "managed-memcached",
		labelInstance:      mc.Name,
		labelPartOf:        "memcached",
		LabelManagedBy:     Operator,
	}
}

// Generation is the generation of mc, as the value of a label.
func Generation(mc *v1alpha1.Memcached) string { return strconv.FormatInt(mc.Generation, 10) }

// Size returns the desired number of servers.
func Size(mc *v1alpha1.Memcached) int32 { return ptr.Deref(mc.Spec.Size, 1) }

// Pod is spec.pod, empty where it is not set.
func Pod(mc *v1alpha1.Memcached) v1alpha1.PodSpec { return ptr.Deref(mc.Spec.Pod, v1alpha1.PodSpec{}) }

// Server is the name of a server of a StatefulSet, and of the Service that has its address.
func Server(mc *v1alpha1.Memcached, ordinal int32) string {
	return fmt.Sprintf("%s-%d", mc.Name, ordinal)
}

// Ordinal returns the ordinal of a server of the StatefulSet with this name; -1 for another name.
func Ordinal(set, server string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(server, set+"-"))
	if err != nil || n < 0 || fmt.Sprintf("%s-%d", set, n) != server {
		return -1
	}
	return n
}

// Proxy is the name of the proxy of mc, and of the Service that has its address.
func Proxy(mc *v1alpha1.Memcached) string { return mc.Name + "-proxy" }

// ServerServices reports whether each server of mc has a Service of its own.
func ServerServices(mc *v1alpha1.Memcached) bool {
	return mc.Spec.ServerAddresses == v1alpha1.AddressesClusterIP || mc.Spec.Proxy != nil
}

// Discovery is the name of the Service and of the ConfigMap that have the list of servers for clients.
func Discovery(mc *v1alpha1.Memcached) string { return mc.Name + "-discovery" }

// ReportPort is the port on which agents report to the operator.
func ReportPort(mc *v1alpha1.Memcached) int32 { return freePort(mc, 9151) }

// DiscoveryPort is the port on which agents send clients the list of servers.
func DiscoveryPort(mc *v1alpha1.Memcached) int32 { return freePort(mc, ReportPort(mc)+1) }

// freePort returns the first port, from one on, that neither memcached nor the metrics have.
func freePort(mc *v1alpha1.Memcached, port int32) int32 {
	for port == mc.Spec.ContainerPort || mc.Spec.Metrics != nil && port == mc.Spec.Metrics.Port {
		port++
	}
	return port
}

// Host is the name of the headless Service, which resolves to the addresses of the servers. With the name of a server
// and a dot in front, it resolves to that server's address.
func Host(mc *v1alpha1.Memcached) string { return ServiceHost(mc, mc.Name) }

// ServiceHost is the name that resolves to the address of a Service of mc.
func ServiceHost(mc *v1alpha1.Memcached, service string) string {
	return fmt.Sprintf("%s.%s.svc", service, mc.Namespace)
}
