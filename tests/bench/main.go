// Command bench measures what operators of memcached cost a cluster, and what a floor costs that does only what every
// operator must do. Each subject runs on a fresh kwok cluster and manages many objects from creation to deletion.
// tests/bench/results.md explains the figures.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// Names of the subjects that are always measured.
const (
	floorName    = "floor"
	operatorName = "operator"
)

type options struct {
	counts   []int
	times    int
	operator string
	others   []string
	update   bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := bench(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		stop()
		os.Exit(1)
	}
}

func parse() (o options, err error) {
	counts := flag.String("n", "300", "comma-separated `numbers` of objects")
	flag.IntVar(&o.times, "repeat", 1, "`times` that each subject is measured; the tables show the median of each phase")
	flag.StringVar(&o.operator, "operator", "tests/bench/operator.yaml",
		"`file` that describes this operator, and the objects of the floor, such as tests/bench/discovery.yaml")
	flag.Func("subject", "`file` that describes a further operator, as tests/bench/operator.yaml does; may be repeated",
		func(file string) error { o.others = append(o.others, file); return nil })
	flag.BoolVar(&o.update, "update", false,
		"write the tables of tests/bench/results.md, and the plot of docs/explanation/performance.md")
	flag.Parse()
	if o.times < 1 {
		return o, fmt.Errorf("-repeat is %d, must be at least 1", o.times)
	}
	for text := range strings.SplitSeq(*counts, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return o, fmt.Errorf("-n: %q is not a number of objects", text)
		}
		o.counts = append(o.counts, n)
	}
	if o.update && len(o.counts) < 2 {
		return o, errors.New("-update needs two numbers of objects or more, as in -n 300,5000: the plot compares them")
	}
	return o, nil
}

func bench(ctx context.Context) error {
	o, err := parse()
	if err != nil {
		return err
	}
	root, err := harness.Repository()
	if err != nil {
		return err
	}
	// Paths in the files of subjects are relative to the repository.
	if err := os.Chdir(root); err != nil {
		return err
	}
	log.SetLogger(zap.New(zap.WriteTo(io.Discard))) // discards the logs of the informer cache
	var subjects []*subject
	for _, file := range append([]string{o.operator}, o.others...) {
		s, err := readSubject(file)
		if err != nil {
			return err
		}
		subjects = append(subjects, s)
	}
	floor := *subjects[0]
	floor.Name, floor.Command = floorName, nil
	results, err := measureAll(ctx, o.counts, o.times, append([]*subject{&floor}, subjects...))
	// Keeps the results from before an error.
	fmt.Println(tables(results))
	err = errors.Join(err, save(results))
	if err == nil && o.update {
		err = publish(results)
	}
	return err
}

// measureAll measures each subject the given number of times, with each number of objects. The first subject is the
// floor. Subjects take turns, so that a slow phase of the machine affects all of them.
func measureAll(ctx context.Context, counts []int, times int, subjects []*subject) (results []*result, err error) {
	for _, n := range counts {
		runs := make([][]*result, len(subjects))
		for i := 0; i < times*len(subjects) && err == nil; i++ {
			var r *result
			at := i % len(subjects)
			if r, err = measure(ctx, subjects[at], n); r != nil {
				runs[at] = append(runs[at], r)
			}
		}
		var floor *result
		for _, ofSubject := range runs {
			if len(ofSubject) == 0 {
				break // not measured because of an error
			}
			r := median(ofSubject)
			if floor == nil {
				floor = r
			}
			for _, p := range r.Phases {
				if g := floor.phase(p.Name); g != nil {
					p.Ratio = p.Seconds / g.Seconds
				}
			}
			results = append(results, r)
		}
		if err != nil {
			break
		}
	}
	return results, err
}

// save writes all figures into a file.
func save(results []*result) error {
	text, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(".cluster/bench.json", append(text, '\n'), 0o644)
}
