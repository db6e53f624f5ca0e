// Package apiserver runs a real API server for tests.
package apiserver

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// Start runs an API server until the test ends. root is the path of the repository, crds are files or folders with
// CRDs, relative to root.
func Start(t *testing.T, root string, crds ...string) *rest.Config {
	t.Helper()
	cluster := envtest.Environment{BinaryAssetsDirectory: os.Getenv("KUBEBUILDER_ASSETS"), ErrorIfCRDPathMissing: true}
	if cluster.BinaryAssetsDirectory == "" {
		bin, err := filepath.Abs(filepath.Join(root, "bin"))
		if err != nil {
			t.Fatal(err)
		}
		cluster.BinaryAssetsDirectory = bin
	}
	for _, crd := range crds {
		cluster.CRDDirectoryPaths = append(cluster.CRDDirectoryPaths, filepath.Join(root, crd))
	}
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
