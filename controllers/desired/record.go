package desired

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// record says what the pod template of a workload was built from. It is an annotation of the workload, so that it is
// written together with the template, and is right even if the operator stops a moment later.
type record struct {
	// Image is the image of the template, RequestedImage was spec.image then, and PreviousImage the last other image
	// with which a server was ready.
	Image          string `json:"image,omitempty"`
	RequestedImage string `json:"requestedImage,omitempty"`
	PreviousImage  string `json:"previousImage,omitempty"`
	// Ran says that a server was ready with Image, as far as that was known when the record was last made.
	Ran         bool   `json:"ran,omitempty"`
	RestartedAt string `json:"restartedAt,omitempty"`
	// Agent is the image of the agent. It is used again when somebody else's change of the template is reverted.
	Agent string `json:"agent,omitempty"`
	// Inputs is the digest of all inputs, image and restart included. The agent's image is not an input: a new one is used
	// only when servers are replaced anyway.
	Inputs string `json:"inputs,omitempty"`
	// Template is the digest of the template as the API server stored it. If the current template has another digest,
	// somebody has changed it.
	Template string `json:"template,omitempty"`
	// Secrets are those that the servers mount.
	Secrets Secrets `json:"secrets,omitzero"`
}

// readRecord reads the record of a workload. If ok is false, there is none, and image and restart are from the
// template.
func readRecord(own *Workload) (r record, ok bool) {
	if json.Unmarshal([]byte(own.Annotations[v1alpha1.TemplateRecordAnnotation]), &r) == nil && r.Inputs != "" {
		return r, true
	}
	r = record{}
	if own.Template == nil {
		return r, false
	}
	if own.Template.ObjectMetaApplyConfiguration != nil {
		r.RestartedAt = own.Template.Annotations[v1alpha1.RestartedAtAnnotation]
	}
	if c := own.container(); c != nil {
		r.Image = ptr.Deref(c.Image, "")
	}
	return r, false
}

func (r record) annotations() map[string]string {
	b, _ := json.Marshal(r) // only strings and times
	return map[string]string{v1alpha1.TemplateRecordAnnotation: string(b)}
}

// RecordedSecrets returns the Secrets in the record of a workload.
func RecordedSecrets(own *Workload) Secrets {
	if own == nil {
		return Secrets{}
	}
	r, _ := readRecord(own)
	return r.Secrets
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
