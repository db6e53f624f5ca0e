package children

import (
	"encoding/json"
	"hash/fnv"
	"maps"
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ExpectationTimeout limits the wait for the informer cache to show our own write. After that, the cache is trusted
// again: an object that was deleted right after the write may never appear in it.
const ExpectationTimeout = 5 * time.Second

// State is what is remembered about the children of one owner between reconciles. It saves requests, and is never
// needed for a correct result: after a restart it is empty, and each child is applied, or dry-run, once more, which
// changes nothing.
// It is used by one reconcile at a time.
type State struct {
	// ownerVerified says that the informer cache holds no older owner than the one that another process has seen.
	ownerVerified bool
	expectations  map[Key]expectation
	applied       map[Key]applied
}

// expectation is our last write to an object that the informer cache has not shown yet.
type expectation struct {
	resourceVersion string
	expires         time.Time
}

// applied says what was last applied, or dry-run, and which child resulted.
type applied struct {
	digest          uint64 // of the desired child
	version         uint64 // of the existing child after the apply
	resourceVersion string // of the existing child after the apply
	template        uint64 // its pod template
}

// resultedIn reports whether the existing child of a change is the one after the apply. Usually its resource version
// says so, which is cheaper to compare than its content.
func (a applied) resultedIn(c *change) bool {
	return a.resourceVersion == c.existing.GetResourceVersion() || a.version == c.version(c.existing)
}

// remember stores that the desired child was applied, and which version of the existing child is the result.
func (s *State) remember(c *change, existing client.Object) {
	if s.applied == nil {
		s.applied = map[Key]applied{}
	}
	s.applied[c.Key] = applied{c.digest, c.version(existing), existing.GetResourceVersion(),
		templateDigest(existing)}
}

// Expect records the resource version of our last write, which the informer cache must show.
func (s *State) Expect(key Key, resourceVersion string, now time.Time) {
	if s.expectations == nil {
		s.expectations = map[Key]expectation{}
	}
	s.expectations[key] = expectation{resourceVersion, now.Add(ExpectationTimeout)}
}

// IsBehind reports whether any object in the informer cache is older than our last write to it. If so, the reconcile
// must not act on what the cache shows.
func (s *State) IsBehind(observed Observed, now time.Time) bool {
	behind := false
	for key, e := range s.expectations {
		if now.Before(e.expires) && isOlder(observed[key], e.resourceVersion) {
			behind = true
			continue
		}
		delete(s.expectations, key)
	}
	return behind
}

func isOlder(obj client.Object, resourceVersion string) bool {
	if obj == nil {
		return true
	}
	c, err := resourceversion.CompareResourceVersion(obj.GetResourceVersion(), resourceVersion)
	return err == nil && c < 0
}

// digest identifies a value by its JSON form.
func digest(v any) uint64 {
	h := fnv.New64a()
	_ = json.NewEncoder(h).Encode(v) // cannot fail: JSON types, written to memory
	return h.Sum64()
}

// version identifies what an existing child holds, besides its status and what others have added to its metadata.
func (c *change) version(existing client.Object) uint64 {
	values := []any{existing.GetUID(), existing.GetDeletionTimestamp().IsZero(), content(existing).Interface()}
	if controller := metav1.GetControllerOfNoCopy(existing); controller != nil {
		values = append(values, controller.UID)
	}
	metadata := c.metadata()
	for _, key := range slices.Sorted(maps.Keys(metadata.Labels)) {
		values = append(values, existing.GetLabels()[key])
	}
	for _, key := range slices.Sorted(maps.Keys(metadata.Annotations)) {
		values = append(values, existing.GetAnnotations()[key])
	}
	return digest(values)
}

// metadata returns that of the desired child, which each generated apply configuration of an object embeds.
func (c *change) metadata() *metav1ac.ObjectMetaApplyConfiguration {
	return reflect.ValueOf(c.desired).Elem().FieldByName("ObjectMetaApplyConfiguration").
		Interface().(*metav1ac.ObjectMetaApplyConfiguration)
}

// content returns the spec of a child, or the data of a ConfigMap.
func content(child client.Object) reflect.Value {
	fields := reflect.ValueOf(child).Elem()
	if spec := fields.FieldByName("Spec"); spec.IsValid() {
		return spec
	}
	return fields.FieldByName("Data")
}
