package api

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/tests/specs"
)

// TestChildren: for each spec that the API server accepts, it also accepts all children and a pod of the template. If
// it refused a child, the CRD should have refused the spec.
func TestChildren(t *testing.T) {
	accepted := 0
	for i, spec := range append(specs.Generate(2000), specs.Accepted...) {
		got, err := dryRun(t.Context(), document(spec))
		if err != nil {
			continue
		}
		accepted++
		body, err := got.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		mc := &v1alpha1.Memcached{}
		if err := json.Unmarshal(body, mc); err != nil {
			t.Fatal(err)
		}
		for _, child := range children(mc) {
			if err := c.Apply(t.Context(), child, client.DryRunAll, client.FieldOwner("memcached-operator"),
				client.ForceOwnership); err != nil {
				t.Errorf("spec %d: %.2000s: %v", i, spec, err)
			} else if w := desired.ReadWorkload(child); w != nil {
				pod := &corev1.Pod{}
				b, err := json.Marshal(w.Template)
				if err == nil {
					err = json.Unmarshal(b, pod)
				}
				if err != nil {
					t.Fatal(err)
				}
				pod.Namespace, pod.Name = "default", "test"
				if err := c.Create(t.Context(), pod, client.DryRunAll); err != nil {
					t.Errorf("pod of spec %d: %.2000s: %v", i, spec, err)
				}
			}
		}
	}
	t.Logf("%d specs are accepted, %d of them from specs.Accepted", accepted, len(specs.Accepted))
	if accepted < len(specs.Accepted)+200 {
		t.Errorf("%d accepted specs are too few to prove anything", accepted)
	}
}

func children(mc *v1alpha1.Memcached) []runtime.ApplyConfiguration {
	options := desired.Options{DefaultImage: "docker.io/library/memcached:1.6", AgentImage: "example.com/operator:dev"}
	return desired.NewPlan(mc, desired.Resolve(mc, desired.Current{}, options)).Children
}
