package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/internal/testing/manifest"
	"github.com/example/memcached-operator/internal/testing/specs"
)

// TestChildren sends many specs:
//   - The API server accepts those of specs.Accepted, and all their children.
//   - It refuses another one with the name of a field and a rule, accepts it with all children, or refuses a child as
//     invalid. Then the status says why.
//   - If it accepts a workload, it accepts a pod of it too: nothing would report a bad template.
//   - No pod exceeds the baseline Pod Security Standard.
//   - The operator can decode what is accepted: one object that it cannot would hide all others.
func TestChildren(t *testing.T) {
	schema, err := specs.NewSchema(manifest.Schema(t).Properties["spec"])
	if err != nil {
		t.Fatal(err)
	}
	generated := specs.Generate(3000)
	all := slices.Concat(specs.Accepted, generated[:1000], schema.Random(1, 600))
	for _, text := range generated { // few whole specs with a security context are accepted
		var spec struct {
			Pod struct{ SecurityContext, ContainerSecurityContext json.RawMessage }
		}
		if err := json.Unmarshal([]byte(text), &spec); err != nil {
			t.Fatal(err)
		}
		for name, context := range map[string]json.RawMessage{"securityContext": spec.Pod.SecurityContext,
			"containerSecurityContext": spec.Pod.ContainerSecurityContext} {
			if context != nil {
				all = append(all, fmt.Sprintf(`{"pod": {%q: %s}}`, name, context))
			}
		}
	}
	var accepted, invalid atomic.Int64
	var sent sync.Map
	var group errgroup.Group
	group.SetLimit(4)
	for i, spec := range all {
		group.Go(func() error {
			got, err := dryRun(t.Context(), document(spec))
			if err != nil {
				if i < len(specs.Accepted) || specs.Refusal(err) == "" {
					t.Errorf("spec %d: %.2000s: refused, or without the name of a field and rule: %.2000v", i, spec, err)
				}
				return nil
			}
			accepted.Add(1)
			err = tryChildren(t, got, &sent)
			if apierrors.IsInvalid(err) && i >= len(specs.Accepted) {
				invalid.Add(1)
			} else if err != nil {
				t.Errorf("spec %d: %.2000s: %.2000v", i, spec, err)
			}
			return nil
		})
	}
	_ = group.Wait()
	t.Logf("%d specs are accepted, %d of them with a child that is not", accepted.Load(), invalid.Load())
	if accepted.Load()-invalid.Load() < int64(len(specs.Accepted)+200) {
		t.Errorf("too few accepted specs to prove anything: %d, and %d with a child that is not", accepted.Load(),
			invalid.Load())
	}
}

// tryChildren sends all children of a spec and a pod of each template, but not those that were sent before: most specs
// share most of their children. An error about a child is that of the API server; one about a pod is another one.
func tryChildren(t *testing.T, obj *unstructured.Unstructured, sent *sync.Map) error {
	t.Helper()
	ctx, mc := t.Context(), &v1alpha1.Memcached{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, mc); err != nil {
		return err
	}
	for _, child := range children(mc) {
		if isKnown(sent, child) {
			continue
		}
		if err := c.Apply(ctx, child, client.DryRunAll, client.FieldOwner("memcached-operator"),
			client.ForceOwnership); err != nil {
			sent.Delete(desired.Digest(child)) // another spec may have it too
			return err
		}
		template := manifest.PodTemplate(child)
		if template == nil || isKnown(sent, template) {
			continue
		}
		if err := exceedsBaseline(t, template); err != nil {
			return err
		}
		pod := corev1ac.Pod("test", "default").WithLabels(template.Labels).WithAnnotations(template.Annotations).
			WithSpec(template.Spec)
		if err := c.Apply(ctx, pod, client.DryRunAll, client.FieldOwner("memcached-operator")); err != nil {
			return errors.New("a pod is refused, although its workload is not: " + err.Error())
		}
	}
	return nil
}

// isKnown reports whether a value was given to isKnown before.
func isKnown(sent *sync.Map, v any) bool {
	_, known := sent.LoadOrStore(desired.Digest(v), true)
	return known
}

func children(mc *v1alpha1.Memcached) []runtime.ApplyConfiguration {
	options := desired.Options{DefaultImage: "docker.io/library/memcached:1.6", AgentImage: "example.com/operator:dev"}
	return desired.NewPlan(mc, desired.Resolve(mc, desired.Current{}, options)).Children
}
