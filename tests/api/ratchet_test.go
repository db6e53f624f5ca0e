package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/internal/testing/manifest"
)

// rule is a CEL rule of the CRD.
type rule struct {
	field, message string   // as the API server reports them
	specs          []string // that the rule refuses
}

// earlier is the API before it had rules: in a group of its own, so that it disturbs no other test.
const earlier = "earlier.example.com"

// TestRatchet: an object that was stored before a rule existed can still be scaled, paused, annotated, changed in other
// fields of the same part of the spec, and deleted, and the operator can write its status and finalizer. A change of
// what the rule reads to another value that it refuses is refused. The specs are those of other tests that a rule
// refuses; a rule without one fails.
func TestRatchet(t *testing.T) {
	crd, _ := readCRD(t)
	crd.Spec.Group, crd.Name = earlier, "memcacheds."+earlier
	strict := crd.DeepCopy()
	var rules []*rule
	manifest.Walk("", crd.Spec.Versions[0].Schema.OpenAPIV3Schema, func(path string, p *apiextensionsv1.JSONSchemaProps) {
		for _, v := range p.XValidations {
			isTransition := strings.Contains(v.Rule, "oldSelf") && v.OptionalOldSelf == nil
			if !isTransition && path != "" {
				rules = append(rules, &rule{field: strings.TrimPrefix(path, ".") + v.FieldPath, message: v.Message})
			}
		}
		p.XValidations = nil
	})
	violations(t, rules)
	install := func(crd *apiextensionsv1.CustomResourceDefinition) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "crd.json")
		content, err := json.Marshal(crd)
		if err == nil {
			err = os.WriteFile(file, content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"apply", "--server-side", "-f", file}, {"wait", "--for=condition=Established",
			"-f", file}} {
			if out, err := kubectl(t, args...); err != nil {
				t.Fatalf("%v: %v: %s", args, err, out)
			}
		}
	}
	install(crd)
	store := func(name, spec string) *unstructured.Unstructured {
		t.Helper()
		obj := object(t, name, spec)
		if err := c.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
		return obj
	}
	valid := map[any]*unstructured.Unstructured{}
	for _, workload := range []string{"Deployment", "StatefulSet"} {
		valid[workload] = store("valid-"+strings.ToLower(workload), "{workload: "+workload+"}")
	}
	badName := store("name.with.dots", "{}")
	var stored []*unstructured.Unstructured
	for i, r := range rules {
		if len(r.specs) == 0 {
			t.Errorf("no test has a spec that the rule of %s refuses: %s", r.field, r.message)
			r.specs = []string{"{}"}
		}
		stored = append(stored, store(fmt.Sprintf("stored-%d", i), r.specs[0]))
	}
	install(strict)
	harness.Eventually(t, "the rules", time.Minute, func() error {
		for _, refused := range []*unstructured.Unstructured{object(t, "new", rules[0].specs[0]), object(t, "a.b", "{}")} {
			if err := c.Create(t.Context(), refused, client.DryRunAll); !apierrors.IsInvalid(err) {
				return fmt.Errorf("want a refusal, got: %w", err)
			}
		}
		return nil
	})

	keepsWorking(t, badName)
	others := 0
	for i, r := range rules {
		obj := stored[i]
		t.Run(r.field, func(t *testing.T) {
			for _, spec := range r.specs[1:] {
				change, before := obj.DeepCopy(), obj.Object["spec"]
				change.Object["spec"] = object(t, "", spec).Object["spec"]
				err := c.Update(t.Context(), change, client.DryRunAll)
				if err == nil && reflect.DeepEqual(change.Object["spec"], before) {
					continue // the same spec in other words
				}
				others++
				if err == nil || !strings.Contains(err.Error(), r.message) {
					t.Errorf("%.200s was changed to %.200s: want %q, got: %v", r.specs[0], spec, r.message, err)
				}
				break
			}
			spec := obj.Object["spec"].(map[string]any)
			change := valid[spec["workload"]].DeepCopy()
			change.Object["spec"] = object(t, "", r.specs[0]).Object["spec"]
			if err := c.Update(t.Context(), change, client.DryRunAll); err == nil || !strings.Contains(err.Error(), r.message) {
				t.Errorf("a valid spec was changed to %.200s: want %q, got: %v", r.specs[0], r.message, err)
			}
			keepsWorking(t, obj)
		})
	}
	if others < 25 {
		t.Errorf("want a second spec for many rules, found %d", others)
	}
}

// keepsWorking fails unless users, autoscalers and the operator can do with an object what its spec does not concern.
func keepsWorking(t *testing.T, obj *unstructured.Unstructured) {
	t.Helper()
	ctx := t.Context()
	patch := func(what, patch string, send func(context.Context, client.Object, client.Patch) error) {
		t.Helper()
		if err := send(ctx, obj.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	whole := func(ctx context.Context, o client.Object, p client.Patch) error { return c.Patch(ctx, o, p) }
	of := func(subresource string) func(context.Context, client.Object, client.Patch) error {
		return func(ctx context.Context, o client.Object, p client.Patch) error {
			return c.SubResource(subresource).Patch(ctx, o, p)
		}
	}
	patch("scale", `{"spec": {"replicas": 7}}`, of("scale"))
	patch("pause", `{"spec": {"paused": true}}`, whole)
	patch("annotate", `{"metadata": {"annotations": {"a": "b"}}}`, whole)
	patch("change the rollout", `{"spec": {"rollout": {"maxUnavailable": 2}}}`, whole)
	if spec := obj.Object["spec"].(map[string]any); spec["proxy"] != nil {
		patch("change the proxies", `{"spec": {"proxy": {"moveItems": "OnResize"}}}`, whole)
	}
	patch("write the status", `{"status": {"phase": "Ready"}}`, of("status"))
	patch("add a finalizer", `{"metadata": {"finalizers": ["example.com/f"]}}`, whole)
	if err := c.Delete(ctx, obj.DeepCopy()); err != nil {
		t.Errorf("delete: %v", err)
	}
	patch("remove the finalizer", `{"metadata": {"finalizers": null}}`, whole)
	if err := c.Get(ctx, client.ObjectKeyFromObject(obj), obj.DeepCopy()); !apierrors.IsNotFound(err) {
		t.Errorf("the deleted object still exists: %v", err)
	}
}

// object returns a Memcached of the earlier API.
func object(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{Object: unmarshal(t, document(spec))}
	obj.SetAPIVersion(earlier + "/v1alpha1")
	obj.SetNamespace("default")
	obj.SetName(name)
	return obj
}

var (
	index = regexp.MustCompile(`\[\d+\]`)
	key   = regexp.MustCompile(`\[([^\]]+)\]`)
)

// violations adds to each rule the specs of other tests that it refuses.
func violations(t *testing.T, rules []*rule) {
	t.Helper()
	var specs []string
	for _, tt := range refused {
		specs = append(specs, tt.specs...)
	}
	for _, tt := range baseline {
		specs = append(specs, "{pod: "+tt.pod+"}")
	}
	for _, spec := range specs {
		_, err := dryRun(t.Context(), document(spec))
		var status apierrors.APIStatus
		if !errors.As(err, &status) {
			t.Fatalf("%s: want a refusal, got: %v", spec, err)
		}
		for _, cause := range causesOfRules(status.Status()) {
			if strings.Contains(cause.Message, "evaluating rule: ") {
				t.Errorf("%.200s: the rule of %s does not refuse it, but fails, also while the value stays: %s", spec, cause.Field,
					cause.Message)
			}
			field := key.ReplaceAllString(index.ReplaceAllString(cause.Field, "@"), ".$1")
			for _, r := range rules {
				if strings.ReplaceAll(field, "@", "[]") == r.field && strings.HasSuffix(cause.Message, r.message) {
					r.specs = append(r.specs, spec)
				}
			}
		}
	}
}
