// Package names says how the children of a Memcached are named and labelled, and where clients find its servers.
// Builders and status ask the same.
package names

import (
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/example/memcached-operator/api/v1alpha1"
)

const (
	// Operator is the field manager of every write, and the value of the managed-by label of every child.
	Operator = "memcached-operator"
	// Container is the name of the container in which memcached runs.
	Container = "memcached"
	// Port is the name of the port that memcached listens on.
	Port = "memcached"
)

// Labels of every child.
const (
	LabelName      = "app.kubernetes.io/name"
	LabelInstance  = "app.kubernetes.io/instance"
	LabelComponent = "app.kubernetes.io/component"
	LabelPartOf    = "app.kubernetes.io/part-of"
	LabelManagedBy = "app.kubernetes.io/managed-by"
)

// Selector selects the servers of mc, and no others: two Memcacheds in one namespace never share a pod.
func Selector(mc *v1alpha1.Memcached) map[string]string {
	return map[string]string{
		LabelName:      "memcached",
		LabelInstance:  mc.Name,
		LabelComponent: "server",
	}
}

// SelectorQuery is Selector in the form of a label query.
func SelectorQuery(mc *v1alpha1.Memcached) string {
	return labels.SelectorFromSet(Selector(mc)).String()
}

// Labels are on every child and pod of mc. They do not copy those of mc itself: tracking labels of GitOps tools would
// make the children look like objects of the application, which the tools then prune.
func Labels(mc *v1alpha1.Memcached) map[string]string {
	l := Selector(mc)
	l[LabelPartOf] = "memcached"
	l[LabelManagedBy] = Operator
	return l
}

// PodLabels are the labels of the pods of mc: the user's, and ours, which win.
func PodLabels(mc *v1alpha1.Memcached) map[string]string {
	l := map[string]string{}
	maps.Copy(l, Pod(mc).Labels)
	maps.Copy(l, Labels(mc))
	return l
}

// Size is the number of servers that mc asks for.
func Size(mc *v1alpha1.Memcached) int32 {
	if mc.Spec.Size == nil {
		return 1
	}
	return *mc.Spec.Size
}

// Pod is spec.pod, empty where it is not set.
func Pod(mc *v1alpha1.Memcached) v1alpha1.PodSpec {
	if mc.Spec.Pod == nil {
		return v1alpha1.PodSpec{}
	}
	return *mc.Spec.Pod
}

// Servers are the addresses to configure clients with: the name of the headless Service, and a port.
func Servers(mc *v1alpha1.Memcached, port int32) []string {
	return []string{fmt.Sprintf("%s.%s.svc:%d", mc.Name, mc.Namespace, port)}
}
