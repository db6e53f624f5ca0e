// Package monitoring reads the files of config/prometheus as Prometheus and Grafana do. Its tests need no cluster; in
// those of e2e, below it, a real Prometheus uses the files.
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

// Root is the repository, seen from the tests of this package.
const Root = "../.."

// Alerts are the rules of config/prometheus, in their groups.
func Alerts(root string) ([]monitoringv1.RuleGroup, error) {
	text, err := os.ReadFile(filepath.Join(root, "config/prometheus/rules.yaml"))
	if err != nil {
		return nil, err
	}
	var rule monitoringv1.PrometheusRule
	return rule.Spec.Groups, yaml.UnmarshalStrict(text, &rule)
}

// Panel is a panel of the dashboard that shows something.
type Panel struct {
	*dashboard.Panel
	Queries []*grafana.Dataquery
}

// Dashboard reads the dashboard as strictly as Grafana's own library can.
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
			return nil, nil, fmt.Errorf("panel %q has type %q, which is not checked", *p.Panel.Title, p.Panel.Type)
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

// Expression is that of a query as Grafana sends it: with a range, and with all values of the variables chosen.
func Expression(query, interval string) string {
	return strings.NewReplacer("$__rate_interval", interval, "$namespace", ".+", "$memcached", ".+").Replace(query)
}

// Selectors are what an expression asks for.
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
