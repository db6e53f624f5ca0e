package docs

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// flagPattern matches the name of a flag in main.go.
const flagPattern = `fs\.\w+Var\([^"]*"([\w-]+)"`

// TestNames: a page names each reason, label, annotation, metric and flag that the code has, and none that it lacks.
func TestNames(t *testing.T) {
	t.Parallel()
	all := files(t)
	first := regexp.MustCompile("`-*(?:kube_)?(\\w[\\w./-]*)")
	for name, tt := range map[string]struct {
		sources, pattern string // of the files that have the names
		page             string // that has each of them
		on, named        string // pages, and what on them has such names in backticks
		others           string // of libraries
	}{
		"reasons": {`^api/v1alpha1/`, `\bReason\w+ += "(\w+)"`, "how-to/troubleshooting.md",
			`troubleshooting\.md$`, `(?m)^\|[^|\n]*\|([^|\n]*)\|[^|\n]*\|[^|\n]*\|$`, ``},
		"events": {`^controllers/\w+\.go$`, `"(\w+)", "(?:Adopt|Apply|Reconcile|Finalize)"`, "",
			``, "[Ee]vents? (?:`\\w+`(?:, | and )?)+", ``},
		"labels and annotations": {`^api/v1alpha1/`, `"(cache\.example\.com/[\w-]+)"`, "reference/labels.md",
			``, `[\x60]cache\.example\.com/[\w-]+`, ``},
		"labels of children": {`^controllers/names/`, `[lL]abel\w+ += "(.*)"`, "reference/labels.md", "", "", ""},
		"metrics of agents": {`^agent/\w+\.go$`, `Name: +"(memcached_agent_\w+)"`, "reference/metrics.md",
			``, "`memcached_agent_\\w+", ``},
		"metrics of proxies": {`^agent/agent_test\.go$`, `# TYPE (memcached_proxy_\w+)`, "",
			``, "`memcached_proxy_\\w+", ``},
		"metrics of objects": {`custom-resource-state\.yaml$`, `- name: (\w+)`, "reference/metrics.md",
			``, "`kube_memcached_\\w+", ``},
		"flags": {`^main\.go$`, flagPattern, "reference/flags.md",
			`flags\.md$`, "`--[\\w-]+", `zap-.*|kubeconfig`},
		"environment": {`^(main\.go|controllers/startup/|config/manager/manager\.yaml)`, `(?:Getenv\("|- name: )([A-Z_]+)\b`,
			"reference/flags.md", `flags\.md$`, "(?m)^\\| (?:`[A-Z_]+`[, ]*)+\\|", ``},
		"tests": {`_test\.go$`, `\nfunc (Test\w+)\(`, "", ``, "`Test[A-Z]\\w+", ``},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			names, onPages := map[string]bool{}, 0
			for file, text := range all {
				if regexp.MustCompile(tt.sources).MatchString(file) {
					for _, match := range regexp.MustCompile(tt.pattern).FindAllSubmatch(text, -1) {
						names[string(match[1])] = true
					}
				}
			}
			require.NotEmpty(t, names, "nothing in %s matches %s", tt.sources, tt.pattern)
			for name := range names {
				named := regexp.MustCompile("`[^`\n]*(?:\\b|kube_)" + regexp.QuoteMeta(name) + "\\b[^`\n]*`")
				assert.Truef(t, tt.page == "" || named.Match(all["docs/"+tt.page]), "docs/%s does not name %s", tt.page, name)
			}
			for file, text := range all {
				if tt.named == "" || !strings.HasSuffix(file, ".md") || !regexp.MustCompile(tt.on).MatchString(file) {
					continue
				}
				for _, match := range regexp.MustCompile(tt.named).FindAllSubmatch(text, -1) {
					for _, name := range first.FindAllSubmatch(match[len(match)-1], -1) {
						onPages++
						assert.Truef(t, names[string(name[1])] || regexp.MustCompile("^("+tt.others+")$").Match(name[1]),
							"%s names %s, %s does not", file, name[1], tt.sources)
					}
				}
			}
			assert.Equal(t, tt.named != "", onPages > 0, "names on pages: %d", onPages)
		})
	}
}
