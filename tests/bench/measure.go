package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/procfs"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// phase is what one phase cost a subject. Unless a field says otherwise, the figures are totals for all objects.
type phase struct {
	Name string `json:"phase"`
	// Seconds is the time from the first request until the state that the phase wants. For a start and a restart of an
	// operator, it is the time since its process started: until it leads, or until it has reconciled every object.
	Seconds float64 `json:"seconds,omitempty"`
	// Ratio is Seconds divided by the Seconds of the floor with as many objects.
	Ratio float64 `json:"ratio,omitempty"`
	// Requests are the numbers of requests by verb, resource and status code, without those of Apart.
	Requests map[string]int `json:"requests"`
	// Apart are the numbers of requests for events, for leases, and by informers (list and watch).
	Apart map[string]int `json:"apart"`
	// Writes and Conflicts count some of Requests. A conflict is a request with status 409.
	Writes    int `json:"writes"`
	Conflicts int `json:"conflicts"`

	// The fields below are zero for the floor, which is not a separate process.

	Reconciles float64 `json:"reconciles"`
	// CPU is user and system time in seconds.
	CPU float64 `json:"cpu"`
	// Allocated is in bytes.
	Allocated float64 `json:"allocated"`
	// RSS, Peak and Heap are in bytes, after the phase and a time without requests: the process's memory, its maximum
	// since the start, and the part that Go's heap uses.
	RSS  uint64  `json:"rss"`
	Peak uint64  `json:"peak"`
	Heap float64 `json:"heap"`
}

// total returns the number of requests without those of Apart.
func (p *phase) total() (n int) {
	for _, count := range p.Requests {
		n += count
	}
	return n
}

// auditLog sums up the subject's requests from the API server's audit log.
type auditLog struct {
	path   string
	offset int64 // end of the last line that was read
	sum    phase
	busy   int // requests except lease renewals
}

// read adds the requests since the last read.
func (l *auditLog) read() error {
	file, err := os.Open(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Seek(l.offset, io.SeekStart); err != nil {
		return err
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return err
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	l.offset += int64(len(text))
	for line := range bytes.Lines(text) {
		var e auditv1.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("%s: %w", l.path, err)
		}
		l.add(&e)
	}
	return nil
}

func (l *auditLog) add(e *auditv1.Event) {
	if e.ObjectRef == nil || e.ResponseStatus == nil || e.Verb == "watch" && e.Stage != auditv1.StageResponseStarted {
		return // discovery, or the end of a watch
	}
	resource := strings.TrimSuffix(e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource, "/")
	apart := ""
	switch {
	case resource == "events", resource == "leases":
		apart = resource
	case e.Verb == "watch", e.Verb == "list":
		apart = "informers"
	}
	if apart != "leases" {
		l.busy++
	}
	if apart != "" {
		l.sum.Apart[apart]++
		return
	}
	l.sum.Requests[e.Verb+" "+resource+" "+strconv.Itoa(int(e.ResponseStatus.Code))]++
	if e.Verb != "get" {
		l.sum.Writes++
	}
	if e.ResponseStatus.Code == 409 {
		l.sum.Conflicts++
	}
}

// take returns the sums under a name and resets them.
func (l *auditLog) take(name string) phase {
	sum := l.sum
	l.sum = phase{Requests: map[string]int{}, Apart: map[string]int{}}
	sum.Name = name
	return sum
}

// settle waits until the subject has made no request, except lease renewals, for this time.
func (l *auditLog) settle(ctx context.Context, long time.Duration) error {
	return steady(ctx, long, func() (int, error) {
		err := l.read()
		return l.busy, err
	})
}

const (
	// quiet is how long nothing must change until a phase counts as done.
	quiet = 2 * time.Second
	// rested is how long nothing must happen before the memory of a process is measured. Our operator frees memory after 5
	// s without work, so samples from before and after that are not comparable.
	rested = 8 * time.Second
)

// steady waits until a number has not changed for this time.
func steady(ctx context.Context, long time.Duration, read func() (int, error)) error {
	var last int
	var since time.Time
	return harness.Poll(ctx, func(context.Context) error {
		n, err := read()
		if err != nil {
			return err
		}
		if n != last || since.IsZero() {
			last, since = n, time.Now()
		}
		if time.Since(since) < long {
			return errors.New("it still changes")
		}
		return nil
	})
}

// sample is what a process has used so far and its memory now.
type sample struct {
	pid                        int
	cpu, reconciles, allocated float64
	rss, peak                  uint64
	heap                       float64
}

func (p *process) sample(ctx context.Context) (s sample, err error) {
	if p == nil {
		return s, nil
	}
	m, err := p.scrape(ctx)
	if err != nil {
		return s, err
	}
	proc, err := procfs.NewProc(p.pid)
	if err != nil {
		return s, err
	}
	stat, err1 := proc.Stat()
	memory, err2 := proc.NewStatus()
	return sample{pid: p.pid, cpu: stat.CPUTime(), reconciles: m.sum(reconciles),
		allocated: m.sum("go_memstats_alloc_bytes_total"), heap: m.sum("go_memstats_heap_inuse_bytes"),
		rss: memory.VmRSS, peak: memory.VmHWM}, errors.Join(err1, err2)
}

// add sets what the process used between two samples.
func (p *phase) add(before, after sample) {
	if before.pid != after.pid {
		before = sample{} // the process was started in between
	}
	p.CPU, p.Reconciles = after.cpu-before.cpu, after.reconciles-before.reconciles
	p.Allocated = after.allocated - before.allocated
	p.RSS, p.Peak, p.Heap = after.rss, after.peak, after.heap
}

// metrics are the metrics of a process, by name.
type metrics map[string]*dto.MetricFamily

const (
	reconciles = "controller_runtime_reconcile_total"
	leads      = "leader_election_master_status"
)

// sum returns the sum of all counters and gauges of a name.
func (m metrics) sum(name string) (sum float64) {
	for _, metric := range m[name].GetMetric() {
		sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
	}
	return sum
}
