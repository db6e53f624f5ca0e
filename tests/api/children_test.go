package api

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
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
	schema, err := specs.NewSchema(manifest.Schema(t).Properties["spec"])
	if err != nil {
		t.Fatal(err)
	}
	all := slices.Concat(specs.Generate(2000), specs.Accepted, schema.Random(1, 600))
	var next, accepted atomic.Int64
	var sent sync.Map
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(all)); i = next.Add(1) - 1 {
				ok, err := tryChildren(t.Context(), all[i], &sent)
				if err != nil {
					t.Errorf("spec %d: %.2000s: %.2000v", i, all[i], err)
				}
				if ok {
					accepted.Add(1)
				}
			}
		})
	}
	workers.Wait()
	t.Logf("%d specs are accepted, %d of them from specs.Accepted", accepted.Load(), len(specs.Accepted))
	if accepted.Load() < int64(len(specs.Accepted)+200) {
		t.Errorf("%d accepted specs are too few to prove anything", accepted.Load())
	}
}

// tryChildren reports whether the API server accepts a spec. It then sends all children of the spec and a pod of the
// template, but not those that were sent before: most specs share most of their children.
func tryChildren(ctx context.Context, spec string, sent *sync.Map) (accepted bool, err error) {
	got, err := dryRun(ctx, document(spec))
	if err != nil {
		if specs.Refusal(err) == "" {
			return false, fmt.Errorf("the refusal names no field and rule: %w", err)
		}
		return false, nil
	}
	mc := &v1alpha1.Memcached{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(got.Object, mc); err != nil {
		return true, err
	}
	for _, child := range children(mc) {
		b, err := json.Marshal(child)
		if err != nil {
			return true, err
		}
		if _, known := sent.LoadOrStore(string(b), true); known {
			continue
		}
		if err := c.Apply(ctx, child, client.DryRunAll, client.FieldOwner("memcached-operator"),
			client.ForceOwnership); err != nil {
			return true, err
		}
		template := manifest.PodTemplate(child)
		if template == nil {
			continue
		}
		if b, err = json.Marshal(template); err != nil {
			return true, err
		}
		if _, known := sent.LoadOrStore(string(b), true); known {
			continue
		}
		pod := &corev1.Pod{}
		if err := json.Unmarshal(b, pod); err != nil {
			return true, err
		}
		pod.Namespace, pod.Name = "default", "test"
		if err := c.Create(ctx, pod, client.DryRunAll); err != nil {
			return true, fmt.Errorf("pod: %w", err)
		}
	}
	return true, nil
}

func children(mc *v1alpha1.Memcached) []runtime.ApplyConfiguration {
	options := desired.Options{DefaultImage: "docker.io/library/memcached:1.6", AgentImage: "example.com/operator:dev"}
	return desired.NewPlan(mc, desired.Resolve(mc, desired.Current{}, options)).Children
}
