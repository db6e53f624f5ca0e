package desired

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/credentials"
	"github.com/example/memcached-operator/internal/testing/manifest"
)

var update = flag.Bool("update", false, "write the golden files")

// TestGolden holds the children of each sample and case: what a new object gets. Objects that exist keep their pod
// template.
func TestGolden(t *testing.T) {
	t.Parallel()
	cases, err := filepath.Glob("testdata/*/memcached.yaml")
	if err != nil {
		t.Fatal(err)
	}
	samples, err := filepath.Glob("../../config/samples/cache_*.yaml")
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
			got := manifests(t, manifest.Load(t, path))
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
				t.Fatalf("%v (make golden writes it)", err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("children differ from %s; see the change with -update and git diff. Got:\n%s", golden, got)
			}
		})
	}
}

// recordedTemplate is the template in a record: the same as in the spec.
var recordedTemplate = regexp.MustCompile(`,"template":{.*}'`)

// manifests renders the children of mc.
func manifests(t *testing.T, mc *v1alpha1.Memcached) []byte {
	t.Helper()
	var out bytes.Buffer
	var secrets Secrets
	if mc.Spec.TLS != nil {
		secrets.TLS = &Secret{Name: mc.Spec.TLS.SecretName, Version: "uid/1",
			Checks: tlsChecks(mc), CAs: []credentials.CA{{ID: "id of a CA", NotAfter: time.Unix(0, 0).UTC()}},
			NotAfter: time.Unix(1, 0).UTC()}
	}
	if mc.Spec.Auth != nil {
		secrets.Auth = &Secret{Name: mc.Spec.Auth.SecretName, Version: "uid/2"}
	}
	options := Options{DefaultImage: "docker.io/library/memcached:default", AgentImage: "example.com/operator:default",
		CanResize: true, Namespace: "operators"}
	servers := []contract.Server{{Name: mc.Name + "-0", Address: "10.0.0.1:11211"},
		{Name: mc.Name + "-1", Address: "[fd00::2]:11211"}}
	published := time.Unix(1767323045, 0)
	list := contract.List{Version: published.Unix(), Nodes: []string{
		"cache-0.cache.default.svc|cache-0.cache.default.svc|11211", "cache-1.cache.default.svc|fd00::1|11211"}}
	current := Current{Secrets: secrets, ProxyServers: contract.Servers{After: servers}, List: list, Published: published}
	for _, config := range NewPlan(mc, Resolve(mc, current, options)).Children {
		b, err := yaml.Marshal(config)
		b = recordedTemplate.ReplaceAll(b, []byte(`,"template":"..."}'`))
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n")
		out.Write(b)
	}
	return out.Bytes()
}
