// Package monitoring reads the files of config/prometheus as Prometheus and Grafana do. Its tests need no cluster. In
// the tests of its package e2e, a real Prometheus uses the files.
package monitoring

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	grafana "github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

// Root is the path of the repository from this package.
const Root = "../.."

// Alerts returns the groups of rules in config/prometheus.
func Alerts(root string) ([]monitoringv1.RuleGroup, error) {
	text, err := os.ReadFile(filepath.Join(root, "config/prometheus/rules.yaml"))
	if err != nil {
		return nil, err
	}
	var rule monitoringv1.PrometheusRule
	return rule.Spec.Groups, yaml.UnmarshalStrict(text, &rule)
}

// Panel is a panel of the dashboard with its queries.
type Panel struct {
	*dashboard.Panel
	Queries []*grafana.Dataquery
}

// Dashboard decodes the dashboard as strictly as Grafana's library allows.
func Dashboard(root string) (*dashboard.Dashboard, []Panel, error) {
	text, err := os.ReadFile(filepath.Join(root, "config/prometheus/dashboard.json"))
	if err != nil {
		return nil, nil, err
	}
	runtime := cog.NewRuntime()
	runtime.RegisterPanelcfgVariant(stat.VariantConfig())
	runtime.RegisterPanelcfgVariant(timeseries.VariantConfig())
	runtime.RegisterDataqueryVariant(grafana.VariantConfig())
	board := &dashboard.Dashboard{}
	if err := board.UnmarshalJSONStrict(text); err != nil {
		return nil, nil, err
	}
	var panels []Panel
	for _, p := range board.Panels {
		if p.Panel == nil {
			continue
		}
		if _, ok := cog.ConfigForPanelcfgVariant(p.Panel.Type); !ok {
			return nil, nil, fmt.Errorf("panel %q has the type %q, which no test checks", *p.Panel.Title, p.Panel.Type)
		}
		panel := Panel{Panel: p.Panel}
		for _, target := range p.Panel.Targets {
			b, err := json.Marshal(target)
			if err != nil {
				return nil, nil, err
			}
			query := &grafana.Dataquery{}
			if err := query.UnmarshalJSONStrict(b); err != nil {
				return nil, nil, fmt.Errorf("panel %q: %w", *p.Panel.Title, err)
			}
			panel.Queries = append(panel.Queries, query)
		}
		panels = append(panels, panel)
	}
	return board, panels, board.Validate()
}

// Expression returns the expression of a query as Grafana sends it, with this range and with all values of the
// variables.
func Expression(query, interval string) string {
	return strings.NewReplacer("$__rate_interval", interval, "$namespace", ".+", "$memcached", ".+").Replace(query)
}

// Selectors returns the selectors in an expression.
func Selectors(expr string) (list []*parser.VectorSelector, err error) {
	parsed, err := parser.ParseExpr(expr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", expr, err)
	}
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			list = append(list, selector)
		}
		return nil
	})
	return list, nil
}
