package steps

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
)

const newYear = "new year"

// asked gives a server the annotation that asked it this time before now to flush for a value.
func (s *server) asked(ago time.Duration, value string) *server {
	at := now.Add(-ago).UTC().Format(time.RFC3339)
	return s.annotated(v1alpha1.FlushAnnotation, at+" "+flushValue(value))
}

func flushValue(text string) string {
	mc := &v1alpha1.Memcached{}
	mc.Annotations = map[string]string{v1alpha1.FlushedAtAnnotation: text}
	return desired.FlushValue(mc)
}

// able returns a server whose agent reads FlushAnnotation.
func able() *server {
	s := updated()
	s.Spec.Volumes = []corev1.Volume{{Name: "pod"}}
	return s
}

// flushView is a View in which a flush for the value newYear is asked for after one for "old". The agents of these
// servers report that they have dropped their items.
func flushView(servers []*server, flushed ...string) View {
	v := viewOf(servers...)
	v.Memcached.Annotations = map[string]string{v1alpha1.FlushedAtAnnotation: newYear}
	v.Workload.SetAnnotations(map[string]string{v1alpha1.FlushedAtAnnotation: flushValue("old")})
	v.Record.Template = corev1ac.PodTemplateSpec()
	for _, pod := range v.Servers {
		r := contract.Report{Items: 100}
		if slices.Contains(flushed, pod.Name) {
			r.Flushed, r.Items = pod.Annotations[v1alpha1.FlushAnnotation], 0
		}
		v.Reports[pod.Name] = Report{Report: r}
	}
	return v
}

// TestFlush: servers drop their items one after the other, the ready ones first, and the next one waits until the one
// before is warm. The flush has ended once all have reported that they dropped them.
func TestFlush(t *testing.T) {
	t.Parallel()
	type list = []*server
	warmUp := func(v *View) {
		v.Memcached.Spec.Rollout.WarmUp = &v1alpha1.WarmUpSpec{Percent: 80, TimeoutSeconds: 600}
	}
	reports := func(r Report) func(*View) { return func(v *View) { v.Reports["cache-0"] = r } }
	const first, second = "cache-0", "cache-1"
	for name, tt := range map[string]struct {
		servers list
		flushed string // servers
		change  func(*View)
		asks    string // the server that is asked next
		toDrop  int
		says    string
	}{
		"none was asked":          {list{able().notReady(), able()}, "", nil, second, 2, ""},
		"asked for an old one":    {list{able().asked(time.Hour, "old")}, "", nil, first, 1, ""},
		"somebody broke the text": {list{able().annotated(v1alpha1.FlushAnnotation, "x new")}, "", nil, first, 1, ""},
		"one drops its items": {list{able().asked(0, newYear), able()}, "", nil, "", 2,
			"server cache-0: memcached drops its items"},
		"one has dropped them": {list{able().asked(0, newYear), able()}, first, nil, second, 1, ""},
		"one must warm up": {list{able().asked(9*time.Minute, newYear), able()}, first, warmUp, "", 1,
			"server cache-0 holds 0 % of the items of the others, warm with 80 %"},
		"one had time to warm up": {list{able().asked(10*time.Minute, newYear), able()}, first, warmUp, second, 1, ""},
		"one of an operator whose clock was ahead": {list{able().asked(-time.Hour, newYear), able()}, first, nil, second, 1,
			""},
		"all have dropped them": {list{able().asked(time.Hour, newYear), able().asked(0, newYear)}, first + second, nil, "",
			0, ""},
		"an earlier one has not": {list{able().asked(time.Hour, newYear), able().asked(0, newYear)}, second, nil, "", 1,
			"server cache-0: memcached drops its items"},
		"one is silent": {list{able().asked(0, newYear)}, "", reports(Report{Err: errors.New("silent")}), "", 1,
			"server cache-0 does not answer the operator on port 9151"},
		"one is refused": {list{able().asked(0, newYear)}, "", reports(Report{Report: contract.Report{FlushProblem: "no"}}),
			"", 1, "server cache-0: no; or remove the annotation"},
		"one has no agent": {list{updated().asked(0, newYear), able()}, "", nil, "", 2,
			"server cache-0 has no agent that can flush it; or remove the annotation"},
		"one stops with its items": {list{able().withDrain().terminating(), able().asked(0, newYear)}, second, nil, "", 1,
			""},
		"items move":          {list{able()}, "", func(v *View) { v.Routing.List.Phase = contract.Purge }, "", 1, ""},
		"paused":              {list{able()}, "", func(v *View) { v.Memcached.Spec.Paused = true }, "", 1, ""},
		"the clock is behind": {list{able().asked(-time.Hour, "old")}, "", nil, first, 1, ""},
		"no server":           {nil, "", nil, "", 0, ""},
		"none is asked for": {list{able().asked(0, newYear)}, "", func(v *View) { v.Memcached.Annotations = nil }, "",
			0, ""},
		"it has ended": {list{able()}, "", func(v *View) {
			v.Workload.SetAnnotations(map[string]string{v1alpha1.FlushedAtAnnotation: flushValue(newYear)})
		}, "", 0, ""},
	} {
		v := flushView(tt.servers, strings.SplitAfter(tt.flushed, first)...)
		if tt.change != nil {
			tt.change(&v)
		}
		s, _ := flush(v)
		toDrop, ended := v.Flush().ToDrop(v), s.Flushed == flushValue(newYear)
		var asked []string
		wantEnd := tt.toDrop == 0 && v.Flush().Value != ""
		for _, a := range s.Annotate {
			before, _ := flushOf(a.Pod)
			last, _ := flushOf(v.Servers[0]) // the next server is asked later, too
			a.Pod.Annotations = map[string]string{a.Key: a.Value}
			if at, value := flushOf(a.Pod); value == flushValue(newYear) && at.After(before) && at.After(last) {
				asked = append(asked, a.Pod.Name)
			}
		}
		asks := strings.Join(asked, " ")
		if asks != tt.asks || toDrop != tt.toDrop || ended != wantEnd || !strings.HasPrefix(s.Progress.Text, tt.says) ||
			(s.Progress.Text == "") != (tt.says == "") || (asks != "" || len(s.Stop) > 0) != s.IsIrreversible() {
			t.Errorf("%s: asks %q, %d have items to drop, ended %q, says %q, want %+v", name, asks, toDrop, s.Flushed,
				s.Progress.Text, tt)
		}
	}
}

// TestFlushTakenBack: once the annotation is removed, a server that was asked, and may not have noticed, is asked no
// more.
func TestFlushTakenBack(t *testing.T) {
	t.Parallel()
	v := flushView([]*server{able().asked(0, newYear), able().asked(0, "old"), able()})
	v.Memcached.Annotations = nil
	s, _ := flush(v)
	if len(s.Annotate) != 1 || s.Annotate[0].Pod.Name != "cache-0" || s.Annotate[0].Value != "" {
		t.Errorf("got %+v, want cache-0 asked no more", s.Annotate)
	}
}
