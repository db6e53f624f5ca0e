// Package simulation runs the operator on a real API server with simulated controllers, kubelets and agents, so that
// each run does the same. The tests break the operator at each step, and give it specs that nobody has tried.
package simulation

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/internal/testing/apiserver"
	"github.com/example/memcached-operator/internal/testing/simulator"
)

// results is the page with the numbers.
const results = "results.md"

var (
	every  = flag.Int("every", 40, "of so many disturbances of a scenario, try one, but at least one; 1 for all")
	first  = flag.Int("first", 0, "the first disturbance that is tried; with another number, others are tried")
	update = flag.Bool("update", false, "write the numbers into results.md")
)

// TestMain ends the API server that the tests start, and says how many disturbances were tried.
func TestMain(m *testing.M) {
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard()) // the e2e-framework, which tests/cluster imports, has set it as the logger
	go stopEarly()
	code := m.Run()
	stopServer()
	tried.print()
	if *update && code == 0 && len(tried.requests) > 0 {
		if err := tried.publish(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// stopEarly ends the API server and the tests just before the time of -timeout is over, or if somebody interrupts them:
// otherwise, etcd and the API server would go on.
func stopEarly() {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	var timeUp <-chan time.Time
	if timeout := flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration); timeout > 0 {
		timeUp = time.After(timeout - min(30*time.Second, timeout/10))
	}
	why := "the tests were interrupted"
	select {
	case <-interrupted:
	case <-timeUp:
		why = "the time of -timeout is nearly over"
	}
	stopServer()
	fmt.Fprintln(os.Stderr, why)
	tried.print()
	os.Exit(1)
}

// disturbance is what happens during the steps of a scenario. The zero value is nothing.
type disturbance struct {
	fault    *fault
	at       int            // the number of the request that gets the fault
	lags     map[string]int // by how many states the informer cache lags behind, by kind
	onEvents bool           // the operator reconciles only when an event or a delay asks for a reconcile
	folds    map[string]int // of how many rounds the changes become one event, by kind
	// silentFrom is the first of some reconciles in which no agent answers, counted from 1; 0 for none.
	silentFrom int
	// refusedFrom is the first of some reconciles in which a policy refuses all children, counted from 1; 0 for none.
	refusedFrom int
	policy      string // of the namespace, from the beginning; empty for none
	limit       int    // the most reconciles; 0 for the default
}

// result is what a run of a scenario leaves behind.
type result struct {
	summary    string         // of all objects
	upgraded   string         // of all objects, as summary describes them after an upgrade
	started    map[string]int // the number of pods that were started, by component
	isUpgraded bool           // the operator is of another release than in the beginning
	outlived   bool           // servers drained when the Memcached was gone
	fault      *fault         // that was tried; nil for none

	// During the steps:
	reconciles int
	requests   []string        // of the operator
	asked      map[int]bool    // the reconciles in which the operator asked agents
	sent       map[int]bool    // the reconciles in which the operator sent children
	changed    map[string]bool // the kinds of which an object has changed
	// happened says that the disturbance has met what it disturbs.
	happened bool
}

// run runs a scenario.
func (s scenario) run(t testing.TB, server *server, d disturbance) result {
	t.Helper()
	w := newWorld(t, server, d.policy)
	if s.prepare != nil {
		s.prepare(w)
	}
	if s.before != "" {
		w.create(s.before)
		w.settle()
		w.Must(w.ready())
	}
	w.mayStall = s.stalls
	w.reconciles, w.limit, w.asked = 0, cmp.Or(d.limit, 200), map[int]bool{}
	begin := len(w.history) - 1
	w.lags, w.onEvents, w.folds, w.silentFrom = d.lags, d.onEvents, d.folds, d.silentFrom
	w.refusedFrom = d.refusedFrom
	w.connection.arm(d.at, d.fault)
	for _, step := range s.steps {
		step(w)
		w.settle()
	}
	if s.deleted {
		if mc := w.now().Memcached(); mc != nil {
			t.Errorf("the Memcached still exists: %+v", mc)
		}
	} else {
		w.Must(w.ready())
	}
	r := result{summary: w.summary(false), upgraded: w.summary(true), started: w.Started, isUpgraded: w.release > 1,
		outlived: w.outlived, fault: d.fault, reconciles: w.reconciles, requests: slices.Clone(w.connection.requests),
		asked: w.asked, sent: w.connection.sent, changed: w.changedSince(begin), happened: true}
	switch {
	case d.fault != nil:
		r.happened = len(r.requests) > d.at
	case d.silentFrom > 0:
		r.happened = w.wereSilent
	case d.refusedFrom > 0:
		r.happened = w.connection.wasRefused
	}
	return r
}

// changedSince returns the kinds of which an object has changed since a state of the history.
func (w *world) changedSince(begin int) map[string]bool {
	changed := map[string]bool{}
	for _, s := range w.history[begin:] {
		for kind, objects := range s {
			changed[kind] = changed[kind] || !slices.EqualFunc(objects, w.history[begin][kind], func(a, b client.Object) bool {
				return a.GetUID() == b.GetUID() && a.GetResourceVersion() == b.GetResourceVersion()
			})
		}
	}
	return changed
}

// slack is by how many reconciles a disturbed run may be longer.
const slack = 40

// each runs a scenario undisturbed, and then once for each disturbance of it, which must not change the end. Only some
// disturbances are tried, unless every is 1.
func each(t *testing.T, kind string, disturbances func(undisturbed result) map[string]disturbance,
	check func(t *testing.T, s scenario, undisturbed, got result)) {
	t.Helper()
	apiserver.Need(t)
	server, err := startServer()
	if err != nil {
		t.Fatal(err)
	}
	onEvents := kind == refusalsTried // as the disturbed operator
	for i, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			undisturbed := s.undisturbed(t, server, onEvents)
			all := disturbances(undisturbed)
			tried.scenario(kind, s.name, len(undisturbed.requests), len(all))
			for n, name := range slices.Sorted(maps.Keys(all)) {
				if (n+i+*first)%min(*every, len(all)) != 0 {
					continue
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					d := all[name]
					if d.limit == 0 {
						d.limit = undisturbed.reconciles + slack
					}
					got := s.run(t, server, d)
					if !got.happened || d.fault != nil && got.requests[d.at] != undisturbed.requests[d.at] {
						t.Errorf("the disturbance did not happen, or to another request:\n%s", strings.Join(got.requests, "\n"))
					}
					check(t, s, undisturbed, got)
					if !t.Failed() {
						tried.pass(kind, s.name)
					}
				})
			}
		})
	}
}

// undisturbedRuns are the results of scenarios in which nothing happens, by the name and onEvents.
var undisturbedRuns sync.Map

// undisturbed runs a scenario in which nothing happens, twice: both runs must be the same.
func (s scenario) undisturbed(t *testing.T, server *server, onEvents bool) result {
	t.Helper()
	key := fmt.Sprint(s.name, onEvents)
	if r, ok := undisturbedRuns.Load(key); ok {
		return r.(result)
	}
	r := s.run(t, server, disturbance{onEvents: onEvents})
	if diff := difference(r.summary, s.run(t, server, disturbance{onEvents: onEvents}).summary); diff != "" {
		t.Fatalf("two runs in which nothing happens differ:\n%s", diff)
	}
	if t.Failed() {
		t.FailNow()
	}
	undisturbedRuns.Store(key, r)
	return r
}

// sameEnd fails if the end differs from that of the undisturbed run, or more pods were started.
func sameEnd(t *testing.T, s scenario, undisturbed, got result) {
	t.Helper()
	notMore(t, s, undisturbed, got)
	isNamespaceGone := got.fault != nil && got.fault.status == http.StatusNotFound // it seems so
	if got.outlived && !undisturbed.outlived && !isNamespaceGone {
		t.Error("servers outlived the Memcached")
	}
	want, have := undisturbed.summary, got.summary
	if got.isUpgraded {
		want, have = undisturbed.upgraded, got.upgraded
	}
	if diff := difference(want, have); diff != "" {
		t.Errorf("the end differs from that without a disturbance:\n%s", diff)
	}
}

// notMore fails if more pods were started than in the undisturbed run. An upgrade replaces proxies, and servers that
// were never ready.
func notMore(t *testing.T, s scenario, undisturbed, got result) {
	t.Helper()
	for component, n := range got.started {
		isReplaced := got.isUpgraded && (component == simulator.ProxyComponent || s.before == "" || s.takesNewAgent)
		if most := undisturbed.started[component]; n > most && !isReplaced {
			t.Errorf("%d pods of the component %s were started, and without a disturbance %d", n, component, most)
		}
	}
}

// TestCrashPoints lets each fault happen to each request.
func TestCrashPoints(t *testing.T) {
	each(t, faultsTried, func(undisturbed result) map[string]disturbance {
		all := map[string]disturbance{}
		for at, request := range undisturbed.requests {
			for i := range faults {
				if f := &faults[i]; f.tries(request) {
					all[fmt.Sprintf("%s, request %d, %s", f.name, at, request)] = disturbance{fault: f, at: at}
				}
			}
		}
		return all
	}, sameEnd)
}

// Kinds that the informer cache shows late together.
var (
	workloads = []string{"Deployment", "StatefulSet"}
	others    = []string{"Service", "ConfigMap", "NetworkPolicy", "PodDisruptionBudget"}
	watched   = map[string][]string{"the Memcached": {"Memcached"}, "workloads": workloads, "pods": {"Pod"},
		"Secrets": {"Secret"}, "other children": others,
		"everything": slices.Concat([]string{"Memcached", "Pod", "Secret"}, workloads, others)}
)

// forEach gives each kind the same number.
func forEach(kinds []string, n int) map[string]int {
	numbers := map[string]int{}
	for _, kind := range kinds {
		numbers[kind] = n
	}
	return numbers
}

// anyOf reports whether any of the kinds has changed.
func (r result) anyOf(kinds []string) bool {
	return slices.ContainsFunc(kinds, func(kind string) bool { return r.changed[kind] })
}

// TestLaggingCache lets the informer cache lag behind by some states, while the controllers and kubelets go on: it
// shows all kinds late, or some of them.
func TestLaggingCache(t *testing.T) {
	each(t, cachesTried, func(undisturbed result) map[string]disturbance {
		all := map[string]disturbance{}
		for name, kinds := range watched {
			for _, states := range []int{1, 2, 10} {
				if undisturbed.anyOf(kinds) {
					all[fmt.Sprintf("%s by %d states", name, states)] = disturbance{lags: forEach(kinds, states),
						limit: (undisturbed.reconciles + slack) * (1 + states)}
				}
			}
		}
		return all
	}, sameEnd)
}

// TestEvents lets the operator reconcile only when an event asks for a reconcile, or the delay after the last one is
// over. The changes of some rounds become one event: the operator misses what was there in between.
func TestEvents(t *testing.T) {
	each(t, eventsTried, func(undisturbed result) map[string]disturbance {
		all := map[string]disturbance{"of each round": {onEvents: true}}
		for name, kinds := range watched {
			for _, rounds := range []int{2, 10} {
				if undisturbed.anyOf(kinds) {
					all[fmt.Sprintf("of %s, folded from %d rounds", name, rounds)] = disturbance{onEvents: true,
						folds: forEach(kinds, rounds), limit: (undisturbed.reconciles + slack) * (1 + rounds)}
				}
			}
		}
		return all
	}, sameEnd)
}

// disturbed is the number of reconciles in which agents are silent, or a policy refuses children.
const disturbed = 3

// during returns a disturbance for each reconcile with which it can begin so that it meets one of these reconciles.
func during(reconciles map[int]bool, begins func(first int) disturbance) map[string]disturbance {
	all := map[string]disturbance{}
	for n := range reconciles {
		for first := max(1, n-disturbed+1); first <= n; first++ {
			all[fmt.Sprintf("from reconcile %d on", first)] = begins(first)
		}
	}
	return all
}

// TestSilentAgents lets no agent answer during three reconciles, at every time at which the operator asks.
func TestSilentAgents(t *testing.T) {
	each(t, agentsTried, func(undisturbed result) map[string]disturbance {
		return during(undisturbed.asked, func(first int) disturbance { return disturbance{silentFrom: first} })
	}, sameEnd)
}

// TestPolicies lets admission policies change what the operator writes: what it writes settles, and it starts no server
// more.
func TestPolicies(t *testing.T) {
	apiserver.Need(t)
	if err := installPolicies(); err != nil {
		t.Fatal(err)
	}
	each(t, policiesTried, func(result) map[string]disturbance {
		all := map[string]disturbance{}
		for _, policy := range policies() {
			all[policy] = disturbance{policy: policy}
		}
		return all
	}, notMore)
}

// TestRefusals lets a policy refuse all children in three reconciles, at every time at which the operator sends some.
// The operator must try again by itself: no event tells that the policy has changed.
func TestRefusals(t *testing.T) {
	apiserver.Need(t)
	if err := installPolicies(); err != nil {
		t.Fatal(err)
	}
	each(t, refusalsTried, func(undisturbed result) map[string]disturbance {
		return during(undisturbed.sent, func(first int) disturbance {
			return disturbance{refusedFrom: first, onEvents: true}
		})
	}, sameEnd)
}

// difference returns the lines that one of two texts has more often than the other.
func difference(want, got string) string {
	counts := map[string]int{}
	for line := range strings.Lines(want) {
		counts[strings.TrimSuffix(line, "\n")]--
	}
	for line := range strings.Lines(got) {
		counts[strings.TrimSuffix(line, "\n")]++
	}
	var lines []string
	for _, line := range slices.Sorted(maps.Keys(counts)) {
		switch n := counts[line]; {
		case n < 0:
			lines = append(lines, "- "+line)
		case n > 0:
			lines = append(lines, "+ "+line)
		}
	}
	return strings.Join(lines, "\n")
}
