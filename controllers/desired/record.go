package desired

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/status"
)

// Record is the pod template that was last applied to a workload, and what it was made from. It is an annotation of the
// workload, so that it is written together with the template, and is right even if the operator stops a moment later.
type Record struct {
	// Image is the image of the template, and RequestedImage was spec.image then.
	Image          string `json:"image,omitempty"`
	RequestedImage string `json:"requestedImage,omitempty"`
	RestartedAt    string `json:"restartedAt,omitempty"`
	// Agent is the image of the agent.
	Agent string `json:"agent,omitempty"`
	// Memory was spec.memory then.
	Memory string `json:"memory,omitempty"`
	// Inputs is the digest of all inputs, image and restart included. The agent's image is not an input: a new one is used
	// only when servers are replaced anyway.
	Inputs string `json:"inputs,omitempty"`
	// Secrets are those that the servers mount.
	Secrets Secrets `json:"secrets,omitzero"`
	// Template is the template as the operator applied it, without the annotations that the user gives to pods: they may
	// be as large as an annotation may be. An admission plugin may have changed what is stored.
	Template *corev1ac.PodTemplateSpecApplyConfiguration `json:"template,omitempty"`
}

// ReadRecord reads the record in the annotations of a workload; empty if there is none.
func ReadRecord(annotations map[string]string) (r Record) {
	err := json.Unmarshal([]byte(annotations[v1alpha1.TemplateRecordAnnotation]), &r)
	if t := r.Template; err != nil || t == nil || t.Spec == nil || len(t.Spec.Containers) == 0 {
		return Record{} // somebody changed it
	}
	return r
}

// record returns the record of the workload. If ok is false, there is none: what it would say is read from the current
// template.
func (c Current) record() (r Record, ok bool) {
	if c.Workload == nil || c.Record.Template != nil {
		return c.Record, c.Workload != nil
	}
	template := status.Template(c.Workload)
	r.Template = convert(template, corev1ac.PodTemplateSpec())
	r.RestartedAt = template.Annotations[v1alpha1.RestartedAtAnnotation]
	r.Image, _ = status.Images(template)
	return r, false
}

// Outdated returns status.outdated: the images in the record that a new Memcached with the same spec would not get. An
// admission plugin may rewrite the images of the template, so those do not count.
func (r Record) Outdated(o Options) (fields []string) {
	if r.RequestedImage == "" && r.Image != "" && r.Image != o.DefaultImage {
		fields = append(fields, "image")
	}
	if r.Agent != "" && r.Agent != o.AgentImage {
		fields = append(fields, "agentImage")
	}
	return fields
}

// Digest identifies a value by its JSON form, with the keys sorted: the order of fields in a type of Kubernetes may
// change, and must not replace servers.
func Digest(v any) string {
	var sorted any
	transcode(v, &sorted)
	b, _ := json.Marshal(sorted) // cannot fail: JSON types
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}
