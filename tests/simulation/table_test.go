package simulation

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/example/memcached-operator/tests/figure"
)

// Kinds of disturbances, as the heads of the columns of the table.
const (
	faultsTried   = "faults and crashes"
	cachesTried   = "late caches"
	eventsTried   = "watch events"
	agentsTried   = "silent agents"
	policiesTried = "policies that rewrite"
	refusalsTried = "policies that refuse"
)

// kinds are the columns of the table.
var kinds = []string{faultsTried, cachesTried, eventsTried, agentsTried, policiesTried, refusalsTried}

// counts count what was tried and passed, for each scenario.
type counts struct {
	mu       sync.Mutex
	requests map[string]int               // by scenario
	passed   map[string]map[string][2]int // how many of how many, by kind and scenario
}

var tried = counts{requests: map[string]int{}, passed: map[string]map[string][2]int{}}

// scenario notes the number of requests of a scenario in which nothing happens, and how many disturbances of a kind
// there are.
func (c *counts) scenario(kind, name string, requests, disturbances int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if kind == faultsTried || c.requests[name] == 0 {
		c.requests[name] = requests
	}
	if c.passed[kind] == nil {
		c.passed[kind] = map[string][2]int{}
	}
	c.passed[kind][name] = [2]int{0, disturbances}
}

// pass notes that a disturbance of a scenario was tried and passed.
func (c *counts) pass(kind, scenario string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.passed[kind][scenario]
	c.passed[kind][scenario] = [2]int{n[0] + 1, n[1]}
}

// print prints the table, unless nothing was tried.
func (c *counts) print() {
	if table := c.table(); strings.Count(table, "\n") > 3 {
		fmt.Println(table)
	}
}

// publish writes the table into the docs, if all disturbances of all kinds were tried and passed.
func (c *counts) publish() error {
	if !c.all() {
		return errors.New("the table of crash points is written only by a run that tries all of them")
	}
	return figure.Publish(reliability, "make crash-points", c.table())
}

// all reports whether all disturbances of all kinds were tried and passed.
func (c *counts) all() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, kind := range kinds {
		for _, s := range scenarios {
			if n, ok := c.passed[kind][s.name]; !ok || n[0] < n[1] {
				return false
			}
		}
	}
	return true
}

// table returns the numbers as a table in Markdown.
func (c *counts) table() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	lines := []string{"| scenario | requests | " + strings.Join(kinds, " | ") + " |",
		"|---|" + strings.Repeat("--:|", 1+len(kinds))}
	row := func(name string, requests int, number func(kind string) [2]int) {
		cells := []string{name, strconv.Itoa(requests)}
		for _, kind := range kinds {
			n := number(kind)
			cells = append(cells, fmt.Sprintf("%d of %d", n[0], n[1]))
		}
		lines = append(lines, "| "+strings.Join(cells, " | ")+" |")
	}
	all, sums := 0, map[string][2]int{}
	for _, s := range scenarios {
		if _, ok := c.requests[s.name]; !ok {
			continue // not tried
		}
		all += c.requests[s.name]
		row(s.name, c.requests[s.name], func(kind string) [2]int {
			n := c.passed[kind][s.name]
			sums[kind] = [2]int{sums[kind][0] + n[0], sums[kind][1] + n[1]}
			return n
		})
	}
	row("**all**", all, func(kind string) [2]int { return sums[kind] })
	return strings.Join(slices.Concat(lines, []string{""}), "\n")
}
