package steps

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/status"
)

// asked gives a server the annotation that asked it this time before now to flush for a value.
func (s *server) asked(ago time.Duration, value string) *server {
	at := now.Add(-ago).UTC().Format(time.RFC3339)
	s.Annotations = map[string]string{v1alpha1.FlushAnnotation: at + " " + flushValue(value)}
	return s
}

func flushValue(text string) string {
	mc := &v1alpha1.Memcached{}
	mc.Annotations = map[string]string{v1alpha1.FlushedAtAnnotation: text}
	return desired.FlushValue(mc)
}

// ended returns a workload on which the last flush that has ended was for a value.
func ended(value string) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{
		Annotations: map[string]string{v1alpha1.FlushedAtAnnotation: flushValue(value)}}}
}

// able says that the agent reads FlushAnnotation.
func (s *server) able() *server {
	s.Spec.Volumes = []corev1.Volume{{Name: "agent"}, {Name: "pod"}}
	return s
}

// flushView is a View in which a flush for the value "new" is asked for after one for "old". The agents of these
// servers report that they have dropped their items.
func flushView(servers []*server, flushed ...string) View {
	_, pods := rolloutOf(int32(len(servers)), 0, servers)
	for i := range pods {
		pods[i] = *status.StripPod(&pods[i])
	}
	mc := &v1alpha1.Memcached{}
	mc.Annotations = map[string]string{v1alpha1.FlushedAtAnnotation: "new year"}
	v := View{Memcached: mc, Servers: pods, Children: Children{Workload: ended("old")}, Now: now,
		Record: desired.Record{Template: corev1ac.PodTemplateSpec()},
		Agents: Agents{Reports: map[string]Report{}}}
	for i := range pods {
		r := contract.Report{Items: 100}
		if slices.Contains(flushed, pods[i].Name) {
			r.Flushed, r.Items = pods[i].Annotations[v1alpha1.FlushAnnotation], 0
		}
		v.Agents.Reports[pods[i].Name] = Report{Report: r}
	}
	return v
}

// TestFlush: servers drop their items one after the other, the ready ones first, and the next one waits until the one
// before is warm. The flush has ended once all have reported that they dropped them.
func TestFlush(t *testing.T) {
	t.Parallel()
	able := func() *server { return updated().able() }
	broken := func() *server {
		s := able()
		s.Annotations = map[string]string{v1alpha1.FlushAnnotation: "x new"}
		return s
	}
	const first, second = "cache-0", "cache-1"
	for name, tt := range map[string]struct {
		servers []*server
		flushed []string
		change  func(*View)
		asks    string // the server that is asked next
		toDrop  int
		ended   bool
		says    string
	}{
		"none was asked":       {servers: []*server{able().notReady(), able()}, asks: second, toDrop: 2},
		"asked for an old one": {servers: []*server{able().asked(time.Hour, "old")}, asks: first, toDrop: 1},
		"somebody broke the text": {servers: []*server{broken()},
			asks: first, toDrop: 1},
		"one drops its items": {servers: []*server{able().asked(0, "new year"), able()}, toDrop: 2,
			says: "server cache-0: memcached drops its items"},
		"one has dropped them": {servers: []*server{able().asked(0, "new year"), able()}, flushed: []string{first},
			asks: second, toDrop: 1},
		"one must warm up": {servers: []*server{able().asked(9*time.Minute, "new year"), able()}, flushed: []string{first},
			change: warmUp, toDrop: 1, says: "server cache-0 holds 0 % of the items of the others, warm with 80 %"},
		"one had time to warm up": {servers: []*server{able().asked(10*time.Minute, "new year"), able()},
			flushed: []string{first}, change: warmUp, asks: second, toDrop: 1},
		"all have dropped them": {servers: []*server{able().asked(time.Hour, "new year"), able().asked(0, "new year")},
			flushed: []string{first, second}, ended: true},
		"an earlier one has not": {servers: []*server{able().asked(time.Hour, "new year"), able().asked(0, "new year")},
			flushed: []string{second}, toDrop: 1, says: "server cache-0: memcached drops its items"},
		"one is silent": {servers: []*server{able().asked(0, "new year")}, toDrop: 1,
			change: func(v *View) { v.Agents.Reports[first] = Report{Err: errors.New("silent")} },
			says:   "server cache-0: its agent does not answer the operator; or remove the annotation"},
		"one is refused": {servers: []*server{able().asked(0, "new year")}, toDrop: 1,
			change: func(v *View) { v.Agents.Reports[first] = Report{Report: contract.Report{FlushProblem: "no"}} },
			says:   "server cache-0: no; or remove the annotation"},
		"one has no agent": {servers: []*server{updated(), able()}, toDrop: 2, says: "server cache-0 has no agent"},
		"not allowed": {servers: []*server{able()}, toDrop: 1, says: "spec.extraArgs has --disable-flush-all",
			change: func(v *View) { v.Memcached.Spec.ExtraArgs = []string{"--disable-flush-all"} }},
		"one stops with its items": {servers: []*server{able().withDrain().terminating(), able().asked(0, "new year")},
			flushed: []string{second}, toDrop: 1, says: "server cache-0 is about to stop with its items"},
		"items move": {servers: []*server{able()}, toDrop: 1,
			change: func(v *View) { v.Routing.List.Phase = contract.Purge }},
		"paused": {servers: []*server{able()}, toDrop: 1,
			change: func(v *View) { v.Memcached.Spec.Paused = true }},
		"the clock is behind": {servers: []*server{able().asked(-time.Hour, "old")}, asks: first, toDrop: 1},
		"no server":           {ended: true},
		"none is asked for": {servers: []*server{able().asked(0, "new year")},
			change: func(v *View) { v.Memcached.Annotations = nil }},
		"it has ended": {servers: []*server{able()}, change: func(v *View) { v.Workload = ended("new year") }},
	} {
		v := flushView(tt.servers, tt.flushed...)
		if tt.change != nil {
			tt.change(&v)
		}
		s := flush(v)
		var asked []string
		for _, a := range s.Annotate {
			before, _ := flushOf(a.Pod)
			a.Pod.Annotations = map[string]string{a.Key: a.Value}
			if at, value := flushOf(a.Pod); value == flushValue("new year") && at.After(before) {
				asked = append(asked, a.Pod.Name)
			}
		}
		asks := strings.Join(asked, " ")
		v = flushView(tt.servers, tt.flushed...)
		if tt.change != nil {
			tt.change(&v)
		}
		ended := s.Flushed == flushValue("new year")
		if toDrop := v.Flush().ToDrop(v); asks != tt.asks || toDrop != tt.toDrop || ended != tt.ended ||
			!strings.HasPrefix(s.Progress.Text, tt.says) || (asks != "" || len(s.Stop) > 0) != s.Final {
			t.Errorf("%s: asks %q, %d have items to drop, ended %q, says %q, want %+v", name, asks, toDrop, s.Flushed,
				s.Progress.Text, tt)
		}
	}
}

func warmUp(v *View) {
	v.Memcached.Spec.Rollout.WarmUp = &v1alpha1.WarmUpSpec{Percent: 80, TimeoutSeconds: 600}
}

// TestFlushTakenBack: once the annotation is removed, a server that was asked, and may not have noticed, is asked no
// more.
func TestFlushTakenBack(t *testing.T) {
	t.Parallel()
	v := flushView([]*server{updated().able().asked(0, "new year"), updated().able().asked(0, "old"), updated().able()})
	v.Memcached.Annotations = nil
	s := flush(v)
	if len(s.Annotate) != 1 || s.Annotate[0].Pod.Name != "cache-0" || s.Annotate[0].Value != "" {
		t.Errorf("got %+v, want cache-0 asked no more", s.Annotate)
	}
}
