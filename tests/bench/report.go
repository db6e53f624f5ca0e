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
	docs = "docs"
	page = "performance.md"
	svg  = "performance.svg"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// tables are all figures in Markdown.
func tables(results []*result) string {
	var b strings.Builder
	b.WriteString(costTable(results))
	b.WriteString(processTable(results))
	b.WriteString(restartTable(results))
	b.WriteString(memoryTable(results))
	b.WriteString(requestTable(results))
	return strings.TrimSpace(b.String()) + "\n"
}

// table is one in Markdown, with that many columns aligned left.
func table(title string, left int, head []string, rows [][]string) string {
	if len(rows) == 0 {
		return ""
	}
	var b strings.Builder
	line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	fmt.Fprintf(&b, "### %s\n\n", title)
	line(head)
	rule := slices.Repeat([]string{"---"}, left)
	line(append(rule, slices.Repeat([]string{"--:"}, len(head)-left)...))
	for _, row := range rows {
		line(row)
	}
	return b.String() + "\n"
}

// number has three digits that mean something.
func number(x float64) string {
	switch {
	case x >= 100:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case x >= 10:
		return strings.TrimSuffix(strconv.FormatFloat(x, 'f', 1, 64), ".0")
	}
	text := strings.TrimRight(strconv.FormatFloat(x, 'f', 2, 64), "0")
	return strings.TrimSuffix(text, ".")
}

func costTable(results []*result) string {
	var rows [][]string
	for _, r := range results {
		for _, p := range r.Phases {
			if p.Name == "start" || p.Name == "restart" {
				continue
			}
			each := func(count int) string { return number(float64(count) / float64(r.N)) }
			ratio := "–"
			if p.Ratio > 0 {
				ratio = number(p.Ratio)
			}
			rows = append(rows, []string{p.Name, r.Subject, strconv.Itoa(r.N), number(p.Seconds), ratio, each(p.total()),
				each(p.Writes), each(p.Conflicts), each(p.Apart["events"]), strconv.Itoa(p.Apart["informers"])})
		}
	}
	order(rows)
	return table("Time, and requests an object", 2, []string{"phase", "subject", "objects", "seconds", "/ floor",
		"requests", "writes", "conflicts", "events", "lists, in all"}, rows)
}

func processTable(results []*result) string {
	var rows [][]string
	for _, r := range results {
		for _, p := range r.Phases {
			if r.Subject == theFloor {
				continue
			}
			each := func(x float64) string {
				if p.Name == "start" {
					return "–" // there are none yet
				}
				return number(x / float64(r.N))
			}
			rows = append(rows, []string{p.Name, r.Subject, strconv.Itoa(r.N), each(p.Reconciles), each(p.CPU * 1000),
				each(p.Allocated / kib), number(p.CPU), number(float64(p.RSS) / mib), number(float64(p.Peak) / mib),
				number(p.Heap / mib)})
		}
	}
	order(rows)
	return table("What the process uses", 2, []string{"phase", "subject", "objects", "reconciles an object",
		"CPU ms an object", "allocated KiB an object", "CPU s", "RSS MiB", "peak RSS MiB", "heap MiB"}, rows)
}

func restartTable(results []*result) string {
	var rows [][]string
	for _, r := range results {
		if p := r.phase("restart"); p != nil {
			rows = append(rows, []string{r.Subject, strconv.Itoa(r.N), number(p.Leads), number(p.First), number(p.Steady),
				strconv.Itoa(p.Writes), strconv.Itoa(p.Apart["informers"])})
		}
	}
	return table("Restart: seconds since the process started", 1, []string{"subject", "objects", "it leads",
		"first reconcile", "all looked at", "writes", "lists and watches"}, rows)
}

// memoryTable has what an object adds to the process: to that with no objects, and between the two largest numbers of
// objects. What a pod adds is how much more that is with one more pod an object.
func memoryTable(results []*result) string {
	var rows [][]string
	for i, r := range results {
		idle, start := r.phase("idle"), r.phase("start")
		if idle == nil {
			continue
		}
		row := []string{r.Subject, strconv.Itoa(r.N), number(float64(start.RSS) / mib),
			number((float64(idle.RSS) - float64(start.RSS)) / float64(r.N) / kib), "–", "–"}
		for _, less := range results[:i] {
			if less.Subject != r.Subject || less.N >= r.N || less.phase("scale") == nil || r.phase("scale") == nil {
				continue
			}
			more := func(phase string) float64 {
				return (r.phase(phase).Heap - less.phase(phase).Heap) / float64(r.N-less.N) / kib
			}
			row[4], row[5] = number(more("idle")), number(more("scale")-more("idle"))
		}
		rows = append(rows, row)
	}
	return table("Memory", 1, []string{"subject", "objects", "RSS MiB with none", "RSS KiB an object",
		"heap KiB a further object", "heap KiB a further pod"}, rows)
}

// requestTable has the requests of an object by kind, of the largest number of objects.
func requestTable(results []*result) string {
	most := 0
	for _, r := range results {
		most = max(most, r.N)
	}
	head, phases := []string{"request", "subject"}, []string{"create", "scale", "template", "restart", "delete"}
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
	return table(fmt.Sprintf("Requests an object, of %d objects", most), 2, append(head, phases...), rows)
}

// order puts rows of one phase side by side, in the order of life, and of those the ones with as many objects.
func order(rows [][]string) {
	life := []string{"start", "create", "idle", "scale", "template", "restart", "delete"}
	slices.SortStableFunc(rows, func(a, b []string) int {
		return slices.Index(life, a[0]) - slices.Index(life, b[0])
	})
}

// publish writes the tables of floor and operator into the page, and the plot beside it.
func publish(results []*result) error {
	results = slices.DeleteFunc(slices.Clone(results), func(r *result) bool {
		return r.Subject != theFloor && r.Subject != theOperator
	})
	image, err := chart(results)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(docs, svg), image, 0o644); err != nil {
		return err
	}
	return figure.Publish(filepath.Join(docs, page), "make bench", tables(results))
}

// chart plots what an object costs the operator against the number of objects, one line a phase.
func chart(results []*result) ([]byte, error) {
	phases := []string{"create", "scale", "template", "delete"}
	cost := func(title string, phases []string, of func(*result, *phase) float64) (*plot.Plot, error) {
		p := figure.New(title)
		p.X.Label.Text, p.X.Min, p.Y.Min = "objects", 0, 0
		for i, name := range phases {
			var points plotter.XYs
			for _, r := range results {
				if phase := r.phase(name); phase != nil && r.Subject == theOperator {
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
			if len(phases) > 1 {
				p.Legend.Add(name, line)
			}
		}
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
