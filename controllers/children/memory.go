package children

import (
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// StaleFor bounds the wait for the cache to show our own write. Past it, what the cache shows counts again: an object
// that was written and then deleted at once may never appear in it.
const StaleFor = 5 * time.Second

// Memory is what is remembered of one owner between two reconciles. It saves requests and waiting, and is never needed
// for a correct result: after a restart it is empty. It is used by one reconcile at a time.
type Memory struct {
	expectations map[Key]expectation
	dryRuns      map[Key]dryRunResult
}

// expectation is our last write to an object that the cache has not shown yet.
type expectation struct {
	resourceVersion string
	expires         time.Time
}

// dryRunResult says whether an apply of a desired child over an existing one, both identified by digests, would change
// anything of ours: an admission plugin may have the last word.
type dryRunResult struct {
	desired, existing uint64
	noOp              bool
}

// Wrote remembers the resource version that the API server answered to a write.
func (m *Memory) Wrote(key Key, resourceVersion string, now time.Time) {
	if m.expectations == nil {
		m.expectations = map[Key]expectation{}
	}
	m.expectations[key] = expectation{resourceVersion, now.Add(StaleFor)}
}

// Stale reports whether what the cache shows of the children, and of further objects, is older than our last writes.
// Then nothing follows from what the cache shows.
func (m *Memory) Stale(observed Observed, now time.Time) bool {
	stale := false
	for key, e := range m.expectations {
		if now.Before(e.expires) && older(observed[key], e.resourceVersion) {
			stale = true
			continue
		}
		delete(m.expectations, key)
	}
	if len(m.expectations) == 0 {
		m.expectations = nil // most objects are not written for long, and an empty map holds room for what it had
	}
	return stale
}

func (m *Memory) remember(key Key, r dryRunResult) {
	if m.dryRuns == nil {
		m.dryRuns = map[Key]dryRunResult{}
	}
	m.dryRuns[key] = r
}

func older(obj client.Object, resourceVersion string) bool {
	if obj == nil {
		return true
	}
	c, err := resourceversion.CompareResourceVersion(obj.GetResourceVersion(), resourceVersion)
	return err == nil && c < 0
}
