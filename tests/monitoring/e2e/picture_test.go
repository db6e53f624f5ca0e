package e2e

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/example/memcached-operator/tests/figure"
	"github.com/example/memcached-operator/tests/monitoring"
)

// withLegend is the panel with room for the legend.
const withLegend = "Connections, as share of the limit"

// drawn are the titles of the panels in the figure.
var drawn = []string{
	"Hit ratio", "Requests by server", "Memory used", withLegend, "Refused connections", "Age of what is evicted last",
}

// documented compares the agent's metrics with those in docs/reference/metrics.md.
func (p prometheus) documented() {
	p.Helper()
	page, err := os.ReadFile(filepath.Join(p.root, "docs/reference/metrics.md"))
	if err != nil {
		p.Fatal(err)
	}
	var want []string
	for _, match := range regexp.MustCompile("(?m)^\\| `(memcached_(?:agent|proxy)_\\w+)`").FindAllSubmatch(page, -1) {
		want = append(want, string(match[1]))
	}
	// The exporter has other metrics of proxies.
	ours := []string{`{__name__=~"memcached_(agent_.+|proxy_(requests_total|buffer_.+|server_.+))"}`}
	values, _, err := p.LabelValues(p.Context(), model.MetricNameLabel, ours, time.Now().Add(-time.Hour), time.Now())
	if err != nil {
		p.Fatal(err)
	}
	got := make([]string, len(values))
	for i, v := range values {
		got[i] = string(v)
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		p.Errorf("the agent has the metrics %v, docs/reference/metrics.md has %v", got, want)
	}
}

// draw draws panels of the dashboard into docs/how-to/monitoring.svg, as Grafana would show them for this period, and
// marks the times of the faults.
func (p prometheus) draw(begin, end time.Time, faults ...time.Time) error {
	_, panels, err := monitoring.Dashboard(p.root)
	if err != nil {
		return err
	}
	var plots []*plot.Plot
	for _, title := range drawn {
		i := slices.IndexFunc(panels, func(panel monitoring.Panel) bool {
			return *panel.Title == title && panel.Type == "timeseries"
		})
		if i < 0 {
			return fmt.Errorf("the dashboard has no panel %q", title)
		}
		plotted, err := p.plot(panels[i], begin, end)
		if err != nil {
			return err
		}
		for _, fault := range faults {
			at := fault.Sub(begin).Seconds()
			line, err := plotter.NewLine(plotter.XYs{{X: at, Y: 0}, {X: at, Y: plotted.Y.Max}})
			if err != nil {
				return err
			}
			line.Color, line.Width, line.Dashes = color.Gray{0x80}, vg.Points(0.7), []vg.Length{vg.Points(3), vg.Points(2)}
			plotted.Add(line)
		}
		plots = append(plots, plotted)
	}
	svg, err := figure.SVG(plots, 3)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(p.root, "docs/how-to/monitoring.svg"), svg, 0o644)
}

// plot plots a panel for the plain Memcached.
func (p prometheus) plot(panel monitoring.Panel, begin, end time.Time) (*plot.Plot, error) {
	drawing := figure.New(*panel.Title)
	percent := *panel.FieldConfig.Defaults.Unit == "percentunit"
	if percent {
		drawing.Y.Tick.Marker = figure.Percent
	}
	drawing.X.Label.Text = "seconds"
	drawing.Legend.Top, drawing.Legend.Left = true, true
	colors := figure.Colors
	for _, query := range panel.Queries {
		expr := strings.ReplaceAll(monitoring.Expression(query.Expr, rateInterval), `memcached=~".+"`,
			fmt.Sprintf("memcached=%q,namespace=%q", plain, p.ns))
		value, _, err := p.QueryRange(p.Context(), expr, promv1.Range{Start: begin, End: end, Step: time.Second})
		if err != nil {
			return nil, err
		}
		matrix, _ := value.(model.Matrix)
		for _, stream := range matrix {
			if len(colors) == 0 {
				break
			}
			for i, points := range unbroken(stream.Values, begin) {
				line, err := plotter.NewLine(points)
				if err != nil {
					return nil, err
				}
				line.Color, line.Width = colors[0], vg.Points(1.2)
				drawing.Add(line)
				if i == 0 && *panel.Title == withLegend {
					drawing.Legend.Add(legend(*query.LegendFormat, stream.Metric), line)
				}
			}
			colors = colors[1:]
		}
	}
	drawing.X.Min, drawing.X.Max = 0, end.Sub(begin).Seconds()
	drawing.Y.Min, drawing.Y.Max = 0, 1.1*drawing.Y.Max
	if percent {
		drawing.Y.Max = 1
	}
	return drawing, nil
}

// unbroken returns the uninterrupted parts of a series. A part ends when the server does not answer.
func unbroken(values []model.SamplePair, begin time.Time) (stretches []plotter.XYs) {
	last := math.Inf(-1)
	for _, v := range values {
		if math.IsNaN(float64(v.Value)) {
			continue
		}
		at := v.Timestamp.Time().Sub(begin).Seconds()
		if at > last+1.5 {
			stretches = append(stretches, nil)
		}
		last = at
		stretches[len(stretches)-1] = append(stretches[len(stretches)-1], plotter.XY{X: at, Y: float64(v.Value)})
	}
	return stretches
}

// legend returns the legend of a series, formatted like Grafana's.
func legend(format string, labels model.Metric) string {
	return regexp.MustCompile(`{{(\w+)}}`).ReplaceAllStringFunc(format, func(name string) string {
		return string(labels[model.LabelName(strings.Trim(name, "{}"))])
	})
}
