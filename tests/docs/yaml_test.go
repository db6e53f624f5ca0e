package docs

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/internal/testing/apiserver"
	"github.com/example/memcached-operator/tests/docs/blocks"
)

// others begin the blocks of YAML that are for other programs.
var others = []string{
	"chunk_store_config:", "blocks_storage:", "cache:", "type: MEMCACHED", "tls_enabled:", // Loki and others
	"apiVersion: kustomize.config.k8s.io", "scrape_configs:", // tests/monitoring reads them
	"apiVersion: v2\n",                          // Helm's Chart.yaml
	"registry:",                                 // tests/install uses these values of the chart
	"spec:\n  include:", "spec:\n  components:", // parts of objects of Flux
	"validations:", // an addition to config/samples/secrets_policy.yaml
}

// comments are the lines of a block before the first field, such as the name of a file.
var comments = regexp.MustCompile(`^(#.*\n)+`)

// TestYAML: the API server accepts each Memcached on the pages, also one of which a page shows only the spec or some
// fields of it. A whole one names the workload, as docs/explanation/addresses.md advises.
func TestYAML(t *testing.T) {
	t.Parallel()
	c, err := client.New(apiserver.Start(t, root, "config/crd/bases"), client.Options{})
	require.NoError(t, err)
	c = client.WithFieldValidation(c, metav1.FieldValidationStrict)
	pages, err := blocks.Pages(root)
	require.NoError(t, err)
	accepted, used := 0, map[int]bool{}
	for _, page := range pages {
		all, err := blocks.Read(root, page)
		require.NoError(t, err)
		for _, block := range all {
			if block.Language != "yaml" {
				continue
			}
			text := comments.ReplaceAllString(block.Text, "")
			if i := slices.IndexFunc(others, func(s string) bool { return strings.HasPrefix(text, s) }); i >= 0 {
				used[i] = true
				continue
			}
			for document := range strings.SplitSeq(block.Text, "\n---\n") {
				object := &unstructured.Unstructured{}
				require.NoErrorf(t, yaml.UnmarshalStrict([]byte(document), &object.Object), "%s:%d", page, block.Line)
				_, hasWorkload, _ := unstructured.NestedString(object.Object, "spec", "workload")
				assert.Truef(t, hasWorkload || object.GetKind() != "Memcached", "%s:%d names no workload", page, block.Line)
				complete(object, fmt.Sprintf("block-%d", block.Line))
				if err := c.Create(t.Context(), object, client.DryRunAll); err != nil {
					t.Errorf("%s:%d: %v", page, block.Line, err)
				}
				accepted++
			}
		}
	}
	assert.Len(t, used, len(others), "a block of others no longer exists")
	t.Logf("the API server accepts %d objects", accepted)
}

// complete makes a Memcached of a spec, or of some fields of one, and puts each object into the namespace default.
func complete(object *unstructured.Unstructured, name string) {
	if object.GetKind() == "" {
		spec, isSpec := object.Object["spec"]
		if !isSpec {
			spec = object.Object
			if _, ok := object.Object["proxy"]; ok {
				object.Object["workload"] = "StatefulSet"
			}
		}
		object.Object = map[string]any{"apiVersion": "cache.example.com/v1alpha1", "kind": "Memcached", "spec": spec}
	}
	if object.GetName() == "" {
		object.SetName(name)
	}
	object.SetNamespace("default")
}
