package simulation

import (
	"fmt"
	"regexp"
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
	if table := c.table(""); strings.Count(table, "\n") > 3 {
		fmt.Println(table)
	}
}

// publish writes the table into the page, if the scenarios were tried completely. The others keep their rows.
func (c *counts) publish() error {
	const command = "make crash-points"
	if missing := c.missing(); missing != "" {
		return fmt.Errorf("the table of crash points is not written: %s", missing)
	}
	published, err := figure.Published(results, command)
	if err != nil {
		return err
	}
	return figure.Publish(results, command, c.table(published))
}

// missing names a scenario that was not tried with all disturbances, or failed; empty for none.
func (c *counts) missing() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.requests {
		for _, kind := range kinds {
			if n, ok := c.passed[kind][name]; !ok {
				return fmt.Sprintf("%s was not tried with %s", name, kind)
			} else if n[0] < n[1] {
				return fmt.Sprintf("%s passed with %d of %d %s", name, n[0], n[1], kind)
			}
		}
	}
	return ""
}

// table returns the numbers as a table in Markdown. It takes scenarios that were not tried from the published table.
func (c *counts) table(published string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	lines := []string{"| scenario | requests | " + strings.Join(kinds, " | ") + " |",
		"|---|" + strings.Repeat("--:|", 1+len(kinds))}
	if !strings.Contains(published, lines[0]) {
		published = "" // of other kinds
	}
	sums := make([]int, 1+2*len(kinds))
	for _, s := range scenarios {
		numbers := numbersOf(published, s.name)
		if requests, ok := c.requests[s.name]; ok {
			numbers = []int{requests}
			for _, kind := range kinds {
				n := c.passed[kind][s.name]
				numbers = append(numbers, n[0], n[1])
			}
		}
		if len(numbers) != len(sums) {
			continue // never tried completely
		}
		for i, n := range numbers {
			sums[i] += n
		}
		lines = append(lines, row(s.name, numbers))
	}
	return strings.Join(append(lines, row("**all**", sums), ""), "\n")
}

// row returns a row of the table.
func row(name string, numbers []int) string {
	cells := []string{name, strconv.Itoa(numbers[0])}
	for n := range slices.Chunk(numbers[1:], 2) {
		cells = append(cells, fmt.Sprintf("%d of %d", n[0], n[1]))
	}
	return "| " + strings.Join(cells, " | ") + " |"
}

// numbersOf returns the numbers in the row of a table; none if there is no such row, or not everything was tried.
func numbersOf(table, name string) (numbers []int) {
	_, rest, _ := strings.Cut(table, "\n| "+name+" |")
	cells, _, _ := strings.Cut(rest, "\n")
	for _, text := range regexp.MustCompile(`\d+`).FindAllString(cells, -1) {
		n, _ := strconv.Atoi(text) // only digits
		numbers = append(numbers, n)
	}
	for i := 2; i < len(numbers); i += 2 {
		if numbers[i-1] < numbers[i] {
			return nil
		}
	}
	return numbers
}
