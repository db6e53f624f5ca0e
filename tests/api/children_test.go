package api

import (
	"encoding/json"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/internal/testing/manifest"
	"github.com/example/memcached-operator/internal/testing/specs"
)

// TestChildren: for each spec that the API server accepts, it also accepts all children and a pod of the template. If
// it refused a child, the CRD should have refused the spec. A refusal of a spec names a field and a rule.
func TestChildren(t *testing.T) {
	accepted := 0
	schema, err := specs.NewSchema(manifest.Schema(t).Properties["spec"])
	if err != nil {
		t.Fatal(err)
	}
	for i, spec := range slices.Concat(specs.Generate(2000), specs.Accepted, schema.Random(1, 600)) {
		got, err := dryRun(t.Context(), document(spec))
		if err != nil {
			if specs.Refusal(err) == "" {
				t.Errorf("spec %d: %.2000s: the refusal names no field and rule: %.2000v", i, spec, err)
			}
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
