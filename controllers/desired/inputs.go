package desired

import (
	"cmp"
	"encoding/json"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

// Options are the operator's settings that affect the children.
type Options struct {
	// DefaultImage is the image of servers without a spec.image.
	DefaultImage string
	// AgentImage is the image of the agent (sidecar).
	AgentImage string
	// ImagePullSecrets name the Secrets for pulling images, in the namespace of each pod whose Memcached names none.
	ImagePullSecrets []string
	// Namespace is the operator's own; empty if the operator runs outside of the cluster.
	Namespace string
	// CanResize says that the cluster can change the resources of a running pod.
	CanResize bool
	// OpenShift leaves the user and group of the pods to the cluster: the restricted-v2 security context constraint
	// assigns them and refuses others.
	OpenShift bool
}

// Current is the current state that the children depend on, besides the spec. The zero value means that nothing exists.
type Current struct {
	// Workload is the Deployment or StatefulSet of the servers; nil if there is none.
	Workload metav1.Object
	// Record is that of the workload; empty if there is none.
	Record Record
	// Secrets are those that the servers mount. Freeze says that one of them is unavailable: no server may be replaced.
	Secrets Secrets
	Freeze  bool
	// ProxyServers are the servers that the proxies use.
	ProxyServers contract.Servers
	// List is the list of servers that clients discover, since Published.
	List      contract.List
	Published time.Time
	// MinServers is the number of servers that must run, even if the spec asks for fewer: proxies or clients may still use
	// them.
	MinServers int32
	// Now is the time.
	Now time.Time
}

// FlushValue identifies the flush that FlushedAtAnnotation asks for; empty for none.
func FlushValue(mc *v1alpha1.Memcached) string {
	value := mc.Annotations[v1alpha1.FlushedAtAnnotation]
	if value == "" {
		return ""
	}
	return Digest(value)
}

// Inputs are what the children are built from, besides the spec. Resolve computes them before the builders run.
type Inputs struct {
	options      Options
	proxyServers contract.Servers
	list         contract.List
	published    time.Time
	size         int32  // number of servers
	image        string // of servers and proxies
	record       Record // of the servers' template, which is nil if a Secret is unavailable and no workload exists
	// newTemplate says that an existing workload gets another template.
	newTemplate bool
	// preserveTemplate says that the template of an existing workload with pods stays.
	preserveTemplate    bool
	podAnnotations      map[string]string // that the user gives to the pods of servers
	labels, annotations map[string]string // of the workload; the labels also of the proxies
}

// Resolve decides which image and template the servers of mc get, so that nothing restarts them without a reason:
//
//   - spec.image is set: that image. It was never set: the recorded image, even if a new operator has another default,
//     until the user requests a restart. It was removed: the operator's default.
//   - The restart annotation was removed: the recorded template.
//   - A new operator would build another template: the recorded one while its inputs are the same, because an upgrade
//     of the operator must not empty a cache.
//   - Only the memory differs, and servers can change it without a restart: all else of the recorded template.
//   - The inputs differ, or the workload has no pod: a new template.
//   - The record was lost: a new template with the images of the current one.
//   - A Secret that the servers need is unavailable (Freeze): the recorded template, and without one, none is built.
//     The Secrets that are available are recorded.
//   - spec.paused: the record stays as it is. Otherwise the status would report a change of the record alone as held
//     back.
func Resolve(mc *v1alpha1.Memcached, current Current, o Options) Inputs {
	exists, secrets := current.Workload != nil, current.Secrets
	recorded, ok := current.record()
	secrets.TLS = secrets.TLS.WithRevocation(recorded.Secrets.TLS, current.Now)
	restartedAt := cmp.Or(mc.Annotations[v1alpha1.RestartedAtAnnotation], recorded.RestartedAt)
	image := cmp.Or(recorded.Image, mc.Status.Image, o.DefaultImage)
	switch {
	case mc.Spec.Image != "":
		image = mc.Spec.Image
	case exists && restartedAt != recorded.RestartedAt, recorded.RequestedImage != "":
		image = o.DefaultImage
	}
	r := Record{Image: image, RequestedImage: mc.Spec.Image, RestartedAt: restartedAt, Memory: mc.Spec.Memory,
		Secrets: secrets}
	r.Inputs = digestOfInputs(mc, r)
	if ok && !current.isEmpty() {
		r.Template, r.Agent = recorded.Template, recorded.Agent
		if r.Inputs != recorded.Inputs {
			r.Template = withMemory(mc, r, recorded, o)
		}
	}
	if r.Template == nil {
		if r.Agent = ""; needsAgent(mc) {
			r.Agent = o.AgentImage
		}
		r.Template = podTemplate(mc, r, o)
	}
	in := Inputs{options: o, proxyServers: current.ProxyServers, list: current.List,
		published: current.Published, size: max(names.Size(mc), current.MinServers), image: image, record: r,
		podAnnotations: names.Pod(mc).Annotations, newTemplate: exists && r.Inputs != recorded.Inputs,
		labels: map[string]string{v1alpha1.GenerationLabel: names.Generation(mc)}}
	if current.Freeze {
		in.record, in.newTemplate, in.podAnnotations = recorded, false, status.Template(current.Workload).Annotations
		in.record.Secrets.TLS = recorded.Secrets.TLS.updatedBy(secrets.TLS)
		in.record.Secrets.Auth = recorded.Secrets.Auth.updatedBy(secrets.Auth)
	}
	in.preserveTemplate = exists && !in.newTemplate && !current.isEmpty()
	record, _ := json.Marshal(in.record) // cannot fail: JSON types
	in.annotations = map[string]string{
		v1alpha1.TemplateRecordAnnotation: string(record),
		v1alpha1.FlushedAtAnnotation:      FlushValue(mc), // there is nothing to drop, or the flush has probably ended
	}
	if mc.Spec.Proxy != nil {
		servers, _ := json.Marshal(in.proxyServers) // only strings
		in.annotations[v1alpha1.ProxyServersAnnotation] = string(servers)
	}
	keep := func(key string) { in.annotations[key] = current.Workload.GetAnnotations()[key] }
	if ok {
		keep(v1alpha1.FlushedAtAnnotation)
	}
	if exists && (mc.Spec.Paused || current.Freeze && !ok) {
		keep(v1alpha1.TemplateRecordAnnotation)
	}
	if exists && mc.Spec.Paused {
		keep(v1alpha1.ProxyServersAnnotation)
	}
	if exists && (mc.Spec.Paused || current.Freeze) {
		in.labels[v1alpha1.GenerationLabel] = current.Workload.GetLabels()[v1alpha1.GenerationLabel]
	}
	maps.DeleteFunc(in.annotations, func(_, value string) bool { return value == "" })
	return in
}

// template returns the pod template of the servers, with the annotations that the user gives to pods.
func (in Inputs) template() *corev1ac.PodTemplateSpecApplyConfiguration {
	template := *in.record.Template
	metadata := ptr.Deref(template.ObjectMetaApplyConfiguration, metav1ac.ObjectMetaApplyConfiguration{})
	metadata.Annotations = labels.Merge(in.podAnnotations, metadata.Annotations)
	template.ObjectMetaApplyConfiguration = &metadata
	return &template
}

// digestOfInputs hashes what a pod template is built from. A field that is added later must be omitted while it has its
// default, or the next upgrade of the operator restarts every server: TestInputs pins the digests.
func digestOfInputs(mc *v1alpha1.Memcached, r Record) string {
	pod := names.Pod(mc)
	pod.Resources, pod.Affinity = nilIfEmpty(pod.Resources), nilIfEmpty(pod.Affinity)
	pod.SecurityContext = nilIfEmpty(pod.SecurityContext)
	pod.ContainerSecurityContext = nilIfEmpty(pod.ContainerSecurityContext)
	var agentResources *v1alpha1.ResourceRequirements
	if needsAgent(mc) {
		agentResources = agentOverrides(mc)
	}
	return Digest(struct {
		Image, RestartedAt  string
		ContainerPort       int32
		Memory, MaxItemSize string
		MaxConnections      int32
		Threads             int32
		ExtraArgs           []string `json:",omitempty"`
		Pod                 v1alpha1.PodSpec
		TLS                 *v1alpha1.TLSSpec              `json:",omitempty"`
		Auth                *v1alpha1.AuthSpec             `json:",omitempty"`
		Metrics             *v1alpha1.MetricsSpec          `json:",omitempty"`
		RevokedVersion      string                         `json:",omitempty"`
		AgentResources      *v1alpha1.ResourceRequirements `json:",omitempty"`
		Discovery           bool                           `json:",omitempty"`
	}{r.Image, r.RestartedAt, mc.Spec.ContainerPort, mc.Spec.Memory, mc.Spec.MaxItemSize, mc.Spec.MaxConnections,
		mc.Spec.Threads, mc.Spec.ExtraArgs, pod, mc.Spec.TLS, mc.Spec.Auth, mc.Spec.Metrics,
		r.Secrets.revokedVersion(), agentResources, mc.Spec.Discovery != nil})
}

// nilIfEmpty returns nil for a pointer to an empty value: charts render empty maps.
func nilIfEmpty[T any](v *T) *T {
	if v != nil && equality.Semantic.DeepEqual(*v, *new(T)) {
		return nil
	}
	return v
}

// isEmpty reports whether the workload has no pod, so that a new pod template loses no data.
func (c Current) isEmpty() bool {
	w := status.ReadState(c.Workload)
	return w != nil && w.Observed && w.Replicas == 0
}
