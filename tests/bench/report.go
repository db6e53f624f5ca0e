package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/example/memcached-operator/tests/figure"
)

const (
	page    = "tests/bench/results.md"
	picture = "docs/explanation/performance.svg" // of performance.md
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// life lists the phases in their order.
var life = []string{"start", "create", "idle", "scale", "template", "restart", "delete"}

// tables returns all figures as Markdown tables.
func tables(results []*result) string {
	var operators []*result
	for _, r := range results {
		if r.Subject != floorName {
			operators = append(operators, r)
		}
	}
	return strings.TrimSpace(
		table("Time, and requests an object", []string{"phase", "subject", "objects", "seconds", "/ floor", "requests",
			"writes", "conflicts", "events", "lists and watches, in all"},
			rows(results, life[1:], func(_ *result, p *phase, n float64) []string {
				ratio := "–"
				if p.Ratio > 0 {
					ratio = number(p.Ratio)
				}
				return []string{number(p.Seconds), ratio, number(float64(p.total()) / n),
					number(float64(p.Writes) / n), number(float64(p.Conflicts) / n), number(float64(p.Apart["events"]) / n),
					strconv.Itoa(p.Apart["informers"])}
			}))+
			table("What the process uses", []string{"phase", "subject", "objects", "reconciles an object",
				"CPU ms an object", "allocated KiB an object", "CPU s", "RSS MiB", "peak RSS MiB", "heap MiB"},
				rows(operators, life, func(_ *result, p *phase, n float64) []string {
					return []string{number(p.Reconciles / n), number(p.CPU * 1000 / n), number(p.Allocated / n / kib),
						number(p.CPU), number(float64(p.RSS) / mib), number(float64(p.Peak) / mib), number(p.Heap / mib)}
				}))+
			requestTable(results)) + "\n"
}

// rows returns the rows of a table, sorted by phase: phase, subject, number of objects and the cells.
func rows(results []*result, phases []string, cells func(*result, *phase, float64) []string) (rows [][]string) {
	for _, name := range phases {
		for _, r := range results {
			if p := r.phase(name); p != nil {
				rows = append(rows, append([]string{name, r.Subject, strconv.Itoa(r.N)}, cells(r, p, float64(r.N))...))
			}
		}
	}
	return rows
}

// table returns a Markdown table; its first two columns are text.
func table(title string, head []string, rows [][]string) string {
	rule := append([]string{"---", "---"}, slices.Repeat([]string{"--:"}, len(head)-2)...)
	lines := []string{"### " + title + "\n"}
	for _, row := range append([][]string{head, rule}, rows...) {
		lines = append(lines, "| "+strings.Join(row, " | ")+" |")
	}
	return strings.Join(lines, "\n") + "\n\n"
}

// number formats a number with about three significant digits.
func number(x float64) string {
	if x > 0 && x < 0.005 {
		return "<0.01"
	}
	digits := 2
	if x >= 10 {
		digits = 1
	}
	if x >= 100 {
		digits = 0
	}
	text := strconv.FormatFloat(x, 'f', digits, 64)
	if digits > 0 {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}

// requestTable returns the requests per object by kind, for the largest number of objects.
func requestTable(results []*result) string {
	most := 0
	for _, r := range results {
		most = max(most, r.N)
	}
	phases := []string{"create", "scale", "template", "restart", "delete"}
	var rows [][]string
	for _, r := range results {
		if r.N != most {
			continue
		}
		kinds := map[string][]string{}
		for i, name := range phases {
			p := r.phase(name)
			if p == nil {
				continue
			}
			for kind, count := range p.Requests {
				if kinds[kind] == nil {
					kinds[kind] = slices.Repeat([]string{"0"}, len(phases))
				}
				kinds[kind][i] = number(float64(count) / float64(r.N))
			}
		}
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			rows = append(rows, append([]string{kind, r.Subject}, kinds[kind]...))
		}
	}
	return table(fmt.Sprintf("Requests an object, of %d objects", most), append([]string{"request", "subject"}, phases...),
		rows)
}

// publish writes the tables of floor and operator into their page, and the plot into docs/.
func publish(results []*result) error {
	results = slices.DeleteFunc(slices.Clone(results), func(r *result) bool {
		return r.Subject != floorName && r.Subject != operatorName
	})
	image, err := chart(results)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.FromSlash(picture), image, 0o644); err != nil {
		return err
	}
	return figure.Publish(filepath.FromSlash(page), "make bench", tables(results))
}

// chart plots the operator's cost per object against the number of objects, one line for each phase.
func chart(results []*result) ([]byte, error) {
	phases := []string{"create", "scale", "template", "delete"}
	cost := func(title string, phases []string, of func(*result, *phase) float64) (*plot.Plot, error) {
		p := figure.New(title)
		p.X.Label.Text, p.X.Min, p.Y.Min = "objects", 0, 0
		for i, name := range phases {
			var points plotter.XYs
			for _, r := range results {
				if phase := r.phase(name); phase != nil && r.Subject == operatorName {
					points = append(points, plotter.XY{X: float64(r.N), Y: of(r, phase) / float64(r.N)})
				}
			}
			line, dots, err := plotter.NewLinePoints(points)
			if err != nil {
				return nil, err
			}
			line.Color, line.Width = figure.Colors[i], vg.Points(1.2)
			dots.Color, dots.Shape, dots.Radius = figure.Colors[i], draw.CircleGlyph{}, vg.Points(2)
			p.Add(line, dots)
			p.Legend.Add(name, line)
		}
		p.Legend.Top, p.Y.Max = true, 1.6*p.Y.Max // room for the legend above the lines
		return p, nil
	}
	requests, err1 := cost("requests an object", phases, func(_ *result, p *phase) float64 { return float64(p.total()) })
	cpu, err2 := cost("CPU, ms an object", phases, func(_ *result, p *phase) float64 { return p.CPU * 1000 })
	memory, err3 := cost("RSS, KiB an object", []string{"idle"}, func(r *result, p *phase) float64 {
		return (float64(p.RSS) - float64(r.phase("start").RSS)) / kib
	})
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return nil, err
		}
	}
	return figure.SVG([]*plot.Plot{requests, cpu, memory}, 3)
}
