package controllers

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestGolden holds the children of each sample and case. A change of a pod template here is a change that an upgrade of the operator
// makes on running clusters: it restarts, and so empties, every cache.
func TestGolden(t *testing.T) {
	t.Parallel()
	cases, err := filepath.Glob("testdata/*/memcached.yaml")
	if err != nil {
		t.Fatal(err)
	}
	samples, err := filepath.Glob("../config/samples/cache_*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(cases) == 0 || len(samples) == 0 {
		t.Fatalf("found %d cases and %d samples", len(cases), len(samples))
	}
	for _, path := range append(cases, samples...) {
		golden := filepath.Join(filepath.Dir(path), "want.yaml")
		if strings.HasPrefix(path, "..") {
			golden = filepath.Join("testdata", "samples", filepath.Base(path))
		}
		t.Run(golden, func(t *testing.T) {
			t.Parallel()
			got := manifests(t, load(t, path))
			if *update {
				if err := os.MkdirAll(filepath.Dir(golden), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatalf("%v (go test ./controllers -run TestGolden -update writes it)", err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("children differ from %s; see the change with -update and git diff. Got:\n%s", golden, got)
			}
		})
	}
}

// manifests renders the children of mc.
func manifests(t *testing.T, mc *v1alpha1.Memcached) []byte {
	t.Helper()
	var out bytes.Buffer
	for _, c := range children(desired(mc, carry(mc, observed{}, "docker.io/library/memcached:default")), observed{}) {
		b, err := yaml.Marshal(c.config)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n")
		out.Write(b)
	}
	return out.Bytes()
}

// load reads a Memcached as the API server would hand it out: strict, and with the defaults of the CRD.
func load(t *testing.T, path string) *v1alpha1.Memcached {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, string(b))
}

func parse(t *testing.T, manifest string) *v1alpha1.Memcached {
	t.Helper()
	var content map[string]any
	if err := yaml.Unmarshal([]byte(manifest), &content); err != nil {
		t.Fatal(err)
	}
	defaulting.Default(content, crdSchema(t))
	b, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	mc := &v1alpha1.Memcached{}
	if err := yaml.UnmarshalStrict(b, mc); err != nil {
		t.Fatal(err)
	}
	if mc.Namespace == "" {
		mc.Namespace = "default"
	}
	mc.UID, mc.Generation = "0000-uid", 1
	return mc
}

// crdSchema is that of the CRD.
func crdSchema(t *testing.T) *structuralschema.Structural {
	t.Helper()
	b, err := os.ReadFile("../config/crd/bases/cache.example.com_memcacheds.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(b, &crd); err != nil {
		t.Fatal(err)
	}
	var props apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
		crd.Spec.Versions[0].Schema.OpenAPIV3Schema, &props, nil); err != nil {
		t.Fatal(err)
	}
	s, err := structuralschema.NewStructural(&props)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
