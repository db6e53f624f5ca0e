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
	written  map[Key]write
	compared map[Key]comparison
	races    int // reconciles in a row in which a child changed under our hands
}

// write is our last write to an object that the cache has not shown yet.
type write struct {
	resourceVersion string
	expires         time.Time
}

// comparison is what the API server makes of a desired child, where that is not just the desired child: an admission
// plugin has the last word.
type comparison struct {
	desired, own uint64 // digests
	settled      bool   // an apply changes nothing
	// answer is what the API server made of the desired child; nil once own is known. To extract what is owned of the
	// answer is most of the work of an apply, and rarely needed.
	answer client.Object
}

// NewMemory returns an empty one.
func NewMemory() *Memory {
	return &Memory{}
}

// Wrote remembers the resource version that the API server answered to a write.
func (m *Memory) Wrote(key Key, resourceVersion string, now time.Time) {
	if m.written == nil {
		m.written = map[Key]write{}
	}
	m.written[key] = write{resourceVersion, now.Add(StaleFor)}
}

// Stale reports whether what the cache shows of the children, and of further objects, is older than our last writes.
// Then nothing follows from what the cache shows.
func (m *Memory) Stale(observed Observed, now time.Time) bool {
	stale := false
	for key, w := range m.written {
		if now.Before(w.expires) && older(observed[key], w.resourceVersion) {
			stale = true
			continue
		}
		delete(m.written, key)
	}
	if len(m.written) == 0 {
		m.written = nil // most objects are not written for long, and an empty map holds room for what it had
	}
	return stale
}

// remember keeps a comparison.
func (m *Memory) remember(key Key, c comparison) {
	if m.compared == nil {
		m.compared = map[Key]comparison{}
	}
	m.compared[key] = c
}

func older(obj client.Object, resourceVersion string) bool {
	if obj == nil {
		return true
	}
	c, err := resourceversion.CompareResourceVersion(obj.GetResourceVersion(), resourceVersion)
	return err == nil && c < 0
}
