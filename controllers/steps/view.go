package steps

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/status"
)

// View is what is observed of a Memcached, and what steps are decided from.
type View struct {
	Memcached *v1alpha1.Memcached
	Children
	// Servers and Proxies are pods.
	Servers, Proxies []corev1.Pod
	// Record is that of the servers' template.
	Record desired.Record
	// Routing says which servers the proxies use.
	Routing Routing
	// Secrets is SecretsAnnotation of the servers; empty for none.
	Secrets string
	// Final says that the pod template is the one that servers must have.
	Final bool
	// Agents hold what agents report.
	Agents Agents
	Now    time.Time
}

// Children are those that the Memcached controls, or is about to adopt.
type Children struct {
	// Workload is the Deployment or StatefulSet of the servers, and Proxy the Deployment of the proxies; nil for none.
	Workload, Proxy metav1.Object
	// ProxyConfig is the ConfigMap of the proxies; nil for none.
	ProxyConfig *corev1.ConfigMap
	// Service returns a Service.
	Service status.Service
}

// Agents hold what agents report.
type Agents struct {
	// Reports are those of the agents that were asked, by the names of their pods.
	Reports map[string]Report
	// Poll says that it is time to ask all agents for what no watch event says.
	Poll bool
}

// Report is what an agent reports, or why it does not.
type Report struct {
	contract.Report
	Err error
}

// NewView returns the view of a Memcached, before agents are asked.
func NewView(mc *v1alpha1.Memcached, children Children, servers, proxies []corev1.Pod, now time.Time) View {
	v := View{Memcached: mc, Children: children, Servers: servers, Proxies: proxies, Now: now}
	v.Record = desired.ReadRecord(v.annotations())
	v.Routing = newRouting(v)
	return v
}

// set returns the StatefulSet whose servers may change; nil for a Deployment, and while the pod template is not final.
func (v View) set() *appsv1.StatefulSet {
	if set, ok := v.Workload.(*appsv1.StatefulSet); ok && v.Final && !v.Memcached.Spec.Paused {
		return set
	}
	return nil
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
	switch w := workload.(type) {
	case *appsv1.Deployment:
		return ptr.Deref(w.Spec.Replicas, 1)
	case *appsv1.StatefulSet:
		return ptr.Deref(w.Spec.Replicas, 1)
	}
	return 0
}
