package bundle

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/internal/testing/manifest"
	"github.com/example/memcached-operator/tests/earlier"
)

const crdFile = "bundle/manifests/cache.example.com_memcacheds.yaml"

// exception is a rule that refuses what the CRD of the last release accepted.
type exception struct{ field, message, reason string }

// exceptions lists, by the release that the CRD is compared with, each rule that was added since. An existing object
// may keep a value that is refused now until a field changes that the rule reads, as TestRatchet of tests/api shows.
var exceptions = map[string][]exception{}

// TestCompare compares the CRD with that of the last release below its version or, if there is none, with itself. The
// CRD must accept all that the last one accepted, unless an exception names the rule and its reason, and no default may
// change.
func TestCompare(t *testing.T) {
	released, err := earlier.Release(t.Context(), load(t).CSV.Spec.Version.String(), t.TempDir())
	require.NoError(t, err)
	read := func(source string) *apiextensionsv1.CustomResourceDefinition {
		text, err := os.ReadFile(filepath.Join(source, crdFile))
		require.NoError(t, err)
		return parse(t, string(text))
	}
	last, version := read(cmp.Or(released.Source, root)), released.Version
	now := func() *apiextensionsv1.CustomResourceDefinition { return read(root) }
	for _, problem := range compare(t, last.DeepCopy(), now(), exceptions[version]) {
		t.Errorf("compared with v%s: %s", version, problem)
	}

	// The comparison finds each incompatible change.
	for name, tighten := range map[string]func(spec *apiextensionsv1.JSONSchemaProps){
		"a rule": func(spec *apiextensionsv1.JSONSchemaProps) {
			spec.XValidations = append(spec.XValidations, apiextensionsv1.ValidationRule{Rule: "self.size < 3",
				Message: "must be small"})
		},
		"a changed rule": func(spec *apiextensionsv1.JSONSchemaProps) {
			memory := spec.Properties["memory"]
			memory.XValidations[0].Rule = "self == '64Mi'"
			spec.Properties["memory"] = memory
		},
		"a maximum": func(spec *apiextensionsv1.JSONSchemaProps) {
			size := spec.Properties["size"]
			*size.Maximum = 3
			spec.Properties["size"] = size
		},
		"a default": func(spec *apiextensionsv1.JSONSchemaProps) {
			size := spec.Properties["size"]
			size.Default.Raw = []byte("2")
			spec.Properties["size"] = size
		},
		"a removed field": func(spec *apiextensionsv1.JSONSchemaProps) { delete(spec.Properties, "paused") },
	} {
		tight := now()
		spec := tight.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		tighten(&spec)
		tight.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = spec
		if problems := compare(t, now(), tight.DeepCopy(), nil); len(problems) != 1 {
			t.Errorf("%s: want one problem, got %q", name, problems)
		}
		problems := compare(t, now(), tight, []exception{{"^.spec", "must be small", "because"}})
		if (len(problems) == 0) != (name == "a rule") {
			t.Errorf("%s, with an exception for the rule: got %q", name, problems)
		}
	}
}

// compare returns what a CRD refuses or changes that the last one accepted. crdify compares everything except CEL
// rules, of which it only knows that they differ. So compare removes the rules first, and requires an exception for
// each new rule.
func compare(t *testing.T, last, now *apiextensionsv1.CustomResourceDefinition,
	exceptions []exception) (problems []string) {
	t.Helper()
	before, existed := map[string][]string{}, map[string]bool{}
	manifest.Walk("^", last.Spec.Versions[0].Schema.OpenAPIV3Schema,
		func(field string, _ *apiextensionsv1.JSONSchemaProps) { existed[field] = true })
	for field, rules := range withoutRules(last) {
		for _, rule := range rules {
			before[field] = append(before[field], rule.Rule)
		}
	}
	for field, rules := range withoutRules(now) {
		for _, rule := range rules {
			excepted := slices.ContainsFunc(exceptions, func(e exception) bool {
				return e.field == field && strings.HasPrefix(rule.Message, e.message) && e.reason != ""
			})
			if existed[field] && !slices.Contains(before[field], rule.Rule) && !excepted {
				problems = append(problems, fmt.Sprintf("%s: a new rule that no exception names: %s: %s", field, rule.Message,
					rule.Rule))
			}
		}
	}
	dir := t.TempDir()
	write := func(name string, v any) string {
		text, err := yaml.Marshal(v)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		require.NoError(t, err)
		return filepath.Join(dir, name)
	}
	cmd := exec.Command(root+"/bin/crdify", "--config", root+"/tools/crdify/config.yaml", "file://"+write("last.yaml",
		last), "file://"+write("now.yaml", now))
	if out, err := cmd.CombinedOutput(); err != nil {
		problems = append(problems, fmt.Sprintf("%v: %s", err, out))
	}
	return problems
}

// withoutRules removes the rules from a CRD and returns them by field, with the paths that crdify writes.
func withoutRules(crd *apiextensionsv1.CustomResourceDefinition) map[string]apiextensionsv1.ValidationRules {
	found := map[string]apiextensionsv1.ValidationRules{}
	schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	manifest.Walk("^", schema, func(field string, s *apiextensionsv1.JSONSchemaProps) {
		if len(s.XValidations) > 0 {
			found[field], s.XValidations = s.XValidations, nil
		}
	})
	return found
}

func parse(t *testing.T, text string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	require.NoError(t, yaml.UnmarshalStrict([]byte(text), crd))
	if len(crd.Spec.Versions) != 1 {
		t.Fatalf("want one version, got %d", len(crd.Spec.Versions))
	}
	return crd
}
