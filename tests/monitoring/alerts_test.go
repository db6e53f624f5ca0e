package monitoring

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/internal/testing/harness"
)

func alerts(t *testing.T) map[string]monitoringv1.Rule {
	t.Helper()
	groups, err := Alerts(Root)
	require.NoError(t, err)
	byName := map[string]monitoringv1.Rule{}
	for _, g := range groups {
		for _, rule := range g.Rules {
			require.NotEmpty(t, rule.Alert)
			require.NotContains(t, byName, rule.Alert)
			byName[rule.Alert] = rule
		}
	}
	require.NotEmpty(t, byName)
	return byName
}

// TestAlerts runs promtool's unit tests, which must cover every alert: it stays silent while all is well, and it fires.
func TestAlerts(t *testing.T) {
	groups, err := Alerts(Root)
	require.NoError(t, err)
	rules, err := yaml.Marshal(monitoringv1.PrometheusRuleSpec{Groups: groups})
	require.NoError(t, err)
	tests, err := os.ReadFile("alerts.yaml")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rules.yaml"), rules, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "alerts.yaml"), tests, 0o644))
	promtool, err := filepath.Abs(filepath.Join(Root, "bin", "promtool"))
	require.NoError(t, err)
	for _, args := range [][]string{{"check", "rules", "--lint-fatal", "rules.yaml"}, {"test", "rules", "alerts.yaml"}} {
		_, err = harness.Command{Dir: dir}.Run(t.Context(), promtool, args...)
		require.NoError(t, err)
	}

	var file struct {
		Tests []struct {
			Name  string
			Rules []struct {
				Alert    string `json:"alertname"`
				Expected []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		}
	}
	require.NoError(t, yaml.Unmarshal(tests, &file))
	silent, fires := map[string]bool{}, map[string]bool{}
	for i, test := range file.Tests {
		for _, rule := range test.Rules {
			if i == 0 {
				silent[rule.Alert] = true
				assert.Emptyf(t, rule.Expected, "%s: %s", test.Name, rule.Alert)
			} else if len(rule.Expected) > 0 {
				fires[rule.Alert] = true
			}
		}
	}
	for name := range alerts(t) {
		assert.Truef(t, silent[name], "no test shows that %s is silent while all is well", name)
		assert.Truef(t, fires[name], "no test shows that %s fires", name)
	}
}

// TestRunbooks: docs/how-to/monitoring.md describes exactly the existing alerts.
func TestRunbooks(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(Root, "docs/how-to/monitoring.md"))
	require.NoError(t, err)
	var headings []string
	for _, match := range regexp.MustCompile(`(?m)^### (Memcached\w+)$`).FindAllSubmatch(page, -1) {
		headings = append(headings, string(match[1]))
	}
	all := alerts(t)
	assert.ElementsMatch(t, slices.Collect(maps.Keys(all)), headings)
	for name, rule := range all {
		assert.Contains(t, []string{"warning", "critical"}, rule.Labels["severity"], name)
		assert.NotEmpty(t, rule.Annotations["summary"], name)
		assert.NotEmpty(t, rule.Annotations["description"], name)
		assert.Equal(t, "https://github.com/example/memcached-operator/blob/main/docs/how-to/monitoring.md#"+
			strings.ToLower(name), rule.Annotations["runbook_url"])
	}
	for _, heading := range headings {
		_, rest, _ := strings.Cut(string(page), "### "+heading+"\n")
		text, _, _ := strings.Cut(rest, "\n#")
		assert.Containsf(t, text, "*Remedy.*", "docs/how-to/monitoring.md has no remedy for %s", heading)
	}
}
