package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/tests/cluster"
)

const (
	firstSize = 2
	laterSize = 3
	idleTime  = 15 * time.Second
)

// result is what one subject cost with one number of objects.
type result struct {
	Subject string   `json:"subject"`
	N       int      `json:"n"`
	Phases  []*phase `json:"phases"`
	// Runs are the runs of which Phases are the median, if there are several.
	Runs []*result `json:"runs,omitempty"`
}

// phase returns the phase with this name, or nil if the subject has none.
func (r *result) phase(name string) *phase {
	for _, p := range r.Phases {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// median returns each phase of the run in which it took the median time: all figures of a phase are of the same run.
// Among equal times it takes the phase with the median memory.
func median(runs []*result) *result {
	m := &result{Subject: runs[0].Subject, N: runs[0].N}
	for _, name := range life {
		var phases []phase
		for _, r := range runs {
			if p := r.phase(name); p != nil {
				phases = append(phases, *p)
			}
		}
		slices.SortFunc(phases, func(a, b phase) int {
			return cmp.Or(cmp.Compare(a.Seconds, b.Seconds), cmp.Compare(a.RSS, b.RSS))
		})
		if len(phases) > 0 {
			m.Phases = append(m.Phases, &phases[len(phases)/2])
		}
	}
	if len(runs) > 1 {
		m.Runs = runs
	}
	return m
}

// run is the measurement of one subject on its own cluster.
type run struct {
	*world
	result
	process *process // nil for the floor
	audit   auditLog
	fail    func(error)
}

// measure runs all phases with count objects. It stops all processes that it started before it returns.
func measure(ctx context.Context, s *subject, count int) (_ *result, err error) {
	c, err := cluster.New("kwok")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Destroy(context.WithoutCancel(ctx))) }()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	w, err := newWorld(ctx, c, s, count)
	if err != nil {
		return nil, err
	}
	r := &run{world: w, result: result{Subject: s.Name, N: count}, audit: auditLog{path: c.AuditLog()}, fail: fail}
	r.audit.take("")
	defer func() { r.process.stop() }()
	if s.Command == nil {
		if w.floor, err = newFloor(ctx, w, fail); err != nil {
			return nil, err
		}
		// The control plane gets as much time to settle as it gets during the start of an operator.
		if err := r.audit.settle(ctx, rested); err != nil {
			return nil, err
		}
	}
	return &r.result, r.all(ctx)
}

func (r *run) all(ctx context.Context) error {
	patch := func(patch map[string]any, ofDeployment string) func(context.Context) error {
		return func(ctx context.Context) error {
			text, err := json.Marshal(patch)
			if err != nil {
				return err
			}
			return r.each(ctx, 0,
				func(ctx context.Context, u *unstructured.Unstructured) error {
					return r.user.Patch(ctx, u, merge(string(text)))
				},
				func(ctx context.Context, u *unstructured.Unstructured) error {
					return r.floor.changed(ctx, u, ofDeployment)
				})
		}
	}
	larger := map[string]any{}
	if err := unstructured.SetNestedField(larger, int64(laterSize),
		strings.Split(r.subject.SizeField, ".")...); err != nil {
		return err
	}
	phases := []struct {
		name         string
		operatorOnly bool // the floor skips this phase
		act          func(context.Context) (took time.Duration, err error)
	}{
		{"start", true, r.start},
		{"create", false, r.change(firstSize, false, func(ctx context.Context) error {
			return r.each(ctx, firstSize, func(ctx context.Context, u *unstructured.Unstructured) error {
				return r.user.Create(ctx, u)
			}, r.floor.created)
		})},
		{"idle", false, idle},
		{"scale", false, r.change(laterSize, false,
			patch(larger, fmt.Sprintf(`{"spec":{"replicas":%d}}`, laterSize)))},
		{"template", false, r.change(laterSize, true, patch(r.subject.TemplatePatch,
			`{"spec":{"template":{"metadata":{"annotations":{"example.com/bench":"changed"}}}}}`))},
		{"restart", true, r.restart},
		{"delete", false, r.remove},
	}
	for _, p := range phases {
		if p.operatorOnly && r.floor != nil || p.name == "template" && r.subject.TemplatePatch == nil {
			continue
		}
		if err := r.measurePhase(ctx, p.name, p.act); err != nil {
			return fmt.Errorf("%s of %d, %s: %w", r.Subject, r.N, p.name, errors.Join(err, context.Cause(ctx)))
		}
	}
	return nil
}

// measurePhase runs act and measures its cost until the subject makes no more requests.
func (r *run) measurePhase(ctx context.Context, name string, act func(context.Context) (time.Duration, error)) error {
	limit := 5*time.Minute + time.Duration(r.N)*time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %s", limit))
	defer cancel()
	before, err := r.process.sample(ctx)
	if err != nil {
		return err
	}
	took, err := act(ctx)
	if err != nil {
		return err
	}
	if err := r.audit.settle(ctx, rested); err != nil {
		return err
	}
	after, err := r.process.sample(ctx)
	if err != nil {
		return err
	}
	sum := r.audit.take(name)
	sum.Seconds = took.Seconds()
	sum.add(before, after)
	r.Phases = append(r.Phases, &sum)
	fmt.Fprintf(os.Stderr, "%6d %-10s %-9s %7.1f s %6.1f requests an object\n", r.N, r.Subject, name, sum.Seconds,
		float64(sum.total())/float64(r.N))
	return nil
}

// change returns a phase that ends when all Deployments of this size are complete.
func (r *run) change(size int, otherTemplate bool, do func(context.Context) error) func(
	context.Context) (time.Duration, error) {
	return func(ctx context.Context) (time.Duration, error) {
		r.expect(size, otherTemplate)
		return r.timed(ctx, do)
	}
}

// timed measures the time from the first request until the expected state.
func (r *run) timed(ctx context.Context, do func(context.Context) error) (time.Duration, error) {
	start := time.Now()
	if err := do(ctx); err != nil {
		return 0, err
	}
	return r.await(ctx, start)
}

// remove is the phase that deletes all objects.
func (r *run) remove(ctx context.Context) (time.Duration, error) {
	if err := r.expectNothing(ctx); err != nil {
		return 0, err
	}
	return r.timed(ctx, func(ctx context.Context) error {
		return r.each(ctx, 0, func(ctx context.Context, u *unstructured.Unstructured) error {
			return r.user.Delete(ctx, u)
		}, r.floor.deleted)
	})
}

// idle lets time pass.
func idle(ctx context.Context) (time.Duration, error) {
	select {
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-time.After(idleTime):
		return idleTime, nil
	}
}

// start starts the operator, and waits until it leads.
func (r *run) start(ctx context.Context) (time.Duration, error) {
	var err error
	if r.process, err = r.subject.start(ctx, r.kubeconfig, ".cluster/bench-"+r.Subject+".log", r.fail); err != nil {
		return 0, err
	}
	err = harness.Poll(ctx, func(ctx context.Context) error {
		m, err := r.process.scrape(ctx)
		if err == nil && m[leads] != nil && m.sum(leads) == 0 {
			err = errors.New("the operator does not lead")
		}
		return err
	})
	return time.Since(r.process.started), err
}

// restart stops the operator, starts it again, and waits until it has reconciled every object.
func (r *run) restart(ctx context.Context) (took time.Duration, err error) {
	r.process.stop()
	if _, err := r.start(ctx); err != nil {
		return 0, err
	}
	last := 0
	err = steady(ctx, quiet, func() (int, error) {
		m, err := r.process.scrape(ctx)
		if err != nil {
			return 0, err
		}
		n := int(m.sum(reconciles))
		if n > last {
			last, took = n, time.Since(r.process.started)
		}
		if n < r.N {
			return 0, fmt.Errorf("%d reconciles", n)
		}
		return n, nil
	})
	return took, err
}
