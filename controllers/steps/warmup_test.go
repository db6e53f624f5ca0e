package steps

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// warm annotates a server as warm since it became ready.
func (s *server) warm() *server {
	metav1.SetMetaDataAnnotation(&s.ObjectMeta, v1alpha1.WarmAnnotation, warmSince(&s.Pod))
	return s
}

// TestWarmUp: the next server is replaced once the new one is warm, at the latest after the timeout.
func TestWarmUp(t *testing.T) {
	t.Parallel()
	spec := v1alpha1.RolloutSpec{MaxUnavailable: 1, WarmUp: &v1alpha1.WarmUpSpec{Percent: 80, TimeoutSeconds: 600}}
	for name, tt := range map[string]struct {
		minReady                int32
		servers                 []*server
		replace, warming, peers []string
		wait                    time.Duration
	}{
		"none is new": {servers: []*server{outdated(), outdated()}, replace: []string{"cache-1"},
			peers: []string{"cache-0"}},
		"a new one warms up": {servers: []*server{outdated(), outdated(), updated().readyFor(time.Minute)},
			warming: []string{"cache-2"}, peers: []string{"cache-1", "cache-0"}, wait: 9 * time.Minute},
		"a new one is warm": {servers: []*server{outdated(), outdated(), updated().readyFor(time.Minute).warm()},
			replace: []string{"cache-1"}, peers: []string{"cache-0"}},
		"a warm one became ready again": {servers: []*server{outdated(), updated().warm().readyFor(time.Minute)},
			warming: []string{"cache-1"}, peers: []string{"cache-0"}, wait: 9 * time.Minute},
		"the timeout is over": {servers: []*server{outdated(), updated().readyFor(10 * time.Minute)},
			replace: []string{"cache-0"}},
		"minReadySeconds comes first": {minReady: 90, servers: []*server{outdated(), updated().readyFor(time.Minute)},
			peers: []string{"cache-0"}, wait: 30 * time.Second},
		"the last one need not warm up": {servers: []*server{updated(), updated().readyFor(time.Minute)}},
		"an outdated one is down": {servers: []*server{outdated().down(), updated().readyFor(time.Minute)},
			replace: []string{"cache-0"}},
	} {
		set, pods := rolloutOf(int32(len(tt.servers)), tt.minReady, tt.servers)
		s := nextRollout(set, pods, spec, now)
		replace, warming, peers := podNames(s.Replace), podNames(s.Warming), podNames(s.Peers)
		if !slices.Equal(replace, tt.replace) || !slices.Equal(warming, tt.warming) || !slices.Equal(peers, tt.peers) ||
			s.Wait != tt.wait {
			t.Errorf("%s: replaces %v, %v warm up beside %v, waits %s, want %+v", name, replace, warming, peers, s.Wait, tt)
		}
	}
}

// TestShare: a server is compared with the average of the others.
func TestShare(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		items   int64
		others  []int64
		percent int
		ok      bool
	}{
		{0, nil, 0, false},
		{0, []int64{0, 0}, 100, true},
		{0, []int64{10}, 0, true},
		{79, []int64{90, 110}, 79, true},
		{300, []int64{90, 110}, 300, true},
		{1 << 40, []int64{1 << 40, 1 << 40}, 100, true},
	} {
		if percent, ok := share(tt.items, tt.others); percent != tt.percent || ok != tt.ok {
			t.Errorf("%d items beside %v: got %d %%, %t", tt.items, tt.others, percent, ok)
		}
	}
}
