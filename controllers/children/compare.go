package children

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
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
	// Existing is the child in the informer cache; nil if the child must be created.
	Existing client.Object
	// Own holds the fields of Existing that the operator owns.
	Own runtime.ApplyConfiguration
	// Desired is nil where the child must be deleted.
	Desired runtime.ApplyConfiguration
	// Guards are the children that must be as desired before this one is written.
	Guards []Key
	// DryRun holds the fields that the operator would own after an apply, by a dry run; nil if there was none.
	DryRun runtime.ApplyConfiguration
	// DryRunErr is the error of a dry run that gave no result; nil otherwise. A refusal of the apply, as invalid or
	// forbidden, is a result.
	DryRunErr error

	kind         Kind
	foreignItems []operation // that take out what others added to lists of the child
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
// delete: those that were applied for the owner and are no longer desired. It compares only the fields that
// managedFields records as ours, so that fields that others set never matter.
//
// guards are, for a desired child, the children that must be written before it. With dryRun, a dry run of the apply
// finds out whether it would change anything, because an admission plugin may override fields of ours. The result is
// stored in Memory.
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
			own, err := s.own(c.Existing)
			if err != nil {
				return nil, err
			}
			c.Own = own.config
			same := equality.Semantic.DeepEqual(c.Own, config)
			if own.others {
				if c.foreignItems, err = s.listPatch(&c, false); err != nil {
					return nil, err
				}
			}
			if same && len(c.foreignItems) == 0 {
				delete(s.Memory.dryRuns, key)
				continue
			}
			if (same || s.isNoOp(ctx, &c, dryRun)) && s.isOfPolicy(ctx, &c) {
				continue
			}
		}
		changes = append(changes, c)
	}
	for _, kind := range s.Kinds {
		for key, obj := range observed {
			if key.Kind == kind.Kind && !wanted[key] && s.Relation(obj) == Ours && s.applied(obj) &&
				obj.GetDeletionTimestamp() == nil {
				changes = append(changes, Change{Key: key, Existing: obj, kind: kind})
			}
		}
	}
	return changes, nil
}

// isNoOp reports whether an apply of a child that differs would change none of our fields.
func (s *Set) isNoOp(ctx context.Context, c *Change, dryRun bool) bool {
	key := dryRunKey{digest(c.Desired), digest(c.Own)}
	if noOp, ok := s.Memory.dryRuns[c.Key][key]; ok {
		return noOp
	}
	if !dryRun || s.Relation(c.Existing) != Ours {
		return false
	}
	answer, err := s.apply(ctx, c, client.DryRunAll)
	if err != nil {
		if !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
			c.DryRunErr = fmt.Errorf("dry-run the apply of %s: %w", c.Key, err)
		}
		return false
	}
	after, err := s.own(answer)
	if err != nil {
		return false
	}
	c.DryRun = after.config
	noOp := digest(after.config) == key.existing
	s.Memory.remember(c.Key, key, noOp)
	return noOp
}

// isOfPolicy reports whether the items of others in lists of the child come back when they are taken out, because an
// admission plugin adds them; it is true where there are none.
func (s *Set) isOfPolicy(ctx context.Context, c *Change) bool {
	if len(c.foreignItems) == 0 {
		return true
	}
	before, err := s.own(c.Existing)
	if err != nil {
		return false
	}
	key := dryRunKey{digest(c.foreignItems), digest(before.content["spec"])} // controllers write the rest often
	if same, ok := s.Memory.dryRuns[c.Key][key]; ok {
		return same
	}
	answer, err := s.patchLists(ctx, c, c.foreignItems, client.DryRunAll)
	if err != nil {
		return false
	}
	after, err := s.own(answer)
	same := err == nil && after.others
	s.Memory.remember(c.Key, key, same)
	return same
}

// digest identifies a value by its JSON form.
func digest(v any) uint64 {
	h := fnv.New64a()
	_ = json.NewEncoder(h).Encode(v) // cannot fail: JSON types, written to memory
	return h.Sum64()
}

// StaleFor limits the wait for the informer cache to show our own write. After that, the cache is trusted again: an
// object that was deleted right after the write may never appear in it.
const StaleFor = 5 * time.Second

// Memory is the state of one owner between reconciles. It saves requests and waiting, and is never needed for a correct
// result: after a restart it is empty. It is used by one reconcile at a time.
type Memory struct {
	expectations map[Key]expectation
	dryRuns      map[Key]map[dryRunKey]bool
}

// expectation is our last write to an object that the cache has not shown yet.
type expectation struct {
	resourceVersion string
	expires         time.Time
}

// dryRunKey identifies by digests what a dry run was about. Its result says whether the write would change nothing of
// ours, because an admission plugin has the last word. It is forgotten when the child is written.
type dryRunKey struct{ desired, existing uint64 }

// Wrote records the resource version of our last write, which the informer cache must show.
func (m *Memory) Wrote(key Key, resourceVersion string, now time.Time) {
	if m.expectations == nil {
		m.expectations = map[Key]expectation{}
	}
	m.expectations[key] = expectation{resourceVersion, now.Add(StaleFor)}
}

// Stale reports whether any object in the informer cache is older than our last write to it. If so, the reconcile must
// not act on what the cache shows.
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
		m.expectations = nil // to free its memory: most objects are written rarely
	}
	return stale
}

func (m *Memory) remember(key Key, about dryRunKey, result bool) {
	if m.dryRuns == nil {
		m.dryRuns = map[Key]map[dryRunKey]bool{}
	}
	if m.dryRuns[key] == nil {
		m.dryRuns[key] = map[dryRunKey]bool{}
	}
	m.dryRuns[key][about] = result
}

func older(obj client.Object, resourceVersion string) bool {
	if obj == nil {
		return true
	}
	c, err := resourceversion.CompareResourceVersion(obj.GetResourceVersion(), resourceVersion)
	return err == nil && c < 0
}
