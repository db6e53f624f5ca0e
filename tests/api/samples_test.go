package api

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// TestSamples: the API server accepts each sample, without an operator. All samples but that of the tutorials name the
// workload, as docs/explanation/addresses.md advises.
func TestSamples(t *testing.T) {
	files, err := filepath.Glob(root + "/config/samples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, root+"/config/gitops/caches/memcached.yaml")
	found := 0
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		documents := yamlutil.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
		for {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			var meta struct {
				Kind string
				Spec struct{ Workload string }
			}
			if err := yaml.Unmarshal(document, &meta); err != nil {
				t.Fatal(err)
			}
			if meta.Kind != "Memcached" { // a Kustomization, or an object of cert-manager
				continue
			}
			found++
			t.Run(filepath.Base(file), func(t *testing.T) {
				if _, err := dryRun(t.Context(), string(document)); err != nil {
					t.Error(err)
				}
				if meta.Spec.Workload == "" && filepath.Base(file) != tutorial {
					t.Error("the sample names no workload")
				}
			})
		}
	}
	if found < 3 {
		t.Errorf("want at least 3 samples of a Memcached, found %d", found)
	}
}

const tutorial = "cache_v1alpha1_memcached.yaml"

// TestTutorial pins the sample that all operator-sdk tutorials use: it must work unchanged.
func TestTutorial(t *testing.T) {
	got, err := os.ReadFile(root + "/config/samples/" + tutorial)
	if err != nil {
		t.Fatal(err)
	}
	const want = `apiVersion: cache.example.com/v1alpha1
kind: Memcached
metadata:
  name: memcached-sample
spec:
  size: 3
  containerPort: 11211
`
	equal(t, unmarshal(t, string(got)), want)
}
