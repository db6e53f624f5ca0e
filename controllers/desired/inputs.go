package desired

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"strconv"

	"k8s.io/apimachinery/pkg/api/equality"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// Options are those of the operator that reach the children.
type Options struct {
	// DefaultImage runs where spec.image is not set.
	DefaultImage string
	// AgentImage runs beside servers that need an agent.
	AgentImage string
	// OpenShift leaves the user and group of the pods to the cluster: the restricted-v2 security context constraint
	// assigns them and refuses others.
	OpenShift bool
}

// Inputs are what the children are made from besides the spec. Resolve makes them once, before the builders run.
type Inputs struct {
	// Image is the image that the servers shall run.
	Image string
	// RestartedAt is the value of the restart annotation for the servers' pods; empty for none.
	RestartedAt string
	// Agent is the image of the agent that shall run beside the servers.
	Agent string
	// Secrets are those that the servers mount.
	Secrets Secrets

	options  Options
	template *corev1ac.PodTemplateSpecApplyConfiguration // nil where there is none to make or to keep
	digest   string
	// kept is the workload whose record of what it was made from, its annotations and its label of the generation, stays
	// as it is; nil where the record is made anew. The record alone is no difference that a pause holds back.
	kept *Workload
}

// Resolve decides what servers of mc keep, so that nothing restarts them without a reason. own is what the operator
// owns of the workload that runs, nil where there is none. It is written in one piece, so that it tells what was done
// even if the operator ended a moment later; the status is asked for the image only where no workload remembers one.
//
// The spec decides where it names an image. Where it does not, the image that runs stays, also when a new operator has
// another default, until the user asks for a restart anyway. A restart that was asked for stays done when its
// annotation goes.
//
// The pod template that runs stays as long as its inputs do: an operator with a better builder must not empty a cache.
// Where they differ, or where somebody changed the template, the builder makes it anew.
func Resolve(mc *v1alpha1.Memcached, own *Workload, secrets Secrets, o Options) Inputs {
	if own == nil {
		own = &Workload{}
	}
	running, made := own.Template, sourceOf(own)
	asked := mc.Annotations[v1alpha1.RestartedAtAnnotation]
	secrets.TLS = secrets.TLS.after(made.Secrets.TLS)
	in := Inputs{RestartedAt: cmp.Or(asked, made.RestartedAt), Secrets: secrets, options: o}
	restart := running != nil && in.RestartedAt != made.RestartedAt
	in.Image = cmp.Or(made.Image, mc.Status.Image, o.DefaultImage)
	if restart {
		in.Image = o.DefaultImage
	}
	in.Image = cmp.Or(mc.Spec.Image, in.Image)
	in.digest = digestOfInputs(mc, in)
	if in.Agent = o.AgentImage; made.Inputs == in.digest {
		in.Agent = cmp.Or(made.Agent, in.Agent)
	}
	in.template = podTemplate(mc, in)
	if mc.Spec.Paused && running != nil {
		in.kept = own
	}
	switch {
	case running == nil:
	case made.Inputs == "" && predatesInputs(running):
		// Where the workload's generation is the current one, its inputs are those of today's spec.
		before := podTemplateV002(mc, in)
		if !restart && own.Annotations[v1alpha1.GenerationLabel] == generation(mc) ||
			equality.Semantic.DeepEqual(before, running) {
			in.template = before
		}
	case made.Inputs == in.digest && made.Template == Digest(running):
		in.template = running
	}
	return in
}

// predatesInputs reports whether a template is of a release before v0.0.3, which recorded no inputs. A later template
// without a record has lost it: somebody removed the annotation.
func predatesInputs(running *corev1ac.PodTemplateSpecApplyConfiguration) bool {
	c := memcachedContainer(running)
	return c != nil && c.TerminationMessagePolicy == nil
}

// Keep returns inputs with the template that runs: the API server changed what was applied, and has the last word.
func (in Inputs) Keep(own *Workload) Inputs {
	in.template = own.Template
	return in
}

// Hold returns inputs that leave the servers as they are, and create none where none run: a Secret that they need
// cannot be had.
func (in Inputs) Hold(own *Workload) Inputs {
	if own == nil {
		own = &Workload{}
	}
	in.template, in.kept = own.Template, own
	return in
}

// source says what the pod template of a workload was made from. It is the value of an annotation of the workload.
type source struct {
	// Image, RestartedAt and Agent are what a later reconcile needs again.
	Image       string `json:"image,omitempty"`
	RestartedAt string `json:"restartedAt,omitempty"`
	Agent       string `json:"agent,omitempty"`
	// Inputs is the digest of all inputs, image and restart included. The image of the agent is none: a new one comes with
	// servers that are replaced anyway.
	Inputs string `json:"inputs,omitempty"`
	// Template is the digest of the template as the API server took it. A template with another one was changed by
	// somebody.
	Template string `json:"template,omitempty"`
	// Secrets are those that the servers mount.
	Secrets Secrets `json:"secrets,omitzero"`
}

// workloadAnnotations are those of the workload of mc.
func (in Inputs) workloadAnnotations(mc *v1alpha1.Memcached) map[string]string {
	if in.kept != nil {
		return in.kept.Annotations
	}
	s := source{Image: in.Image, RestartedAt: in.RestartedAt, Inputs: in.digest, Template: Digest(in.template),
		Secrets: in.Secrets}
	if needsAgent(mc) {
		s.Agent = in.Agent
	}
	b, _ := json.Marshal(s) // only strings
	return map[string]string{v1alpha1.TemplateSourceAnnotation: string(b)}
}

// generationLabel is that of the workload and the proxies of mc.
func (in Inputs) generationLabel(mc *v1alpha1.Memcached) map[string]string {
	labels := map[string]string{v1alpha1.GenerationLabel: generation(mc)}
	if in.kept != nil {
		labels = maps.Clone(in.kept.Labels)
		maps.DeleteFunc(labels, func(key, _ string) bool { return key != v1alpha1.GenerationLabel })
	}
	return labels
}

func generation(mc *v1alpha1.Memcached) string { return strconv.FormatInt(mc.Generation, 10) }

// sourceOf reads what a workload remembers, or of one from before v0.0.3 what its template shows.
func sourceOf(own *Workload) (s source) {
	running := own.Template
	if running == nil {
		return s
	}
	if json.Unmarshal([]byte(own.Annotations[v1alpha1.TemplateSourceAnnotation]), &s) == nil && s.Inputs != "" {
		return s
	}
	s = source{}
	if running.ObjectMetaApplyConfiguration != nil {
		s.RestartedAt = running.Annotations[v1alpha1.RestartedAtAnnotation]
	}
	if c := memcachedContainer(running); c != nil {
		s.Image = ptr.Deref(c.Image, "")
	}
	return s
}

// memcachedContainer is the container of a template in which memcached runs; nil where there is none.
func memcachedContainer(t *corev1ac.PodTemplateSpecApplyConfiguration) *corev1ac.ContainerApplyConfiguration {
	if t.Spec != nil {
		for i := range t.Spec.Containers {
			if c := &t.Spec.Containers[i]; ptr.Deref(c.Name, "") == names.Container {
				return c
			}
		}
	}
	return nil
}

// digestOfInputs identifies what a pod template is made from. A field that comes later must be left out here where it
// has its default, or the next upgrade of the operator restarts every server: TestInputs holds the digests of today.
func digestOfInputs(mc *v1alpha1.Memcached, in Inputs) string {
	pod := names.Pod(mc)
	pod.Resources, pod.Affinity = filled(pod.Resources), filled(pod.Affinity)
	pod.SecurityContext = filled(pod.SecurityContext)
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
	}{in.Image, in.RestartedAt, mc.Spec.ContainerPort, mc.Spec.Memory, mc.Spec.MaxItemSize, mc.Spec.MaxConnections,
		mc.Spec.Threads, mc.Spec.ExtraArgs, pod, mc.Spec.TLS, mc.Spec.Auth, mc.Spec.Metrics,
		in.Secrets.restarts(), agentOverrides(mc)})
}

// filled is nil for a value that says nothing: charts render empty maps.
func filled[T any](v *T) *T {
	if v != nil && equality.Semantic.DeepEqual(*v, *new(T)) {
		return nil
	}
	return v
}

// Digest identifies a value by its JSON form, with the keys sorted: the order of fields in a type of Kubernetes may
// change, and must not replace servers.
func Digest(v any) string {
	var sorted any
	b, _ := json.Marshal(v) // of types that are made to be encoded
	_ = json.Unmarshal(b, &sorted)
	b, _ = json.Marshal(sorted)
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}
