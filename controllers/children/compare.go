package children

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Change is a child that is not as desired.
type Change struct {
	Key
	// Existing is the observed child; nil if the child must be created.
	Existing client.Object
	// Owned holds the fields of Existing that the operator owns.
	Owned runtime.ApplyConfiguration
	// Desired is nil where the child must be deleted.
	Desired runtime.ApplyConfiguration
	// Guards are the children that must be as desired before this one is written.
	Guards []Key
	// DryRun holds the fields that the operator would own after an apply, by a dry run; nil if there was none.
	DryRun runtime.ApplyConfiguration
	// DryRunErr is the error of a dry run that gave no result; nil otherwise. A refusal, as invalid or forbidden, is a
	// result.
	DryRunErr error
	// Stored is the child after the change was written; nil where it was deleted. Adopted says that it was an orphan.
	Stored  client.Object
	Adopted bool

	kind Kind
	// interrupted says that the operator stopped between the merge patch and the apply of an earlier write.
	interrupted bool
}

// After returns the fields that the operator would own after the change: those of the dry run if there was one,
// otherwise those of Desired.
func (c *Change) After() runtime.ApplyConfiguration {
	if c.DryRun != nil {
		return c.DryRun
	}
	return c.Desired
}

// Compare returns the children that differ from the desired ones, in the order of desired, and then the children to
// delete: those that were applied for the owner or its predecessor and are not desired. It compares only the fields
// that managedFields records as ours, so that fields of others never matter. Items that others added to our lists are
// removed when a child is written for another reason, those in a pod template when it changes: no server is replaced
// only for them.
//
// guards are, for a desired child, the children that must be written before it. With dryRun, a dry run finds out
// whether a write would change anything. Its result is stored in State.
func (s *Set) Compare(ctx context.Context, desired []runtime.ApplyConfiguration,
	guards map[runtime.ApplyConfiguration][]runtime.ApplyConfiguration, observed Observed,
	dryRun bool) ([]Change, error) {
	var changes []Change
	wanted := map[Key]bool{}
	for _, config := range desired {
		kind, key, err := s.find(config)
		if err != nil {
			return nil, err
		}
		c := Change{Key: key, Desired: config, kind: kind}
		for _, guard := range guards[config] {
			_, key, err := s.find(guard)
			if err != nil {
				return nil, err
			}
			c.Guards = append(c.Guards, key)
		}
		wanted[key] = true
		if err := s.LookUp(ctx, key, observed); err != nil {
			return nil, err
		}
		if c.Existing = observed[key]; c.Existing != nil {
			if c.Owned, err = s.Extract(c.Existing); err != nil {
				return nil, err
			}
			c.interrupted = slices.ContainsFunc(c.Existing.GetManagedFields(), s.isOurUpdate)
			switch {
			case c.interrupted:
			case equality.Semantic.DeepEqual(c.Owned, config):
				delete(s.State.dryRuns, key)
				continue
			case s.isNoOp(ctx, &c, dryRun):
				continue
			}
		}
		changes = append(changes, c)
	}
	applied := len(changes)
	for _, kind := range s.Kinds {
		for key, obj := range observed {
			isOurs := s.Relation(obj) == Ours && obj.GetDeletionTimestamp() == nil
			if key.Kind == kind.Kind && !wanted[key] && (isOurs || s.isLeftover(obj)) && s.isApplied(obj) {
				changes = append(changes, Change{Key: key, Existing: obj, kind: kind})
			}
		}
	}
	// Always in the same order, so that tests can let each request fail.
	slices.SortFunc(changes[applied:], func(a, b Change) int { return cmp.Compare(a.String(), b.String()) })
	return changes, nil
}

// isNoOp reports whether an apply of a child would change nothing: an admission plugin may override fields of ours.
func (s *Set) isNoOp(ctx context.Context, c *Change, dryRun bool) bool {
	key := dryRunKey{digest(c.Desired), digest(c.Owned)}
	if noOp, ok := s.State.dryRuns[c.Key][key]; ok {
		return noOp
	}
	if !dryRun || s.Relation(c.Existing) != Ours {
		return false
	}
	response, err := s.apply(ctx, c, client.DryRunAll)
	if err == nil {
		c.DryRun, err = s.Extract(response)
	}
	if err != nil {
		if !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
			c.DryRunErr = fmt.Errorf("dry-run the write of %s: %w", c.Key, err)
		}
		return false
	}
	noOp := digest(c.DryRun) == key.existing
	if s.State.dryRuns == nil {
		s.State.dryRuns = map[Key]map[dryRunKey]bool{}
	}
	if s.State.dryRuns[c.Key] == nil {
		s.State.dryRuns[c.Key] = map[dryRunKey]bool{}
	}
	s.State.dryRuns[c.Key][key] = noOp
	return noOp
}

// digest identifies a value by its JSON form.
func digest(v any) uint64 {
	h := fnv.New64a()
	_ = json.NewEncoder(h).Encode(v) // cannot fail: JSON types, written to memory
	return h.Sum64()
}

// ExpectationTimeout limits the wait for the informer cache to show our own write. After that, the cache is trusted
// again: an object that was deleted right after the write may never appear in it.
const ExpectationTimeout = 5 * time.Second

// State is what is remembered about the children of one owner between reconciles. It saves requests, and is never
// needed for a correct result: after a restart it is empty. It is used by one reconcile at a time.
type State struct {
	// ownerVerified says that the informer cache holds no older owner than the one that another process has seen.
	ownerVerified bool
	expectations  map[Key]expectation
	dryRuns       map[Key]map[dryRunKey]bool
}

// expectation is our last write to an object that the informer cache has not shown yet.
type expectation struct {
	resourceVersion string
	expires         time.Time
}

// dryRunKey identifies a dry run by digests of the desired and the existing child. State.dryRuns stores whether the
// write would be a no-op, until the child is written.
type dryRunKey struct{ desired, existing uint64 }

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
