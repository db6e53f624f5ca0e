package steps

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// flush gives a server a value of FlushAnnotation, with the time of the flush of TestFlush and this time before now.
func (s *server) flush(ago time.Duration, word string) *server {
	s.Annotations = map[string]string{v1alpha1.FlushAnnotation: "2026-01-02T03:00:00Z " +
		now.Add(-ago).Format(time.RFC3339) + word}
	return s
}

// able says that the agent reads FlushAnnotation.
func (s *server) able() *server {
	field := corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['" + v1alpha1.FlushAnnotation + "']"}
	s.Spec.Volumes = []corev1.Volume{{Name: "agent"}, {Name: "pod", VolumeSource: corev1.VolumeSource{
		DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{{FieldRef: &field}}}}}}
	return s
}

// TestFlushBegin: a flush begins once the agents of all servers can drop items, and no server is newer.
func TestFlushBegin(t *testing.T) {
	t.Parallel()
	able := func() *server { return updated().able() }
	for name, tt := range map[string]struct {
		servers []*server
		last    time.Time
		after   time.Duration
		cannot  string
	}{
		"all can":               {servers: []*server{able(), able()}},
		"one cannot":            {servers: []*server{able(), updated()}, cannot: "cache-1"},
		"one that ends cannot":  {servers: []*server{able(), updated().terminating()}},
		"one that waits cannot": {servers: []*server{able(), updated().unscheduled()}},
		"the clock is behind": {servers: []*server{able(), able().createdAfter(now.Add(time.Hour))},
			after: time.Hour + time.Second},
		"another one began then": {last: now, after: time.Second},
	} {
		_, pods := rolloutOf(int32(len(tt.servers)), 0, tt.servers)
		if at, cannot := FlushBegin(pods, tt.last, now); !at.Equal(now.Add(tt.after)) || cannot != tt.cannot {
			t.Errorf("%s: got %s and the server %q, want %s later and %q", name, at, cannot, tt.after, tt.cannot)
		}
	}
}

func (s *server) createdAfter(flush time.Time) *server {
	s.CreationTimestamp = metav1.NewTime(flush.Add(time.Second))
	return s
}

// TestFlush: the servers from before a flush drop their items, and the next one waits until the one before is warm.
func TestFlush(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	other := func() *server {
		s := updated()
		s.Annotations = map[string]string{v1alpha1.FlushAnnotation: "2025-01-02T03:00:00Z 2025-01-02T03:00:00Z warm"}
		return s
	}
	for name, tt := range map[string]struct {
		at                   time.Time
		servers              []*server
		left, asked, warming []string
		pending              int
	}{
		"no flush": {servers: []*server{updated()}},
		"none was asked": {at: at, servers: []*server{updated().notReady(), updated(), other()},
			left: []string{"cache-1", "cache-2", "cache-0"}, pending: 3},
		"the flush before is not this one": {at: at, servers: []*server{other()}, left: []string{"cache-0"}, pending: 1},
		"newer servers have nothing to drop": {at: at, servers: []*server{updated().createdAfter(at),
			updated().terminating().createdAfter(at), updated().unscheduled()}},
		"two serve until they may stop": {at: at, servers: []*server{updated().withDrain().terminating(),
			updated().flush(0, "").withDrain().terminating(),
			updated().flush(0, " flushed").withDrain().terminating()}, pending: 2},
		"one was asked": {at: at, servers: []*server{updated(), updated().flush(0, "")}, left: []string{"cache-0"},
			asked: []string{"cache-1"}, pending: 2},
		"one must warm up": {at: at, servers: []*server{updated(), updated().flush(9*time.Minute, " flushed")},
			left: []string{"cache-0"}, warming: []string{"cache-1"}, pending: 1},
		"one had time to warm up": {at: at, servers: []*server{updated(), updated().flush(10*time.Minute, " flushed")},
			left: []string{"cache-0"}, pending: 1},
		"one is warm": {at: at, servers: []*server{updated(), updated().flush(0, " warm")},
			left: []string{"cache-0"}, pending: 1},
		"the last need not be": {at: at, servers: []*server{updated().flush(0, " warm"), updated().flush(0, " flushed")}},
		"somebody broke the text": {at: at, servers: []*server{updated(), updated().flush(0, "x flushed")},
			left: []string{"cache-0"}, pending: 1},
	} {
		for _, s := range tt.servers {
			s.able()
		}
		tt.servers = append(tt.servers, updated(), updated().able().terminating()) // neither has anything to drop
		_, pods := rolloutOf(int32(len(tt.servers)), 0, tt.servers)
		f := ReadFlush(pods, tt.at)
		warming := podNames(f.Warming(&v1alpha1.WarmUpSpec{Percent: 80, TimeoutSeconds: 600}, now))
		if left, asked := podNames(f.Left), podNames(f.Asked); !slices.Equal(left, tt.left) ||
			!slices.Equal(asked, tt.asked) || !slices.Equal(warming, tt.warming) || f.Pending() != tt.pending {
			t.Errorf("%s: %v are left, %v are asked, %v warm up, %d are pending, want %+v", name, left, asked, warming,
				f.Pending(), tt)
		}
		if warming := f.Warming(nil, now); len(warming) > 0 {
			t.Errorf("%s: %v warm up, although spec.rollout has no warmUp", name, podNames(warming))
		}
	}
}

// FuzzFlushAnnotation: whatever somebody writes into the annotation of a server, the server is asked unless the agent
// reads the time of this flush, and is asked no more once the agent has reported.
func FuzzFlushAnnotation(f *testing.F) {
	at := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	const id = "2026-01-02T03:00:00Z"
	for _, annotation := range []string{"", id, id + " " + id, id + " " + id + " flushed", id + " x warm",
		id + "  flushed",
		"2025" + id[4:] + " " + id, id + " " + id + " flushed x", id + " ",
		" " + id + " x", id + "\t" + id} { // were once taken for asked, although no agent reads the time
		f.Add(annotation)
	}
	f.Fuzz(func(t *testing.T, annotation string) {
		_, pods := rolloutOf(1, 0, []*server{updated().able()})
		pod := &pods[0]
		pod.Annotations = map[string]string{v1alpha1.FlushAnnotation: annotation}
		flush := ReadFlush(pods, at)
		readsTime := strings.HasPrefix(annotation, id+" ")
		switch {
		case len(flush.Left) == 1:
			pod.Annotations[v1alpha1.FlushAnnotation] = flush.Ask(now)
			if flush = ReadFlush(pods, at); len(flush.Asked) != 1 {
				t.Fatalf("the server was asked, and is not: %+v", flush)
			}
		case !readsTime:
			t.Fatalf("the server is not asked: %+v", flush)
		}
		flush.Warming(&v1alpha1.WarmUpSpec{TimeoutSeconds: 600}, now)
		for _, state := range []FlushState{Flushed, Warm} {
			if flush.Pending()+len(flush.Cold) == 0 {
				return // it is warm
			}
			pod.Annotations[v1alpha1.FlushAnnotation] = FlushAnnotation(pod, state)
			flush = ReadFlush(pods, at)
			if cold := len(flush.Cold) == 1; flush.Pending() != 0 || cold != (state == Flushed) {
				t.Fatalf("%q: %+v", pod.Annotations[v1alpha1.FlushAnnotation], flush)
			}
		}
	})
}
