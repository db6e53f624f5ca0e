package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestComplete: pages name each reason, label, annotation, metric and flag that the code has.
func TestComplete(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		sources string // in which what the pattern finds must be on the pages
		pattern string
		pages   []string
	}{
		"reasons": {"api/v1alpha1/*.go", `\bReason\w+ += "(\w+)"`,
			[]string{"how-to/troubleshooting.md"}},
		"labels and annotations": {"api/v1alpha1/*.go", `"(cache\.example\.com/[\w-]+)"`, []string{"reference/labels.md"}},
		"labels of children":     {"controllers/names/*.go", `[lL]abel\w+ += "(.*)"`, []string{"reference/labels.md"}},
		"metrics of the agent":   {"agent/*.go", `Name: +"(memcached_agent_\w+)"`, []string{"reference/metrics.md"}},
		"other metrics": {"config/kube-state-metrics/custom-resource-state.yaml", `- name: (\w+)`,
			[]string{"reference/metrics.md"}},
		"flags":       {"main.go", `fs\.\w+Var\([^"]*"([\w-]+)"`, []string{"reference/flags.md"}},
		"environment": {"main.go", `Getenv\("(\w+)"\)`, []string{"reference/flags.md"}},
		"environment of the manifest": {"config/manager/manager.yaml", `- name: ([A-Z_]+)\n`,
			[]string{"reference/flags.md"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sources, err := filepath.Glob(filepath.Join(root, tt.sources))
			require.NoError(t, err)
			found := 0
			for _, page := range tt.pages {
				text, err := os.ReadFile(filepath.Join(root, "docs", page))
				require.NoError(t, err)
				for _, source := range sources {
					code, err := os.ReadFile(source)
					require.NoError(t, err)
					for _, match := range regexp.MustCompile(tt.pattern).FindAllSubmatch(code, -1) {
						found++
						named := regexp.MustCompile("`[^`\n]*(?:\\b|kube_)" + regexp.QuoteMeta(string(match[1])) + "\\b[^`\n]*`")
						assert.Truef(t, named.Match(text), "%s names %s, docs/%s does not", source, match[1], page)
					}
				}
			}
			assert.NotZero(t, found, "nothing in %s matches %s", tt.sources, tt.pattern)
		})
	}
}
