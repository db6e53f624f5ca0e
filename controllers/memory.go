package controllers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// staleFor bounds the wait for the cache to show our own write. Past it, what the cache shows counts again: an object that was
// written and then deleted at once may never appear in it.
const staleFor = 5 * time.Second

// memories holds what is remembered of each Memcached between reconciles. It saves requests and is never needed
// for a correct result: after a restart it is empty.
type memories struct{ m sync.Map }

func (m *memories) of(key types.NamespacedName) *memory {
	v, _ := m.m.LoadOrStore(key, &memory{answers: map[string]answer{}, verified: map[string]uint64{}})
	return v.(*memory)
}

func (m *memories) forget(key types.NamespacedName) { m.m.Delete(key) }

// memory is used by one reconcile at a time, because those of one object never overlap.
type memory struct {
	// answers are our writes that the cache has not shown yet, by kind.
	answers map[string]answer
	// verified is, by kind, the fingerprint of a desired child and of the fields that we own in the cached one, when the two
	// were found equal. Whoever changes a field of ours takes it out of that set, so an equal fingerprint means no drift.
	verified map[string]uint64
}

// answer is what the API server answered to a write.
type answer struct {
	resourceVersion string
	expires         time.Time
}

// wrote remembers the answer to a write.
func (m *memory) wrote(kind, resourceVersion string, now time.Time) {
	m.answers[kind] = answer{resourceVersion, now.Add(staleFor)}
}

// stale tells whether the cache, which shows kind at resourceVersion (empty: not at all), is older than our last write.
func (m *memory) stale(kind, resourceVersion string, now time.Time) bool {
	a, ok := m.answers[kind]
	if !ok {
		return false
	}
	if now.Before(a.expires) {
		if resourceVersion == "" {
			return true
		}
		if c, err := resourceversion.CompareResourceVersion(resourceVersion, a.resourceVersion); err == nil && c < 0 {
			return true
		}
	}
	delete(m.answers, kind)
	return false
}
