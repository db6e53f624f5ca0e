package api

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// TestRatchet: an object that is older than a rule may keep the value that the rule refuses while other fields change.
// The test uses a copy of the CRD in another group, first without rules and then with them.
func TestRatchet(t *testing.T) {
	crd, _ := readCRD(t)
	crd.Spec.Group = "ratchet.example.com"
	crd.Name = "memcacheds." + crd.Spec.Group
	crd.Annotations = map[string]string{}
	crd.Spec.Names.ShortNames = nil
	before := crd.DeepCopy()
	withoutRules(before.Spec.Versions[0].Schema.OpenAPIV3Schema)
	if err := c.Create(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Delete(context.Background(), before) })

	object := func(name, spec string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{}
		text := fmt.Sprintf("apiVersion: ratchet.example.com/v1alpha1\nkind: Memcached\n"+
			"metadata: {namespace: default, name: %s}\nspec: %s\n", name, spec)
		if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
			t.Fatal(err)
		}
		return u
	}
	eventually := func(what string, done func() bool) {
		if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true,
			func(context.Context) (bool, error) { return done(), nil }); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	limit, sysctl := `{pod: {resources: {limits: {memory: 100Mi}}}}`, `net.core.somaxconn`
	tests := []struct{ name, spec, patch, message string }{
		{"limit-other-change", limit, `{"size": 2}`, ""},
		{"limit-raised", limit, `{"pod": {"resources": {"limits": {"memory": "128Mi"}}}}`, ""},
		{"limit-removed", limit, `{"pod": null}`, ""},
		{"limit-still-low", limit, `{"pod": {"resources": {"limits": {"memory": "101Mi"}}}}`, memoryLimit},
		{"limit-more-memory", limit, `{"memory": "65Mi"}`, memoryLimit},
		{"limit-more-threads", limit, `{"threads": 5}`, memoryLimit},
		{"limit-new", `{}`, `{"pod": {"resources": {"limits": {"memory": "100Mi"}}}}`, memoryLimit},
		{"labels-other-change", `{pod: {labels: {controller-revision-hash: a}}}`, `{"size": 2}`, ""},
		{"labels-changed", `{pod: {labels: {controller-revision-hash: a}}}`, `{"pod": {"labels": {"a": "b"}}}`, ownLabels},
		{"sysctls-other-change", `{pod: {securityContext: {sysctls: [{name: ` + sysctl + `, value: "1"}]}}}`,
			`{"size": 2}`, ""},
		{"sysctls-changed", `{pod: {securityContext: {sysctls: [{name: ` + sysctl + `, value: "1"}]}}}`,
			`{"pod": {"securityContext": {"fsGroup": 1}}}`, sysctlRule},
	}
	for _, tt := range tests {
		eventually("create "+tt.name, func() bool { return c.Create(t.Context(), object(tt.name, tt.spec)) == nil })
	}
	eventually("add the rules", func() bool {
		after := &apiextensionsv1.CustomResourceDefinition{}
		err := c.Get(t.Context(), client.ObjectKeyFromObject(crd), after)
		after.Spec.Versions = crd.Spec.Versions
		return err == nil && c.Update(t.Context(), after) == nil
	})
	eventually("refuse by the rules", func() bool {
		return c.Create(t.Context(), object("refused", limit), client.DryRunAll) != nil
	})
	for _, tt := range tests {
		err := c.Patch(t.Context(), object(tt.name, "{}"),
			client.RawPatch(types.MergePatchType, []byte(`{"spec": `+tt.patch+`}`)))
		if (err == nil) != (tt.message == "") || err != nil && !strings.Contains(err.Error(), tt.message) {
			t.Errorf("%s: want %q, got %v", tt.name, tt.message, err)
		}
	}
}

// withoutRules removes all rules from a schema.
func withoutRules(s *apiextensionsv1.JSONSchemaProps) {
	s.XValidations = nil
	for name, property := range s.Properties {
		withoutRules(&property)
		s.Properties[name] = property
	}
	if s.Items != nil && s.Items.Schema != nil {
		withoutRules(s.Items.Schema)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		withoutRules(s.AdditionalProperties.Schema)
	}
}
