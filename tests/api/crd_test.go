package api

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/internal/testing/manifest"
)

func readCRD(t *testing.T) (*apiextensionsv1.CustomResourceDefinition, []byte) {
	t.Helper()
	content, err := os.ReadFile(crdFile)
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(content, crd); err != nil {
		t.Fatal(err)
	}
	return crd, content
}

// TestApplyCRD: the API server returns the CRD exactly as it was applied, by client-side and by server-side apply.
// Otherwise GitOps tools, which apply it again and again, would always find a difference.
func TestApplyCRD(t *testing.T) {
	crd, content := readCRD(t)
	if annotation, err := yaml.YAMLToJSON(content); err != nil || len(annotation) >= 262144 {
		t.Errorf("the CRD has %d bytes as JSON, too many for the annotation of a client-side apply: %v", len(annotation), err)
	}
	live := func() *unstructured.Unstructured {
		t.Helper()
		obj := &unstructured.Unstructured{}
		obj.SetAPIVersion("apiextensions.k8s.io/v1")
		obj.SetKind("CustomResourceDefinition")
		if err := c.Get(t.Context(), client.ObjectKey{Name: crd.Name}, obj); err != nil {
			t.Fatal(err)
		}
		return obj
	}
	want := unmarshal(t, string(content))["spec"].(map[string]any)
	want["conversion"] = map[string]any{"strategy": "None"} // the API server's only default
	before := live().GetGeneration()
	for _, args := range [][]string{
		{"apply"}, {"apply"},
		{"apply", "--server-side"}, {"apply", "--server-side"},
		{"apply", "--server-side", "--field-manager=gitops"},
		{"apply"},
	} {
		if out, err := kubectl(t, append(args, "-f", crdFile)...); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
		if got := live(); got.GetGeneration() != before {
			t.Errorf("%v changed the CRD", args)
		} else if !reflect.DeepEqual(got.Object["spec"], any(want)) {
			t.Errorf("%v: the API server returns a different CRD than was applied", args)
		}
	}
	if out, err := kubectl(t, "diff", "-f", crdFile); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestKeepCRD: annotations stop GitOps tools from pruning the CRD, which would delete every cache.
func TestKeepCRD(t *testing.T) {
	crd, _ := readCRD(t)
	for k, v := range map[string]string{
		"argocd.argoproj.io/sync-options":   "Prune=false,Delete=false",
		"kustomize.toolkit.fluxcd.io/prune": "disabled",
		"helm.sh/resource-policy":           "keep",
	} {
		if crd.Annotations[k] != v {
			t.Errorf("want the annotation %s: %s", k, v)
		}
	}
}

// TestDescriptions: each field has a description, and it names the default. TestEffects of controllers/desired compares
// what it says of a change with what a change does.
func TestDescriptions(t *testing.T) {
	fields := 0
	manifest.Walk("", manifest.Schema(t), func(path string, p *apiextensionsv1.JSONSchemaProps) {
		ours := strings.HasPrefix(path, ".spec") || strings.HasPrefix(path, ".status")
		if !ours || strings.HasSuffix(path, "[]") || strings.HasSuffix(path, "{}") {
			return
		}
		fields++
		description := strings.Join(strings.Fields(p.Description), " ")
		if description == "" {
			t.Errorf("%s has no description", path)
		}
		// The description of a field of ours is a sentence that begins with the name of the field.
		name := path[strings.LastIndex(path, ".")+1:]
		ourField := strings.Count(path, ".") <= 2
		if ourField && (!strings.HasPrefix(description, name+" ") || !strings.HasSuffix(description, ".")) {
			t.Errorf("the description of %s is not a sentence that begins with its name: %s", path, description)
		}
		if p.Default == nil || p.Type == "object" || !strings.HasPrefix(path, ".spec") {
			return
		}
		// kubectl explain does not print defaults.
		value := strings.Trim(string(p.Default.Raw), `"`)
		says := regexp.MustCompile(regexp.QuoteMeta(value) + `"?(, the default| by default)`)
		if value != "" && !says.MatchString(description) {
			t.Errorf("the description of %s does not say that the default is %s: %s", path, value, description)
		}
	})
	if fields < 30 {
		t.Errorf("want all fields, found %d", fields)
	}
}
