// Package manifest decodes manifests of Memcacheds as the API server would: strictly, and with the defaults of the CRD.
package manifest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apimachinery/pkg/runtime"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/internal/testing/harness"
)

// Load reads a Memcached from a file.
func Load(t testing.TB, path string) *v1alpha1.Memcached {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return Parse(t, string(b))
}

// Named returns the manifest of a Memcached with this name and spec.
func Named(name, spec string) string {
	return "{apiVersion: cache.example.com/v1alpha1, kind: Memcached, metadata: {name: " + name + "}, spec: " + spec + "}"
}

// Parse reads a Memcached from a text.
func Parse(t testing.TB, manifest string) *v1alpha1.Memcached {
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

// Schema returns the schema of the CRD.
func Schema(t testing.TB) *apiextensionsv1.JSONSchemaProps {
	t.Helper()
	root, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(root, "config/crd/bases/cache.example.com_memcacheds.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(b, &crd); err != nil {
		t.Fatal(err)
	}
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema
}

// Walk calls visit with a schema and with each schema below it, which visit may change. A path ends in [] for the items
// of a list, and in {} for the values of a map.
func Walk(path string, schema *apiextensionsv1.JSONSchemaProps,
	visit func(path string, schema *apiextensionsv1.JSONSchemaProps)) {
	visit(path, schema)
	for name, field := range schema.Properties {
		Walk(path+"."+name, &field, visit)
		schema.Properties[name] = field
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		Walk(path+"[]", schema.Items.Schema, visit)
	}
	if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		Walk(path+"{}", schema.AdditionalProperties.Schema, visit)
	}
}

// structural is the schema of the CRD in the form that applies its defaults, once it was read.
var structural atomic.Pointer[structuralschema.Structural]

// crdSchema returns the schema of the CRD in the form that applies its defaults.
func crdSchema(t testing.TB) *structuralschema.Structural {
	t.Helper()
	if s := structural.Load(); s != nil {
		return s
	}
	var props apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
		Schema(t), &props, nil); err != nil {
		t.Fatal(err)
	}
	s, err := structuralschema.NewStructural(&props)
	if err != nil {
		t.Fatal(err)
	}
	structural.Store(s)
	return s
}

// PodTemplate returns the pod template of a desired workload; nil for another object.
func PodTemplate(config runtime.ApplyConfiguration) *corev1ac.PodTemplateSpecApplyConfiguration {
	switch c := config.(type) {
	case *appsv1ac.DeploymentApplyConfiguration:
		return c.Spec.Template
	case *appsv1ac.StatefulSetApplyConfiguration:
		return c.Spec.Template
	}
	return nil
}
