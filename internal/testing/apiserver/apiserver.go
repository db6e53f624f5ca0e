// Package apiserver runs a real API server for tests.
package apiserver

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// Programs returns the folder with the programs of an API server: KUBEBUILDER_ASSETS or, by default, bin/ of the
// repository. If nobody has built them there, it returns an error that names the make target.
func Programs() (folder string, err error) {
	if folder = os.Getenv("KUBEBUILDER_ASSETS"); folder != "" {
		return folder, nil
	}
	root, err := harness.Repository()
	if err != nil {
		return "", err
	}
	folder = filepath.Join(root, "bin")
	for _, name := range []string{"kube-apiserver", "etcd", "kubectl"} {
		if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
			return "", fmt.Errorf("needs an API server: make tools-kubernetes tools-etcd builds it (%w)", err)
		}
	}
	return folder, nil
}

// Need returns what Programs does, or skips the test.
func Need(t testing.TB) (folder string) {
	t.Helper()
	folder, err := Programs()
	if err != nil {
		t.Skip(err)
	}
	return folder
}

// New returns an API server that is not started. root is the path of the repository, crds are files or folders with
// CRDs, relative to root. Without the programs, it does not start: see Need.
func New(root string, crds ...string) *envtest.Environment {
	// Programs that live for a minute need not collect their garbage as often as those that live for days.
	if os.Getenv("GOGC") == "" {
		_ = os.Setenv("GOGC", "400")
	}
	programs, _ := Programs()
	cluster := &envtest.Environment{BinaryAssetsDirectory: programs, ErrorIfCRDPathMissing: true}
	for _, crd := range crds {
		cluster.CRDDirectoryPaths = append(cluster.CRDDirectoryPaths, filepath.Join(root, crd))
	}
	return cluster
}

// Start runs an API server until the test ends. See New for the parameters.
func Start(t *testing.T, root string, crds ...string) *rest.Config {
	t.Helper()
	Need(t)
	cluster := New(root, crds...)
	config, err := cluster.Start()
	if err != nil {
		t.Fatalf("start an API server: %v", err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	return config
}
