package install

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestFields: with the component for Memcacheds, kustomize changes each field that names another object, and the image.
func TestFields(t *testing.T) {
	t.Parallel()
	const heading = "## Memcacheds in a kustomization"
	text, files := page(t, "kustomize.md", heading, "kustomization.yaml"), map[string]string{
		"sessions.yaml": page(t, "kustomize.md", heading, "sessions.yaml"), "authfile": "user:password\n"}
	build := func(text string) map[string]any {
		t.Helper()
		built, err := kustomization(t, text, files)
		require.NoError(t, err)
		all := objects(t, built)
		require.Contains(t, all, "Memcached /shop-sessions")
		return all["Memcached /shop-sessions"]["spec"].(map[string]any)
	}
	assert.Equal(t, map[string]any{"workload": "StatefulSet", "image": "registry.example.com/library/memcached:1.6.45",
		"auth": map[string]any{"secretName": "shop-passwords"}}, build(text))

	// All other fields, and names that end with a hash.
	files["sessions.yaml"] += `  size: 2
  tls: {secretName: certificate, clientCA: {configMapName: ca}}
  pod: {imagePullSecrets: [{name: pull}, {name: other}], serviceAccountName: account, priorityClassName: priority}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: account}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: priority}
value: 1
`
	text = strings.Replace(text, "  options:\n    disableNameSuffixHash: true\n", `
- {name: certificate, literals: [tls.crt=a]}
- {name: pull, literals: [a=b]}
configMapGenerator:
- {name: ca, literals: [ca.crt=a]}
replicas:
- {name: sessions, count: 7}
`, 1)
	spec := build(text)
	pod, tls := spec["pod"].(map[string]any), spec["tls"].(map[string]any)
	assert.EqualValues(t, 7, spec["size"])
	assert.Equal(t, []any{"shop-account", "shop-priority"}, []any{pod["serviceAccountName"], pod["priorityClassName"]})
	pull := pod["imagePullSecrets"].([]any)
	assert.Equal(t, map[string]any{"name": "other"}, pull[1], "no generated Secret")
	for name, got := range map[string]any{
		"passwords": spec["auth"].(map[string]any)["secretName"], "certificate": tls["secretName"],
		"ca": tls["clientCA"].(map[string]any)["configMapName"], "pull": pull[0].(map[string]any)["name"],
	} {
		assert.Regexp(t, "^shop-"+name+"-[a-z0-9]{10}$", got)
	}

	// A field that the file does not list would keep the name of a Secret as it is.
	fields, err := os.ReadFile("../../config/kustomize/fields.yaml")
	require.NoError(t, err)
	crd, err := os.ReadFile("../../config/crd/bases/cache.example.com_memcacheds.yaml")
	require.NoError(t, err)
	for _, name := range regexp.MustCompile(`(?m)^ +(\w*([sS]ecret|[cC]onfigMap|serviceAccount|priorityClass)(Name|s)):$`).
		FindAllStringSubmatch(string(crd), -1) {
		assert.Regexp(t, `path: spec/\S*\b`+name[1]+`\b`, string(fields))
	}
}
