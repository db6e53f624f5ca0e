package steps

import (
	"cmp"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

// View is what is observed of a Memcached, and what steps are decided from.
type View struct {
	Memcached *v1alpha1.Memcached
	Observed
	// Record is that of the servers' template.
	Record desired.Record
	// Routing says which servers the proxies use.
	Routing Routing
	// Secrets is SecretsAnnotation of the servers; empty for none.
	Secrets string
	// TemplateApplied says that the pod template is the one that servers must have. It is set, as Secrets is, after the
	// children were applied.
	TemplateApplied bool
	// Reports are those of the agents that were asked, by the names of their pods.
	Reports map[string]Report
	// Poll says that it is time to ask all agents for what no watch event says.
	Poll bool
	Now  time.Time
	// LastProgress is when something last progressed, by the clock of this process; zero if that is unknown.
	LastProgress time.Time
}

// Observed are the pods, by name, and the children that the Memcached controls, or is about to adopt.
type Observed struct {
	Servers, Proxies []*corev1.Pod
	// Workload is the Deployment or StatefulSet of the servers, and Proxy the Deployment of the proxies; nil for none.
	Workload, Proxy metav1.Object
	// ProxyConfig is the ConfigMap of the proxies; nil for none.
	ProxyConfig *corev1.ConfigMap
	// List is the list of servers that clients discover, since Published.
	List      contract.List
	Published time.Time
	// Service returns a Service.
	Service status.Service
}

// Report is what an agent reports, or why it does not.
type Report struct {
	contract.Report
	Err error
}

// With returns the view with other pods and children, and what follows from them.
func (v View) With(observed Observed) View {
	v.Observed = observed
	v.Record = desired.ReadRecord(v.annotations())
	v.Routing = newRouting(v)
	return v
}

// set returns the StatefulSet whose servers may change; nil for a Deployment, while the pod template is not final, and
// until the controller of the StatefulSet has observed it.
func (v View) set() *appsv1.StatefulSet {
	set, ok := v.Workload.(*appsv1.StatefulSet)
	if !ok || !v.TemplateApplied || v.Memcached.Spec.Paused || set.Status.ObservedGeneration < set.Generation ||
		!set.DeletionTimestamp.IsZero() {
		return nil
	}
	return set
}

// serversOf returns the servers of a StatefulSet that are not being deleted, by ordinal.
func (v View) serversOf(set *appsv1.StatefulSet) []*corev1.Pod {
	ordinal := func(pod *corev1.Pod) int { return names.Ordinal(set.Name, pod.Name) }
	list := filter(v.Servers, func(pod *corev1.Pod) bool {
		return metav1.IsControlledBy(pod, set) && ordinal(pod) >= 0 && pod.DeletionTimestamp.IsZero()
	})
	slices.SortFunc(list, func(a, b *corev1.Pod) int { return cmp.Compare(ordinal(a), ordinal(b)) })
	return list
}

// annotations returns those of the workload.
func (v View) annotations() map[string]string {
	if v.Workload == nil {
		return nil
	}
	return v.Workload.GetAnnotations()
}

// Replicas returns spec.replicas of a workload; 0 without one.
func Replicas(workload metav1.Object) int32 {
	return ptr.Deref(status.ReadState(workload), status.WorkloadState{}).Wanted
}
