// Package chaos breaks the operator, the control plane and the children of Memcacheds at random, for as long as asked,
// and tests that all of it recovers and that no status is wrong meanwhile.
package chaos

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/tests/cluster"
	"github.com/example/memcached-operator/tests/figure"
)

var (
	lasts  = flag.Duration("lasts", 10*time.Minute, "how long the faults go on")
	seed   = flag.Uint64("seed", 1, "the seed of the faults")
	many   = flag.Int("many", 1000, "the number of Memcacheds of TestMany")
	update = flag.Bool("update", false, "write the numbers into results.md")
)

const page = "results.md"

// rounds take turns. Each begins with everything as desired, lets some faults happen, and ends when everything is as
// desired again.
var rounds = []struct {
	faults []fault
	// begin is called in the beginning, and returns a check for the end.
	begin func(w *world) (check func())
}{
	{outages, (*world).keepServers},
	{outages, (*world).replaceServers},
	{slices.Concat(outages, changes, changes), func(*world) func() { return func() {} }}, // more changes than outages
}

// TestChaos lets faults happen, up to three at a time, until each that it tried has happened. After them, every
// Memcached becomes Ready, and none is Ready too early. When all Memcacheds are deleted, nothing is left.
func TestChaos(t *testing.T) {
	all := specs
	if cluster.RealPods(os.Getenv("CLUSTER")) {
		all = append(all, withProxies)
	}
	w := newWorld(t, all)
	w.createMissing()
	ready := w.converge()
	w.measureCalm()
	start, count := time.Now(), 0
	slowest := time.Duration(0)
	for ; time.Since(start) < *lasts || len(w.failed) > 0; count++ {
		round := rounds[count%len(rounds)]
		sampler := w.watch()
		check := round.begin(w)
		most := 3
		if time.Since(start) >= *lasts { // only those that have yet to happen
			most = 1
		}
		w.disturb(round.faults, most)
		began := time.Now()
		w.lead()
		w.createMissing()
		ready += w.converge()
		slowest = max(slowest, time.Since(began))
		check()
		w.judge(sampler)
		w.measure()
	}
	minutes := time.Since(start).Minutes()
	require.True(t, count < 5 || w.judged > 0, "no round without lost events")
	require.True(t, w.deaths < 5 || len(w.failovers) > 0, "no standby has taken over after %d deaths", w.deaths)
	require.NoError(t, w.DeleteAllOf(w.ctx, &v1alpha1.Memcached{}, client.InNamespace(w.ns)))
	w.eventually("delete everything", w.empty)

	total, failover := 0, "–"
	if len(w.failovers) > 0 {
		failover = fmt.Sprintf("%.0f s", slices.Max(w.failovers).Seconds())
	}
	var faults []string
	for _, f := range slices.Concat(outages, changes) {
		faults = append(faults, fmt.Sprintf("| %s | %d |", f.name, w.happened[f.name]))
		total += w.happened[f.name]
	}
	w.publish("make chaos CLUSTER="+w.cluster.Kind, slices.Concat([]string{
		fmt.Sprintf("%s, on a %s cluster, seed %d: %.0f minutes, %d faults in %d rounds.", time.Now().Format(time.DateOnly),
			w.cluster.Kind, *seed, minutes, total, count), "",
		"| | |", "|---|--:|",
		fmt.Sprintf("| times that a Memcached became Ready | %d |", ready),
		fmt.Sprintf("| wrong statements of a status after the faults, and in %d rounds also during them | 0 |", w.judged),
		fmt.Sprintf("| servers replaced or restarted in %d rounds in which only operator and control plane broke | 0 |",
			(count+len(rounds)-1)/len(rounds)),
		fmt.Sprintf("| servers replaced for a new spec meanwhile | %d |", w.replaced),
		"| of these, replaced twice, or beyond `rollout.maxUnavailable` | 0 |",
		"| objects left after the deletion of all Memcacheds | 0 |",
		fmt.Sprintf("| longest time until a standby led, after %d of %d deaths of a leader | %s |", len(w.failovers),
			w.deaths, failover),
		fmt.Sprintf("| longest time from the end of faults until everything was as desired | %.0f s |", slowest.Seconds()),
		fmt.Sprintf("| requests of one leader answered with 429 | %.0f |", w.rejected),
		fmt.Sprintf("| goroutines and memory of the leader before the faults | %s |", w.calm),
		fmt.Sprintf("| the same after a round, at most | %s |", w.most)}, faults))
}

// TestMany creates, changes and deletes many Memcacheds at once, and kills the leader at the beginning of each.
func TestMany(t *testing.T) {
	all := make([]string, *many)
	for i := range all {
		all[i] = []string{"{size: 1}", "{size: 1, workload: StatefulSet}"}[i%2]
	}
	w := newWorld(t, all)
	if w.cluster.Kind != "kwok" {
		t.Skip("one node has no room for so many servers")
	}
	var took []string
	for _, part := range []struct {
		name string
		do   func()
	}{
		{"created", w.createMissing},
		{"changed", func() {
			for i := range all {
				require.NoError(t, w.patch(w.memcached(i), `{"spec": {"threads": 2}}`))
			}
		}},
		{"deleted", func() {
			w.eventually("delete all", func() error { // one request times out before all are marked
				return w.DeleteAllOf(w.ctx, &v1alpha1.Memcached{}, client.InNamespace(w.ns))
			})
		}},
	} {
		start, sampler, kill := time.Now(), w.watch(), errgroup.Group{}
		after := time.Duration(1+w.random.IntN(10)) * time.Second
		kill.Go(func() error {
			time.Sleep(after)
			return w.operator.Kill(w.ctx)
		})
		part.do()
		require.NoError(t, kill.Wait())
		w.lead()
		if part.name == "deleted" {
			w.eventually("delete everything", w.empty)
		} else {
			w.converge()
		}
		w.judge(sampler)
		took = append(took, fmt.Sprintf("%s in %.0f s", part.name, time.Since(start).Seconds()))
	}
	require.Equal(t, 3, w.judged, "steps in which each status was judged")
	w.publish("make chaos, many at once,", []string{fmt.Sprintf(
		"%s: %d Memcacheds at once, the leader killed at the beginning of each step: %s. No status turned Ready too early.",
		time.Now().Format(time.DateOnly), *many, strings.Join(took, ", "))})
}

// publish prints lines, and writes them into the page if the flag update is set.
func (w *world) publish(command string, lines []string) {
	w.Helper()
	text := strings.Join(lines, "\n") + "\n"
	w.Log("\n" + text)
	if *update {
		require.NoError(w, figure.Publish(page, command, text))
	}
}

// disturb lets one to most faults happen, and counts them. The first one begins while everything works, so that it must
// succeed. It is the one that has happened least often. A fault that lasts ends after at most 20 seconds: without a
// lease for so long, a leader is none any more. The others take up to a minute before the next one begins.
func (w *world) disturb(faults []fault, most int) {
	w.Helper()
	faults = slices.DeleteFunc(slices.Clone(faults), func(f fault) bool {
		return f.only != "" && f.only != w.cluster.Kind
	})
	ends := errgroup.Group{}
	try := func(f fault) error {
		lasts := time.Duration(w.random.IntN(20)) * time.Second
		end, err := f.do(w)
		if end != nil {
			ends.Go(func() error { // some faults do not end before another one has ended
				time.Sleep(lasts)
				ctx, cancel := context.WithTimeout(w.ctx, harness.Patience)
				defer cancel()
				return harness.Poll(ctx, func(context.Context) error { return end() })
			})
		}
		if err == nil {
			w.happened[f.name]++
			delete(w.failed, f.name)
			w.Logf("%s: %s", time.Now().Format(time.TimeOnly), f.name)
		}
		return err
	}
	first := w.leastOften(faults)
	w.eventually("let happen that "+first.name, func() error { return try(first) })
	for range w.random.IntN(most) {
		f := faults[w.random.IntN(len(faults))]
		if err := try(f); err != nil && !errors.Is(err, errNone) { // as while the API server does not answer
			w.Logf("%s: %v", f.name, err)
			if w.happened[f.name] == 0 {
				w.failed[f.name] = err
			}
		}
	}
	require.NoError(w, ends.Wait(), "end the faults")
}

// leastOften returns a fault that has happened least often; of those that never have, one that was tried.
func (w *world) leastOften(faults []fault) fault {
	w.random.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
	rank := func(f fault) int {
		if w.failed[f.name] != nil {
			return -1
		}
		return w.happened[f.name]
	}
	return slices.MinFunc(faults, func(a, b fault) int { return cmp.Compare(rank(a), rank(b)) })
}
