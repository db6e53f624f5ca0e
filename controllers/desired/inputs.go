package desired

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/agent/mover"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
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
	// Workload holds the fields of the workload of the servers that the operator owns; nil if there is none.
	*Workload
	// Revision is that of a StatefulSet's pod template; empty unless its controller has observed the template.
	Revision string
	// Empty says that the workload has no pod, so that a new pod template loses no data.
	Empty bool
	// HasReady says that a server of the newest pod template is ready.
	HasReady bool
	// Secrets are those that the servers mount. Freeze says that one of them is unavailable: no server may be replaced.
	Secrets Secrets
	Freeze  bool
	// ProxyServers are the servers that the proxies use.
	ProxyServers mover.Servers
	// MinServers is the number of servers that must run, even if the spec asks for fewer: proxies may still use them.
	MinServers int32
	// FlushBegin is the time to record for a flush that begins now; zero if none can.
	FlushBegin time.Time
	// Now is the time.
	Now time.Time
}

// Inputs are what the children are built from, besides the spec. Resolve computes them before the builders run.
type Inputs struct {
	options      Options
	proxyServers mover.Servers
	size         int32                                       // number of servers
	image        string                                      // of servers and proxies
	template     *corev1ac.PodTemplateSpecApplyConfiguration // nil if a Secret is unavailable and no workload exists
	record       Record                                      // of the template
	// newTemplate says that an existing workload gets another template.
	newTemplate         bool
	labels, annotations map[string]string // of the workload; the labels also of the proxies
}

// maxInPlace limits Record.InPlace. A server that has missed as many changes of the memory is replaced.
const maxInPlace = 100

// Resolve decides which image and template the servers of mc get, so that nothing restarts them without a reason:
//
//   - spec.image is set: that image. It is not set: the current image is preserved, even if a new operator has another
//     default, until the user requests a restart.
//   - spec.image was removed, and no server of the newest template is ready: the default, in case the image was wrong.
//   - The restart annotation was removed: the template is preserved.
//   - A new operator would build another template: the current one is preserved while its inputs are the same, because
//     an upgrade of the operator must not empty a cache.
//   - Only the memory differs, and servers can change it without a restart: all else of the template is preserved.
//   - The inputs differ, somebody changed the template, or the workload has no pod: the builder builds a new
//     template.
//   - The record of the inputs was lost: the current template is recorded, if the workload was built from the current
//     generation.
//   - A Secret that the servers need is unavailable (Freeze): the template is preserved, and without a template none is
//     built. The Secrets that are available are recorded.
//   - spec.paused: the record is preserved too. Otherwise the status would report a change of the record alone as held
//     back.
func Resolve(mc *v1alpha1.Memcached, current Current, o Options) Inputs {
	own, secrets := cmp.Or(current.Workload, &Workload{}), current.Secrets
	recorded, ok := readRecord(own)
	secrets.TLS = secrets.TLS.WithRevocation(recorded.Secrets.TLS, current.Now)
	restartedAt := cmp.Or(mc.Annotations[v1alpha1.RestartedAtAnnotation], recorded.RestartedAt)
	restart := own.Template != nil && restartedAt != recorded.RestartedAt
	image := cmp.Or(recorded.Image, mc.Status.Image, o.DefaultImage)
	switch {
	case mc.Spec.Image != "":
		image = mc.Spec.Image
	case restart, recorded.RequestedImage != "" && !current.HasReady:
		image = o.DefaultImage
	}
	r := Record{Image: image, RequestedImage: mc.Spec.Image, RestartedAt: restartedAt, FlushedAt: recorded.FlushedAt,
		Flush: recorded.Flush, Memory: mc.Spec.Memory, Secrets: secrets}
	r.Inputs = digestOfInputs(mc, r)
	switch value := mc.Annotations[v1alpha1.FlushedAtAnnotation]; {
	case value == "" || value == recorded.FlushedAt:
	case !ok: // there is nothing to drop, or the record was lost, of a flush that has probably ended
		r.FlushedAt = value
	case !current.FlushBegin.IsZero():
		r.FlushedAt, r.Flush = value, metav1.NewTime(current.FlushBegin)
	}
	sameInputs := r.Inputs == recorded.Inputs
	switch {
	case needsAgent(mc) && sameInputs && !current.Empty:
		r.Agent = cmp.Or(recorded.Agent, o.AgentImage)
	case needsAgent(mc):
		r.Agent = o.AgentImage
	}
	in := Inputs{options: o, proxyServers: current.ProxyServers, size: max(names.Size(mc), current.MinServers),
		image: image, record: r,
		labels: map[string]string{v1alpha1.GenerationLabel: names.Generation(mc)}}
	digest := Digest(own.Template)
	unrecorded := own.Template != nil && recorded.Template != digest
	var withMemory *corev1ac.PodTemplateSpecApplyConfiguration
	if ok && !sameInputs && !unrecorded && !current.Empty {
		withMemory = own.withMemory(mc, r, recorded, o)
	}
	c := own.container()
	preserve := ok && sameInputs && !unrecorded ||
		!ok && !restart && own.IsOfGeneration(mc) && c != nil && c.Image != nil // otherwise, somebody changed it
	switch {
	case preserve && own.Template != nil && !current.Empty:
		in.template, in.record.Template, in.record.Agent = own.Template, digest, cmp.Or(recorded.Agent, r.Agent)
		in.record.InPlace = recorded.InPlace
	case withMemory != nil:
		in.template, in.record.Template, in.record.Agent = withMemory, Digest(withMemory), cmp.Or(recorded.Agent, r.Agent)
		known := min(len(recorded.InPlace), maxInPlace-1)
		in.record.InPlace = append([]string{current.Revision}, recorded.InPlace[:known]...)
	default:
		in.template = podTemplate(mc, in)
		if in.record.Agent != "" && Digest(in.template) != recorded.Template {
			in.record.Agent = o.AgentImage // the agent of another release may not know what this template asks for
			in.template = podTemplate(mc, in)
		}
		in.record.Template = Digest(in.template)
	}
	// Until the revision of the current template is known, a change of the memory waits for it.
	freeze := current.Freeze || withMemory != nil && current.Revision == ""
	if freeze {
		in.template, in.record = own.Template, recorded
		in.record.Secrets.TLS = recorded.Secrets.TLS.updatedBy(secrets.TLS)
		in.record.Secrets.Auth = recorded.Secrets.Auth.updatedBy(secrets.Auth)
	}
	in.newTemplate, in.annotations = own.Template != nil && in.record.Template != digest, in.record.annotations()
	if paused := mc.Spec.Paused && own.Template != nil; paused || freeze {
		in.newTemplate, in.labels = false, own.Labels
		if paused || !ok {
			in.annotations = own.Annotations
		}
	}
	return in
}

// HasNewTemplate reports whether an existing workload gets another template.
func (in Inputs) HasNewTemplate() bool { return in.newTemplate }

// PreserveTemplate returns inputs with the current template, which an admission plugin changed when the desired one was
// applied.
func (in Inputs) PreserveTemplate(own *Workload) Inputs {
	in.template, in.record.Template = own.Template, Digest(own.Template)
	in.annotations = in.record.annotations()
	return in
}

// digestOfInputs hashes what a pod template is built from. A field that is added later must be omitted while it has its
// default, or the next upgrade of the operator restarts every server: TestInputs pins the digests.
func digestOfInputs(mc *v1alpha1.Memcached, r Record) string {
	pod := names.Pod(mc)
	pod.Resources, pod.Affinity = nilIfEmpty(pod.Resources), nilIfEmpty(pod.Affinity)
	pod.SecurityContext = nilIfEmpty(pod.SecurityContext)
	pod.ContainerSecurityContext = nilIfEmpty(pod.ContainerSecurityContext)
	var agentResources *v1alpha1.ComputeResources
	var agentLogLevel string
	if needsAgent(mc) {
		agentResources, agentLogLevel = agentOverrides(mc)
	}
	return Digest(struct {
		Image, RestartedAt  string
		ContainerPort       int32
		Memory, MaxItemSize string
		MaxConnections      int32
		Threads             int32
		ExtraArgs           []string `json:",omitempty"`
		Pod                 v1alpha1.PodSpec
		TLS                 *v1alpha1.TLSSpec          `json:",omitempty"`
		Auth                *v1alpha1.AuthSpec         `json:",omitempty"`
		Metrics             *v1alpha1.MetricsSpec      `json:",omitempty"`
		Restarts            []string                   `json:",omitempty"`
		AgentResources      *v1alpha1.ComputeResources `json:",omitempty"`
		AgentLogLevel       string                     `json:",omitempty"`
	}{r.Image, r.RestartedAt, mc.Spec.ContainerPort, mc.Spec.Memory, mc.Spec.MaxItemSize, mc.Spec.MaxConnections,
		mc.Spec.Threads, mc.Spec.ExtraArgs, pod, mc.Spec.TLS, mc.Spec.Auth, mc.Spec.Metrics,
		r.Secrets.revocations(), agentResources, agentLogLevel})
}

// nilIfEmpty returns nil for a pointer to an empty value: charts render empty maps.
func nilIfEmpty[T any](v *T) *T {
	if v != nil && equality.Semantic.DeepEqual(*v, *new(T)) {
		return nil
	}
	return v
}

// Record says what the pod template of a workload was built from. It is an annotation of the workload, so that it is
// written together with the template, and is right even if the operator stops a moment later.
type Record struct {
	// Image is the image of the template, and RequestedImage was spec.image then.
	Image          string `json:"image,omitempty"`
	RequestedImage string `json:"requestedImage,omitempty"`
	RestartedAt    string `json:"restartedAt,omitempty"`
	// FlushedAt is the last value of FlushedAtAnnotation, and Flush the time when that flush began: servers that were
	// created later need not drop their items.
	FlushedAt string      `json:"flushedAt,omitempty"`
	Flush     metav1.Time `json:"flush,omitzero"`
	// Agent is the image of the agent. It is used again when somebody else's change of the template is reverted.
	Agent string `json:"agent,omitempty"`
	// Memory was spec.memory then.
	Memory string `json:"memory,omitempty"`
	// Inputs is the digest of all inputs, image and restart included. The agent's image is not an input: a new one is used
	// only when servers are replaced anyway.
	Inputs string `json:"inputs,omitempty"`
	// Template is the digest of the template as the API server stored it. If the current template has another digest,
	// somebody has changed it.
	Template string `json:"template,omitempty"`
	// InPlace are the newest revisions of the StatefulSet whose servers differ from the template only in their memory.
	InPlace []string `json:"inPlace,omitempty"`
	// Secrets are those that the servers mount.
	Secrets Secrets `json:"secrets,omitzero"`
}

// ReadRecord reads the record in the annotations of a workload; empty if there is none.
func ReadRecord(annotations map[string]string) (r Record) {
	if json.Unmarshal([]byte(annotations[v1alpha1.TemplateRecordAnnotation]), &r) != nil || r.Inputs == "" {
		return Record{}
	}
	return r
}

// readRecord reads the record of a workload. If ok is false, there is none, and images and restart are from the
// template.
func readRecord(own *Workload) (r Record, ok bool) {
	if r = ReadRecord(own.Annotations); r.Inputs != "" {
		return r, true
	}
	if t := own.Template; t != nil && t.ObjectMetaApplyConfiguration != nil {
		r.RestartedAt = t.Annotations[v1alpha1.RestartedAtAnnotation]
	}
	if c := own.container(); c != nil {
		r.Image = ptr.Deref(c.Image, "")
		for _, c := range own.Template.Spec.InitContainers {
			if ptr.Deref(c.Name, "") == names.Agent {
				r.Agent = ptr.Deref(c.Image, "")
			}
		}
	}
	return r, false
}

// Outdated returns status.outdated, from the annotations of the workload: the images in the record that a new Memcached
// with the same spec would not get. An admission plugin may rewrite the images of the template, so those do not count.
func Outdated(annotations map[string]string, o Options) (fields []string) {
	r := ReadRecord(annotations)
	if r.RequestedImage == "" && r.Image != "" && r.Image != o.DefaultImage {
		fields = append(fields, "image")
	}
	if r.Agent != "" && r.Agent != o.AgentImage {
		fields = append(fields, "agentImage")
	}
	return fields
}

func (r Record) annotations() map[string]string {
	b, _ := json.Marshal(r) // only strings and times
	return map[string]string{v1alpha1.TemplateRecordAnnotation: string(b)}
}

// Digest identifies a value by its JSON form, with the keys sorted: the order of fields in a type of Kubernetes may
// change, and must not replace servers.
func Digest(v any) string {
	var sorted any
	b, _ := json.Marshal(v) // cannot fail: JSON types
	_ = json.Unmarshal(b, &sorted)
	b, _ = json.Marshal(sorted)
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}
