package monitoring

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDashboard checks what Grafana's library does not check: variables, panel IDs, descriptions and layout.
func TestDashboard(t *testing.T) {
	board, panels, err := Dashboard(Root)
	require.NoError(t, err)
	variables := []string{"__rate_interval", "__all"}
	for _, v := range board.Templating.List {
		variables = append(variables, v.Name)
	}
	text, err := os.ReadFile(filepath.Join(Root, "config/prometheus/dashboard.json"))
	require.NoError(t, err)
	for _, match := range regexp.MustCompile(`\$\{?(\w+)`).FindAllSubmatch(text, -1) {
		assert.Contains(t, variables, string(match[1]))
	}
	require.NotEmpty(t, panels)
	ids, taken := map[uint32]bool{}, map[[2]uint32]string{}
	for _, p := range panels {
		title := *p.Title
		assert.Falsef(t, ids[*p.Id], "%s has the ID of another panel", title)
		ids[*p.Id] = true
		assert.NotEmpty(t, *p.Description, title)
		assert.NotEmpty(t, p.Queries, title)
		assert.LessOrEqual(t, p.GridPos.X+p.GridPos.W, uint32(24), title)
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				assert.Emptyf(t, taken[[2]uint32{x, y}], "%s overlaps another panel", title)
				taken[[2]uint32{x, y}] = title
			}
		}
	}
}

// TestExpressions parses each expression of alerts and dashboard. Each selector must be restricted to Memcacheds,
// because other targets have the same metrics.
func TestExpressions(t *testing.T) {
	var expressions []string
	for _, rule := range alerts(t) {
		expressions = append(expressions, rule.Expr.String())
	}
	_, panels, err := Dashboard(Root)
	require.NoError(t, err)
	for _, p := range panels {
		for _, query := range p.Queries {
			expressions = append(expressions, Expression(query.Expr, "5m"))
		}
	}
	for _, expr := range expressions {
		selectors, err := Selectors(expr)
		require.NoError(t, err)
		require.NotEmpty(t, selectors, expr)
		for _, s := range selectors {
			restricting := []string{"memcached", "memcached_proxy"}
			if !strings.HasPrefix(s.Name, "memcached_") && !strings.HasPrefix(s.Name, "process_") && s.Name != "up" {
				restricting = []string{"memcached", "name", "controller", "type", "phase"}
			}
			labels := make([]string, 0, len(s.LabelMatchers))
			for _, m := range s.LabelMatchers {
				labels = append(labels, m.Name)
			}
			assert.Truef(t, slices.ContainsFunc(restricting, func(name string) bool { return slices.Contains(labels, name) }),
				"in %s, the selector %s is not restricted to Memcacheds", expr, s)
		}
	}
}
