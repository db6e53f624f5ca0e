package cache

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// TestMeasure: measure reports each kind of unexpected loss, and accepts the losses that theory predicts.
func TestMeasure(t *testing.T) {
	acted := time.Now()
	const third, half = keys / 3, keys / 2
	deployment, dns, proxy := variants[0], variants[1], variants[3]
	unavailable := []moment{{acted, 3, 3}, {acted.Add(5 * time.Second), 2, 3}, {acted.Add(6 * time.Second), 3, 3}}
	for name, c := range map[string]struct {
		variant
		theory
		// keys missed once, keys missed twice, errors, keys missed once and then read with their first value
		lost, again, failed, old int
		moments                  []moment
		want                     string
	}{
		"all kept":                    {dns, untouched, 0, 0, 0, 0, nil, ""},
		"a key lost":                  {dns, untouched, 1, 0, 0, 0, nil, "1999 of 2000 keys were kept"},
		"an error":                    {dns, untouched, 0, 0, 1, 0, nil, "1 errors that nothing"},
		"a third lost":                {dns, oneReplaced, third, 0, 0, 0, nil, ""},
		"a third missed twice":        {dns, oneReplaced, 0, third, 0, 0, nil, "1332 misses"},
		"half lost":                   {dns, oneReplaced, half, 0, 0, 0, nil, "1000 of 2000 keys were kept"},
		"half lost by address":        {deployment, oneReplaced, half, 0, 0, 0, nil, ""},
		"errors of fixed addresses":   {dns, oneReplaced, third, 0, 100, 0, unavailable, ""},
		"an error of the proxy":       {proxy, oneReplaced, third, 0, 1, 0, unavailable, "1 errors that nothing"},
		"an error of a deleted pod":   {deployment, oneReplaced, third, 0, 1, 0, unavailable, "1 errors that nothing"},
		"an error of a killed server": {deployment, oneKilled, third, 0, 1, 0, unavailable, ""},
		"old values":                  {dns, oneMore, 0, 0, 0, keys / 5, nil, ""},
		"old values of the proxy":     {proxy, oneReplaced, 0, 0, 0, 1, nil, "1 old values"},
		"a late error of fixed addresses": {dns, oneReplaced, third, 0, 1, 0,
			[]moment{{acted.Add(time.Second), 2, 3}}, "1 errors that nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			samples := make([]sample, 2*keys)
			for i := range samples {
				samples[i].at = acted.Add(time.Duration(i) * time.Second / rate)
			}
			first, last := samples[:keys], samples[keys:]
			for i := range c.lost {
				first[i].outcome, last[i].outcome = missed, refilledValue
			}
			for i := range c.again {
				first[i].outcome, last[i].outcome = missed, missed
			}
			for i := range c.old {
				first[i].outcome, last[i].outcome = missed, keptValue
			}
			for i := range c.failed { // around the fourth second
				first[keys/2+i].outcome, first[keys/2+i].err = failed, errors.New("refused")
			}
			got := strings.Join(measure(samples, c.moments, acted, c.theory, c.variant).wrong(), "\n")
			if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestPublish: publish writes the tables and the plot, and leaves the rest of the page unchanged, also the second time.
func TestPublish(t *testing.T) {
	samples := make([]sample, keys)
	for i := range samples {
		samples[i].at = time.Unix(0, 0).Add(time.Duration(i) * time.Second / rate)
	}
	r := &row{scenario: scenario{name: "operator restart", theory: untouched}}
	for _, v := range variants {
		r.cells = append(r.cells, measure(samples, nil, time.Unix(0, 0), untouched, v))
	}
	page, picture := filepath.Join(t.TempDir(), "results.md"), filepath.Join(t.TempDir(), "plot.svg")
	before, err := os.ReadFile(resultsPage)
	harness.Must(t, err)
	harness.Must(t, os.WriteFile(page, before, 0o644))
	begin := "<!-- written by make cache-e2e CLUSTER=node ARGS=-update -->\n"
	end := "<!-- end of what is written -->\n"
	for range 2 {
		harness.Must(t, publish(page, picture, []*row{r}))
		after, err := os.ReadFile(page)
		harness.Must(t, err)
		head, rest, _ := strings.Cut(string(before), begin)
		_, tail, _ := strings.Cut(rest, end)
		if got, want := string(after), head+begin+"\n"+tables([]*row{r})+"\n"+end+tail; got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	if !strings.Contains(tables([]*row{r}), "| operator restart | 100 | 100 | 100 | 100 | 100 |") {
		t.Error("the tables do not have the kept keys")
	}
	svg, err := os.ReadFile(picture)
	harness.Must(t, err)
	if !strings.Contains(string(svg), ">operator restart</text>") {
		t.Error("the plot does not show the scenario")
	}
}
