package simulation

import (
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Kinds of disturbances, as the heads of the columns of the table.
const (
	faultsTried   = "faults and crashes"
	cachesTried   = "late caches"
	agentsTried   = "silent agents"
	policiesTried = "policies"
)

// counts count what was tried, for each scenario.
type counts struct {
	mu       sync.Mutex
	requests map[string]int
	tried    map[string]map[string]int // by kind and scenario
}

var tried = counts{requests: map[string]int{}, tried: map[string]map[string]int{}}

// scenario notes the number of requests of a scenario in which nothing happens.
func (c *counts) scenario(name string, requests int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests[name] = requests
}

// add counts a disturbance of a scenario.
func (c *counts) add(kind, scenario string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tried[kind] == nil {
		c.tried[kind] = map[string]int{}
	}
	c.tried[kind][scenario]++
}

// table returns the numbers as a table in Markdown.
func (c *counts) table() string {
	kinds := []string{faultsTried, cachesTried, agentsTried, policiesTried}
	lines := []string{"| scenario | requests | " + strings.Join(kinds, " | ") + " |",
		"|---|" + strings.Repeat("--:|", 1+len(kinds))}
	row := func(name string, requests int, number func(kind string) int) {
		cells := []string{name, strconv.Itoa(requests)}
		for _, kind := range kinds {
			cells = append(cells, strconv.Itoa(number(kind)))
		}
		lines = append(lines, "| "+strings.Join(cells, " | ")+" |")
	}
	all, sums := 0, map[string]int{}
	for _, s := range scenarios {
		all += c.requests[s.name]
		row(s.name, c.requests[s.name], func(kind string) int {
			sums[kind] += c.tried[kind][s.name]
			return c.tried[kind][s.name]
		})
	}
	row("**all**", all, func(kind string) int { return sums[kind] })
	return strings.Join(slices.Concat(lines, []string{""}), "\n")
}
