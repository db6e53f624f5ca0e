package desired

import (
	"cmp"
	"maps"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// Options are the operator's settings that affect the children.
type Options struct {
	// DefaultImage is the image of servers without a spec.image.
	DefaultImage string
	// AgentImage is the image of the agent (sidecar).
	AgentImage string
	// OpenShift leaves the user and group of the pods to the cluster: the restricted-v2 security context constraint
	// assigns them and refuses others.
	OpenShift bool
}

// Current is the current state that the children depend on, besides the spec. The zero value means that nothing exists.
type Current struct {
	// Workload holds the fields of the workload of the servers that the operator owns; nil if there is none.
	*Workload
	// Empty says that the workload has no pod, so that a new pod template loses no data.
	Empty bool
	// Ran says that a server of the newest pod template was ready, Installed that all servers were at some time.
	Ran, Installed bool
	// Secrets are those that the servers mount. Freeze says that one of them is unavailable: no server may be replaced.
	Secrets Secrets
	Freeze  bool
	// ProxyServers are the servers that the proxies use, each address:port.
	ProxyServers []string
	// Now is the time.
	Now time.Time
}

// Inputs are what the children are built from, besides the spec. Resolve computes them before the builders run.
type Inputs struct {
	proxyServers []string
	image        string // of the servers
	agent        string // image of the agent
	restartedAt  string // value of the restart annotation for the servers' pods; empty for none
	secrets      Secrets
	options      Options
	template     *corev1ac.PodTemplateSpecApplyConfiguration // nil if a Secret is unavailable and no workload exists
	record       record                                      // for the workload
	// frozenFrom is the workload whose generation label is preserved; nil if the label gets the current generation.
	frozenFrom  *Workload
	annotations map[string]string // of the workload
}

// Resolve decides which image and template the servers of mc get, so that nothing restarts them without a reason:
//
//   - spec.image is set: that image. It is not set: the current image is preserved, even if a new operator has another
//     default, until the user requests a restart.
//   - spec.image was removed, and no server was ever ready with it: the previous image.
//   - The restart annotation was removed: the template is preserved.
//   - A new operator would build another template: the current one is preserved while its inputs are the same, because
//     an upgrade of the operator must not empty a cache.
//   - The inputs differ, somebody changed the template, or the workload has no pod: the builder builds a new
//     template.
//   - The record of the inputs was lost, or a release before v0.0.3 wrote none: the current template is recorded, if it
//     matches the current spec.
//   - A Secret that the servers need is unavailable (Freeze): the template is preserved, and without a template none is
//     built. The Secrets that are available are recorded.
//   - spec.paused: the record is preserved too, so that it alone is no difference that the status reports.
func Resolve(mc *v1alpha1.Memcached, current Current, o Options) Inputs {
	own, secrets := current.Workload, current.Secrets
	if own == nil {
		own = &Workload{}
	}
	recorded, ok := readRecord(own)
	secrets.TLS = secrets.TLS.WithRevocation(recorded.Secrets.TLS, current.Now)
	in := Inputs{image: cmp.Or(recorded.Image, mc.Status.Image, o.DefaultImage),
		restartedAt: cmp.Or(mc.Annotations[v1alpha1.RestartedAtAnnotation], recorded.RestartedAt),
		secrets:     secrets, options: o, proxyServers: current.ProxyServers}
	restart := own.Template != nil && in.restartedAt != recorded.RestartedAt
	ran := current.Ran || recorded.Ran || recorded.PreviousImage == "" && current.Installed
	switch {
	case mc.Spec.Image != "":
		in.image = mc.Spec.Image
	case restart:
		in.image = o.DefaultImage
	case recorded.RequestedImage != "" && !ran:
		in.image = cmp.Or(recorded.PreviousImage, o.DefaultImage)
	}
	in.record = record{Image: in.image, RequestedImage: mc.Spec.Image, PreviousImage: recorded.PreviousImage,
		RestartedAt: in.restartedAt, Inputs: digestOfInputs(mc, in), Secrets: secrets}
	if in.agent = o.AgentImage; recorded.Inputs == in.record.Inputs {
		in.agent = cmp.Or(recorded.Agent, in.agent)
	}
	if needsAgent(mc) {
		in.record.Agent = in.agent
	}
	in.template = podTemplate(mc, in)
	if in.image != recorded.Image && ran {
		in.record.PreviousImage = recorded.Image
	} else if in.image == recorded.Image {
		in.record.Ran = recorded.Ran || ran && recorded.Inputs != in.record.Inputs
	}
	switch {
	case current.Freeze:
		in.template, in.record = own.Template, recorded
		in.record.Secrets = recorded.Secrets.updatedBy(secrets)
	case own.Template == nil:
	case current.Empty:
	case ok && recorded.Inputs == in.record.Inputs && recorded.Template == Digest(own.Template):
		in.template = own.Template
	case !ok && !restart && isOfSpec(mc, own, in.template):
		in.template = own.Template
	}
	if !current.Freeze {
		in.record.Template = Digest(in.template)
	}
	in.annotations = in.record.annotations()
	if paused := mc.Spec.Paused && own.Template != nil; paused || current.Freeze {
		in.frozenFrom = own
		if paused || !ok {
			in.annotations = own.Annotations
		}
	}
	return in
}

// isOfSpec reports whether the template of a workload without a record matches the current spec of mc: the workload was
// built from the current generation, or every field that users can change has the value that the builder gives it now.
func isOfSpec(mc *v1alpha1.Memcached, own *Workload, built *corev1ac.PodTemplateSpecApplyConfiguration) bool {
	c := own.container()
	if c == nil || c.Image == nil || len(c.Args) == 0 || own.Template.ObjectMetaApplyConfiguration == nil {
		return false // somebody else changed it
	}
	fields := func(t *corev1ac.PodTemplateSpecApplyConfiguration) []any {
		s, c := t.Spec, (&Workload{Template: t}).container()
		return []any{t.Labels, t.Annotations, c.Image, c.Args, c.Resources, s.NodeSelector, s.Tolerations, s.Affinity,
			s.TopologySpreadConstraints, s.PriorityClassName, s.ImagePullSecrets, s.SecurityContext, len(s.InitContainers)}
	}
	return recordedGeneration(own) == generation(mc) || equality.Semantic.DeepEqual(fields(own.Template), fields(built))
}

// MatchesRecord reports whether the template of a workload is the recorded one, which Resolve preserves.
func (w *Workload) MatchesRecord() bool {
	r, _ := readRecord(w)
	return w.Template == nil || r.Template == Digest(w.Template)
}

// IsFrozen reports whether an unavailable Secret, or spec.paused, keeps the workload unchanged.
func (in Inputs) IsFrozen() bool { return in.frozenFrom != nil }

// PreserveTemplate returns inputs with the current template, which an admission plugin changed when the desired one was
// applied.
func (in Inputs) PreserveTemplate(own *Workload) Inputs {
	in.template, in.record.Template = own.Template, Digest(own.Template)
	in.annotations = in.record.annotations()
	return in
}

// generationLabel returns the generation label for the workload and the proxies of mc.
func (in Inputs) generationLabel(mc *v1alpha1.Memcached) map[string]string {
	if in.frozenFrom == nil {
		return map[string]string{v1alpha1.GenerationLabel: generation(mc)}
	}
	labels := maps.Clone(in.frozenFrom.Labels)
	maps.DeleteFunc(labels, func(key, _ string) bool { return key != v1alpha1.GenerationLabel })
	return labels
}

func generation(mc *v1alpha1.Memcached) string { return strconv.FormatInt(mc.Generation, 10) }

// recordedGeneration is the generation that a workload was built from. Releases before v0.0.3 used an annotation.
func recordedGeneration(own *Workload) string {
	return cmp.Or(own.Labels[v1alpha1.GenerationLabel], own.Annotations[v1alpha1.GenerationLabel])
}

// digestOfInputs hashes what a pod template is built from. A field that is added later must be omitted while it has its
// default, or the next upgrade of the operator restarts every server: TestInputs pins the digests.
func digestOfInputs(mc *v1alpha1.Memcached, in Inputs) string {
	pod := names.Pod(mc)
	pod.Resources, pod.Affinity = nilIfEmpty(pod.Resources), nilIfEmpty(pod.Affinity)
	pod.SecurityContext = nilIfEmpty(pod.SecurityContext)
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
	}{in.image, in.restartedAt, mc.Spec.ContainerPort, mc.Spec.Memory, mc.Spec.MaxItemSize, mc.Spec.MaxConnections,
		mc.Spec.Threads, mc.Spec.ExtraArgs, pod, mc.Spec.TLS, mc.Spec.Auth, mc.Spec.Metrics,
		in.secrets.revocations(), agentOverrides(mc)})
}

// nilIfEmpty returns nil for a pointer to an empty value: charts render empty maps.
func nilIfEmpty[T any](v *T) *T {
	if v != nil && equality.Semantic.DeepEqual(*v, *new(T)) {
		return nil
	}
	return v
}
