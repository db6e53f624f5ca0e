package cache

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/example/memcached-operator/tests/figure"
)

// row is a scenario with the measurements of its variants: of all, or of the first ones.
type row struct {
	scenario
	cells []*measured
}

func (m *measured) String() string {
	return fmt.Sprintf("%5.1f %% kept (best %.1f), hit ratio %.1f %% (best %.1f), "+
		"%d errors and %d old values in %d requests", 100*m.keptShare(), 100*m.best, 100*m.hitRatio(),
		100*m.bestHitRatio(), m.failures, m.old, m.requests)
}

// tables returns the tables of the page in Markdown.
func tables(rows []*row) string {
	percent := func(share float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", 100*share), ".0") }
	var b strings.Builder
	line := func(cells ...string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	table := func(title string, best func(scenario) string, cell func(*measured) string) {
		fmt.Fprintf(&b, "### %s\n\n", title)
		head, rule := []string{""}, []string{"---"}
		for _, v := range variants {
			head, rule = append(head, v.title), append(rule, "--:")
		}
		if best != nil {
			head, rule = append(head, "best"), append(rule, "--:")
		}
		line(head...)
		line(rule...)
		for _, r := range rows {
			cells := []string{r.name}
			for _, m := range r.cells {
				cells = append(cells, cell(m))
			}
			for len(cells) <= len(variants) {
				cells = append(cells, "–")
			}
			if best != nil {
				cells = append(cells, best(r.scenario))
			}
			line(cells...)
		}
		b.WriteString("\n")
	}
	table("Keys kept, in percent", func(s scenario) string { return percent(s.best) },
		func(m *measured) string { return percent(m.keptShare()) + m.keptReason() })
	table("Hit ratio, and the best for as many requests, in percent", nil,
		func(m *measured) string {
			return percent(m.hitRatio()) + " (" + percent(m.bestHitRatio()) + ")" + m.hitReason()
		})
	table("Errors", func(scenario) string { return "0" },
		func(m *measured) string { return fmt.Sprintf("%d of %d%s", m.failures, m.requests, m.errorsReason()) })
	table("Old values", func(scenario) string { return "0" },
		func(m *measured) string { return fmt.Sprintf("%d of %d", m.old, m.requests) })
	return strings.TrimSpace(b.String()) + "\n"
}

const (
	resultsPage = "results.md"
	hitRatioSVG = "../../docs/explanation/cache-hit-ratio.svg" // of cache.md
)

// publish writes the tables into a page, and the plot into a picture.
func publish(page, picture string, rows []*row) error {
	svg, err := chart(rows)
	if err != nil {
		return err
	}
	if err := os.WriteFile(picture, svg, 0o644); err != nil {
		return err
	}
	return figure.Publish(page, "make cache-e2e CLUSTER=node", tables(rows))
}

// tens returns a tick for every tenth second.
func tens(from, to float64) (ticks []plot.Tick) {
	for s := math.Ceil(from/10) * 10; s <= to; s += 10 {
		ticks = append(ticks, plot.Tick{Value: s, Label: strconv.Itoa(int(s))})
	}
	return ticks
}

// chart plots the hit ratio over time, one plot for each scenario.
func chart(rows []*row) ([]byte, error) {
	const columns = 3
	legend := rows[slices.IndexFunc(rows, func(r *row) bool { return r.best == 1 })].name // its lines leave room
	plots := make([]*plot.Plot, len(rows))
	for i, r := range rows {
		p := figure.New(r.name)
		p.Y.Min, p.Y.Max, p.X.Min = 0, 1, -before.Seconds()
		p.Y.Tick.Marker = figure.Percent
		if i/columns == (len(rows)-1)/columns {
			p.X.Label.Text = "seconds"
		}
		p.X.Tick.Marker = plot.TickerFunc(tens)
		for j, m := range r.cells {
			xys := make(plotter.XYs, len(m.seconds))
			for k, s := range m.seconds {
				xys[k] = plotter.XY{X: s.second, Y: s.ratio}
			}
			line, err := plotter.NewLine(xys)
			if err != nil {
				return nil, err
			}
			line.Color, line.Width = figure.Colors[j], vg.Points(1.2)
			p.Add(line)
			if r.name == legend {
				p.Legend.Add(variants[j].title, line)
			}
		}
		plots[i] = p
	}
	return figure.SVG(plots, columns)
}
