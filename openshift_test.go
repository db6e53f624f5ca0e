package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// TestOpenShift: the operator finds the API group of security context constraints on a real API server.
func TestOpenShift(t *testing.T) {
	config := apiServer(t)
	if found, err := openShift(config); err != nil || found {
		t.Errorf("on plain Kubernetes: %t, %v", found, err)
	}
	anything := &apiextensionsv1.JSONSchemaProps{Type: "object"}
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "securitycontextconstraints.security.openshift.io"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "security.openshift.io",
			Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: "securitycontextconstraints", Kind: "SecurityContextConstraints"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: anything}}},
		},
	}
	if _, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{
		CRDs: []*apiextensionsv1.CustomResourceDefinition{crd}}); err != nil {
		t.Fatal(err)
	}
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true,
		func(context.Context) (bool, error) { return openShift(config) }); err != nil {
		t.Errorf("where security.openshift.io is served: %v", err)
	}
}

// apiServer is a real one, that ends with the test.
func apiServer(t *testing.T) *rest.Config {
	t.Helper()
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		var err error
		if assets, err = filepath.Abs("bin"); err != nil {
			t.Fatal(err)
		}
	}
	cluster := envtest.Environment{BinaryAssetsDirectory: assets}
	config, err := cluster.Start()
	if err != nil {
		t.Fatalf("start an API server (make tools-kubernetes tools-etcd builds one): %v", err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	return config
}
