package cache

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/tests/cluster"
)

// scenario is something that happens to a cache.
type scenario struct {
	name string
	theory
	renewed int // servers that start without keys
	do      func(context.Context, *subject) error
}

// renewedOf returns the number of servers of a variant that start without keys.
func (c scenario) renewedOf(v variant) int {
	if c.best == 1 && v.ring != podAddresses {
		return 0
	}
	return c.renewed
}

// Theories for n servers. A client that hashes the addresses of pods sees a replaced server as a new one: when the old
// pod stops, its keys move to the other servers; when the new pod is ready, it takes a share of all keys.
const n = float64(servers)

var (
	allReplaced = theory{best: 0, keptByProxy: 1, keptByAddress: 0, movedByAddress: 2}
	oneReplaced = theory{best: (n - 1) / n, keptByProxy: 1, keptByAddress: (n - 1) / (n + 1), movedByAddress: 2 / n}
	oneKilled   = theory{best: (n - 1) / n, keptByAddress: (n - 1) / n, movedByAddress: 1 / n, unannounced: true}
	oneMore     = theory{best: n / (n + 1), keptByProxy: 1, keptByAddress: n / (n + 1), movedByAddress: 1 / (n + 1)}
	grown       = theory{best: 1, movedByAddress: 2} // a Deployment replaces its servers
	untouched   = theory{best: 1, keptByAddress: 1}
	// Each key is missed after the flush, and those that move also when a server is added, and when it is removed.
	flushed = theory{missed: 1 + 2/(n+1), noOld: true}
)

// plain returns the scenarios that need no Secret.
func plain(w world, operator *cluster.Operator) []scenario {
	patch := func(json string) func(context.Context, *subject) error {
		return func(ctx context.Context, s *subject) error { return s.patch(ctx, json) }
	}
	// start restarts the operator once for all caches.
	start := func(defaultImage string) func(context.Context, *subject) error {
		do := sync.OnceValue(func() error {
			operator.DefaultImage = defaultImage
			return errors.Join(operator.Stop(w.Context()), operator.Start(w.Context(), 1))
		})
		return func(context.Context, *subject) error { return do() }
	}
	return []scenario{
		{"rolling update", allReplaced, servers, patch(`{"spec": {"threads": 2}}`)},
		{"more memory", grown, servers, patch(`{"spec": {"memory": "96Mi"}}`)},
		{"scale 3 to 4", oneMore, 1, patch(`{"spec": {"size": 4}}`)},
		{"scale 4 to 3", oneMore, 0, patch(`{"spec": {"size": 3}}`)},
		{"scale 3 to 4 and back", oneMore, 0, func(ctx context.Context, s *subject) error {
			return s.resizeAndBack(ctx, func() error { return nil })
		}},
		{"scale 3 to 4, flush, and back", flushed, 0, func(ctx context.Context, s *subject) error {
			return s.resizeAndBack(ctx, func() error {
				before := time.Now()
				err := s.patch(ctx, `{"metadata": {"annotations": {"`+v1alpha1.FlushedAtAnnotation+`": "now"}}}`)
				if err != nil {
					return err
				}
				return s.eventually(ctx, func(now state) error {
					c := meta.FindStatusCondition(now.mc.Status.Conditions, v1alpha1.ConditionReady)
					if c == nil || c.LastTransitionTime.Time.Before(before.Truncate(time.Second)) {
						return errors.New("the flush has not begun")
					}
					return now.settled()
				})
			})
		}},
		{"deleted pod", oneReplaced, 1, func(ctx context.Context, s *subject) error {
			return s.api.Delete(ctx, s.first())
		}},
		{"killed server", oneKilled, 1, func(ctx context.Context, s *subject) error {
			return w.cluster.KillContainer(ctx, s.namespace, s.first().Name, names.Container)
		}},
		{"operator restart", untouched, 0, start("")},
		{"operator upgrade", untouched, 0, start("docker.io/library/memcached:1.6")},
	}
}

// resizeAndBack adds a server, calls a function once clients have missed each key that moved, and removes the server.
func (s *subject) resizeAndBack(ctx context.Context, between func() error) error {
	if err := s.patch(ctx, `{"spec": {"size": 4}}`); err != nil {
		return err
	}
	err := s.eventually(ctx, func(now state) error {
		if len(now.pods) != 4 {
			return errors.New("not four servers")
		}
		return now.settled()
	})
	if err != nil {
		return err
	}
	time.Sleep(2 * keys * time.Second / rate)
	if err := between(); err != nil {
		return err
	}
	return s.patch(ctx, `{"spec": {"size": 3}}`)
}

// first returns the first pod. Removing the first server is the worst case for a client that hashes keys to positions
// in a list.
func (s *subject) first() *corev1.Pod {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.now.pods[0].DeepCopy()
}

// secured returns the variants that support TLS and passwords, with both.
func secured(variants []variant) (secured []variant) {
	for _, v := range variants {
		if v.ring != proxied {
			v.object += "-tls"
			v.spec += ", tls: {secretName: certificate}, auth: {secretName: passwords}"
			secured = append(secured, v)
		}
	}
	return secured
}
