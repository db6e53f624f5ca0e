package api

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/internal/testing/manifest"
)

// TestDeletionPolicy: with the sample policy, Memcacheds and the CRD can be deleted only with an annotation, one by one
// and all at once, or with their namespace.
func TestDeletionPolicy(t *testing.T) {
	must := func(args ...string) {
		t.Helper()
		if out, err := kubectl(t, args...); err != nil {
			t.Fatalf("kubectl %s: %s", strings.Join(args, " "), out)
		}
	}
	const (
		policy    = root + "/config/samples/deletion_policy.yaml"
		allow     = "cache.example.com/allow-deletion="
		namespace = "--namespace=protected"
		crd       = "crd/memcacheds.cache.example.com"
	)
	// refused waits until a deletion is refused with the name of the object and the annotation.
	refused := func(name string, args ...string) {
		t.Helper()
		args = append([]string{"delete", "--wait=false", namespace}, args...)
		harness.Eventually(t, "be refused: kubectl "+strings.Join(args, " "), time.Minute, func() error {
			out, err := kubectl(t, args...)
			if err == nil || !strings.Contains(out, allow[:len(allow)-1]+`: "true" on `+name) {
				return errors.New(out)
			}
			return nil
		})
	}
	must("apply", "--filename="+policy)
	defer must("delete", "--filename="+policy)
	must("create", "namespace", "protected")
	refused("memcacheds.cache.example.com", crd, "--dry-run=server")
	for _, name := range []string{"one", "two", "three"} {
		file := filepath.Join(t.TempDir(), "memcached.yaml")
		if err := os.WriteFile(file, []byte(manifest.Named(name, "{size: 2}")), 0o600); err != nil {
			t.Fatal(err)
		}
		must("create", namespace, "--filename="+file)
	}
	refused("one", "memcacheds", "--all")
	must("annotate", namespace, "memcached", "one", allow+"false")
	refused("one", "memcached", "one")
	must("annotate", namespace, "--overwrite", "memcached", "one", allow+"true")
	must("delete", namespace, "memcached", "one")
	must("annotate", crd, allow+"true")
	must("delete", "--dry-run=server", crd)
	must("annotate", crd, allow[:len(allow)-1]+"-")

	refused("two", "memcached", "two")
	must("delete", "--wait=false", "namespace", "protected")
	// No controller of namespaces runs. This is its request.
	must("delete", "--raw=/apis/cache.example.com/v1alpha1/namespaces/protected/memcacheds")
	must("wait", namespace, "--for=delete", "--timeout=10s", "memcacheds", "--all")
}
