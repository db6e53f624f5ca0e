package steps

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// TestRedact: the text of an agent whose pod has a Secret does not get into the status.
func TestRedact(t *testing.T) {
	t.Parallel()
	const text = `memcached answered "user:password"`
	pod := &corev1.Pod{}
	if got := redact(pod, text); got != text {
		t.Errorf("without a Secret: got %q", got)
	}
	pod.Annotations = map[string]string{v1alpha1.SecretsAnnotation: "passwords 1"}
	if got := redact(pod, text); got == text || got == "" {
		t.Errorf("with a Secret: got %q", got)
	}
}
