package children

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/applyconfigurations"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/yaml"
)

// further are children with atomic fields that the golden files do not show.
const further = `---
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      tolerations: [{key: a}]
      topologySpreadConstraints:
      - {topologyKey: zone, maxSkew: 1, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {a: b}}}
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: a}]}]}
          preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: a}]}}]
        podAffinity: &terms
          requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: a, namespaceSelector: {matchLabels: {a: b}}}]
          preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: a}}]
        podAntiAffinity: *terms
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
spec: {ingress: [{from: [{namespaceSelector: {matchLabels: {a: b}}}]}]}
`

// TestAtomic: every field of a child that the schema calls atomic, and inside of which others may add something, is
// among those that contains compares as a whole.
func TestAtomic(t *testing.T) {
	t.Parallel()
	golden, err := filepath.Glob("../desired/testdata/*/want.yaml")
	if err != nil || len(golden) == 0 {
		t.Fatalf("found %d golden files: %v", len(golden), err)
	}
	var manifests strings.Builder
	manifests.WriteString(further)
	for _, path := range golden {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		manifests.Write(b)
	}
	converter, used := applyconfigurations.NewTypeConverter(clientgoscheme.Scheme), map[string]bool{}
	for _, manifest := range strings.Split(manifests.String(), "---\n")[1:] {
		json, err := yaml.YAMLToJSON([]byte(manifest))
		if err != nil {
			t.Fatal(err)
		}
		obj, err := runtime.Decode(clientgoscheme.Codecs.UniversalDeserializer(), json)
		if err != nil {
			t.Fatal(err)
		}
		content, err := converter.ObjectToTyped(obj)
		if err != nil {
			t.Fatal(err)
		}
		fields, err := content.ToFieldSet()
		if err != nil {
			t.Fatal(err)
		}
		for path := range fields.Leaves().All() {
			name := path[len(path)-1].FieldName
			if name == nil || !structured(at(content.AsValue().Unstructured(), path)) {
				continue
			}
			used[*name] = true
			if !slices.Contains(atomic, *name) {
				t.Errorf("%s is atomic, and not among %q", path, atomic)
			}
		}
	}
	for _, name := range atomic {
		if !used[name] {
			t.Errorf("%s is atomic in no child", name)
		}
	}
}

// at is the value at a path.
func at(v any, path fieldpath.Path) any {
	for _, step := range path {
		if step.FieldName != nil {
			v = v.(map[string]any)[*step.FieldName]
			continue
		}
		for _, item := range v.([]any) {
			is := true
			for _, key := range *step.Key {
				is = is && item.(map[string]any)[key.Name] == key.Value.Unstructured()
			}
			if is {
				v = item
			}
		}
	}
	return v
}

// structured reports whether others may add something inside of a value.
func structured(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) > 0
	case []any:
		return slices.ContainsFunc(v, structured)
	}
	return false
}

// TestContains: what others add is no change of what was applied, but inside of a field that is owned as a whole.
func TestContains(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		have, want string
		contains   bool
	}{
		{"{a: 1, b: 2}", "{a: 1}", true},
		{"{a: 2}", "{a: 1}", false},
		{"{}", "{a: 1}", false},
		{"{a: [{b: 1, c: 2}]}", "{a: [{b: 1}]}", true},
		{"{a: [{b: 1}, {c: 2}]}", "{a: [{b: 1}]}", false},
		{"{nodeSelector: {a: b}, c: d}", "{nodeSelector: {a: b}}", true},
		{"{nodeSelector: {a: b, c: d}}", "{nodeSelector: {a: b}}", false},
		{"{selector: {matchLabels: {a: b}, matchExpressions: [{key: c}]}}", "{selector: {matchLabels: {a: b}}}", false},
		{"{tolerations: [{key: a}]}", "{tolerations: [{key: a}]}", true},
		{"{tolerations: [{key: a, tolerationSeconds: 1}]}", "{tolerations: [{key: a}]}", false},
		{"{labels: {selector: none}}", "{labels: {selector: none}}", true},
		{"{labels: {selector: some}}", "{labels: {selector: none}}", false},
	} {
		var have, want any
		err := errors.Join(yaml.Unmarshal([]byte(tt.have), &have), yaml.Unmarshal([]byte(tt.want), &want))
		if err != nil {
			t.Fatal(err)
		}
		if got := contains(have, want); got != tt.contains {
			t.Errorf("%s contains %s: %t, want %t", tt.have, tt.want, got, tt.contains)
		}
	}
}
