package children

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Result is the outcome of Apply.
type Result struct {
	// Written are the children that the API server has created, changed or deleted, in order.
	Written []Written
	// Failed are the children that were not written.
	Failed map[Key]bool
	// Waiting is a message that names an object whose deletion a child waits for; empty for none.
	Waiting string
	// Err joins the errors. Those that no retry can fix are StallErrors.
	Err error
}

// Written is a child that was written.
type Written struct {
	Key
	// After is the API server's response; nil if the child was deleted.
	After client.Object
	// Adopted says that the child was an orphan.
	Adopted bool
	// Reverted says which fields somebody else had changed since they were applied, and who; empty for none.
	Reverted string
	// HeldBack are fields of the pod template that an admission plugin would have changed; empty for none.
	HeldBack string
}

// change is a child that may not be as desired.
type change struct {
	Key
	existing client.Object              // nil if the child must be created
	desired  runtime.ApplyConfiguration // nil if the child must be deleted
	guards   []Key
	digest   uint64 // of desired
	drifted  bool   // somebody else changed the child since it was applied
	// preserveTemplate says that pods need not be replaced, and nobody is known to have changed the pod template.
	preserveTemplate bool
	template         any    // is applied instead of the desired one; nil for none
	heldBack         string // fields in which an admission plugin would have changed the template
}

// errTerminating means that an existing object must be deleted before the child can be written.
var errTerminating = errors.New("is being deleted")

// Changes are the children of an owner that may not be as desired.
type Changes []change

// Drifted reports whether somebody else changed a child since it was applied.
func (c Changes) Drifted(key Key) bool {
	return slices.ContainsFunc(c, func(c change) bool { return c.Key == key && c.drifted })
}

// Plan returns the children that may not be as desired: those that are missing, those of which the desired one was not
// the last that was applied, and those that somebody else has changed since. They are in the order of desired; after
// them come the children to delete: those that were applied for the owner or its predecessor and are not desired.
// guards are, for a desired child, those without which it is not written. preserve is a workload whose pod template
// stays; nil for none.
func (s *Set) Plan(ctx context.Context, desired []runtime.ApplyConfiguration,
	guards map[runtime.ApplyConfiguration][]runtime.ApplyConfiguration, preserve runtime.ApplyConfiguration,
	observed Observed) (Changes, error) {
	var changes Changes
	wanted := map[Key]bool{}
	for _, config := range desired {
		key := keyOf(config)
		wanted[key] = true
		if err := s.LookUp(ctx, key, observed); err != nil {
			return nil, err
		}
		c := change{Key: key, existing: observed[key], desired: config, digest: digest(config)}
		for _, guard := range guards[config] {
			c.guards = append(c.guards, keyOf(guard))
		}
		last, known := s.State.applied[key]
		isLastApplied := known && last.digest == c.digest
		c.drifted = isLastApplied && c.existing != nil && !last.resultedIn(&c)
		if c.drifted || !isLastApplied || c.existing == nil {
			c.preserveTemplate = config == preserve && c.existing != nil && s.Relation(c.existing) == Ours &&
				(!known || last.template == templateDigest(c.existing))
			changes = append(changes, c)
		}
	}
	applied := len(changes)
	for key, obj := range observed {
		isOurs := s.Relation(obj) == Ours && obj.GetDeletionTimestamp() == nil
		if !wanted[key] && (isOurs || s.isLeftover(obj)) && s.isApplied(obj) {
			changes = append(changes, change{Key: key, existing: obj})
		}
	}
	// Always in the same order, so that tests can let each request fail.
	slices.SortFunc(changes[applied:], func(a, b change) int { return cmp.Compare(a.String(), b.String()) })
	return changes, nil
}

// WouldChange reports whether an apply of the changes would change something. Dry runs find that out, until one does;
// State remembers those that would not. A child that the API server refuses counts as one that would change.
func (s *Set) WouldChange(ctx context.Context, changes Changes) (bool, error) {
	for _, c := range changes {
		if c.desired == nil || c.existing == nil || s.Relation(c.existing) != Ours {
			return true, nil
		}
		differs, err := s.wouldChange(ctx, &c)
		switch isRefused := apierrors.IsInvalid(err) || apierrors.IsForbidden(err); {
		case isRefused, err == nil && differs:
			return true, nil
		case err != nil:
			return true, fmt.Errorf("dry-run the write of %s: %w", c.Key, err)
		}
		s.State.remember(&c, c.existing)
	}
	return false, nil
}

// Apply writes the changes in order. After an error it continues, except with changes that the failed one guards. A
// leftover of a deleted owner is deleted in any case.
//
// Unless the owner is New, it reads the owner from the API server first in three cases, and returns ErrStaleOwner if
// the informer cache shows an older one. Nothing may be created or adopted for a deleted owner: the garbage collector
// may already have searched for its children. A child of another owner of the same name may only be deleted if that
// owner is the older one. And the first changes of a process may be those of an older owner: the cache of a standby
// that takes over may be late, and would undo what the former leader wrote.
func (s *Set) Apply(ctx context.Context, changes Changes, now time.Time) Result {
	r := Result{Failed: map[Key]bool{}}
	var ownerErr error
	s.State.ownerVerified = s.State.ownerVerified || s.New
	if !s.New && slices.ContainsFunc(changes, s.needsOwner) {
		if ownerErr = s.verifyOwner(ctx); errors.Is(ownerErr, ErrStaleOwner) {
			return Result{Err: ownerErr}
		}
	}
	errs := []error{ownerErr}
	broken := map[string]bool{} // kinds of which the API server cannot create an object now
	for _, c := range changes {
		isLeftover := c.existing != nil && s.isLeftover(c.existing)
		isGuarded := slices.ContainsFunc(c.guards, func(guard Key) bool { return r.Failed[guard] })
		if !isLeftover && isGuarded || ownerErr != nil && s.needsOwner(c) || c.existing == nil && broken[c.Kind] {
			r.Failed[c.Key] = true // the error of the guard, the owner or the other object is reported
			continue
		}
		if c.preserveTemplate {
			if changes, err := s.wouldChange(ctx, &c); err == nil && !changes { // the apply reports the error
				s.State.remember(&c, c.existing)
				continue
			}
		}
		before, drifted := c.existing, client.Object(nil)
		if c.drifted {
			drifted, _ = s.read(ctx, c.Key) // with all of managedFields
		}
		response, err := s.writeChange(ctx, &c)
		if !apierrors.IsConflict(err) { // otherwise nothing was written
			delete(s.State.applied, c.Key)
		}
		switch {
		case errors.Is(err, errTerminating):
			r.Failed[c.Key], r.Waiting = true, fmt.Sprintf("waiting for %s to be deleted", c.Key)
		case err != nil:
			r.Failed[c.Key] = true
			broken[c.Kind] = apierrors.IsInternalError(err) // such as a range of addresses that is full
			errs = append(errs, err)
		case response == nil:
			r.Written = append(r.Written, Written{Key: c.Key})
		default:
			s.State.Expect(c.Key, response.GetResourceVersion(), now)
			s.State.remember(&c, response)
			if before == nil || before.GetResourceVersion() != response.GetResourceVersion() {
				w := Written{Key: c.Key, After: response, Adopted: before != nil && s.Relation(before) == Orphaned,
					HeldBack: c.heldBack}
				if drifted != nil {
					w.Reverted = s.reverted(drifted, response)
				}
				r.Written = append(r.Written, w)
			}
		}
	}
	r.Err = Join(errs...)
	return r
}

// needsOwner reports whether a change needs an owner that was read from the API server.
func (s *Set) needsOwner(c change) bool {
	return !s.State.ownerVerified || c.existing == nil || s.isLeftover(c.existing) || s.Relation(c.existing) == Orphaned
}

// writeChange writes one change. It returns the child after that; nil if the child was deleted.
func (s *Set) writeChange(ctx context.Context, c *change) (client.Object, error) {
	if c.desired == nil {
		return nil, s.Delete(ctx, c.existing, metav1.DeletePropagationBackground)
	}
	if c.existing != nil {
		switch relation := s.Relation(c.existing); {
		case relation == Foreign:
			return nil, &StallError{ReasonConflict, fmt.Sprintf(
				"%s exists and is not controlled by this %s; remove or rename one of the two", c.Key, s.Owner.GVK.Kind)}
		case s.isLeftover(c.existing):
			log.FromContext(ctx).Info("deleting a child of a deleted owner of the same name", "child", c.String())
			return nil, cmp.Or(s.Delete(ctx, c.existing, metav1.DeletePropagationBackground), errTerminating)
		case relation == OfPredecessor, c.existing.GetDeletionTimestamp() != nil:
			return nil, errTerminating
		}
	}
	response, err := s.apply(ctx, c)
	isDuplicate := apierrors.HasStatusCause(err, metav1.CauseTypeFieldValueDuplicate)
	if c.existing != nil && isDuplicate && s.replaceLists(ctx, c) == nil {
		response, err = s.apply(ctx, c)
	}
	if err == nil {
		return response, nil
	}
	return nil, c.failure(err)
}

// absentVersion is a resource version that no object has: an apply with it creates the object, or is refused if the
// object exists.
const absentVersion = "1"

// apply applies the desired child over the existing one, and returns the API server's response.
func (s *Set) apply(ctx context.Context, c *change, options ...client.PatchOption) (client.Object, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(c.desired)
	if err != nil {
		return nil, err
	}
	if c.template != nil {
		content["spec"].(map[string]any)["template"] = c.template
	}
	metadata := content["metadata"].(map[string]any)
	if c.existing == nil {
		metadata["resourceVersion"] = absentVersion // protects an object that somebody else has just created
		return s.patch(ctx, c, types.ApplyPatchType, content, options...)
	}
	// The uid keeps the apply from recreating a child that has just been deleted. The resource version keeps a former
	// leader from restoring an older child.
	metadata["uid"], metadata["resourceVersion"] = string(c.existing.GetUID()), c.existing.GetResourceVersion()
	options = append(slices.Clip(options), client.ForceOwnership)
	response, err := s.patch(ctx, c, types.ApplyPatchType, content, options...)
	for try := 0; try < 3 && apierrors.IsConflict(err); try++ {
		live, readErr := s.read(ctx, c.Key)
		if readErr != nil || !OnlyStatusChanged(c.existing, live) {
			break
		}
		metadata["resourceVersion"] = live.GetResourceVersion()
		response, err = s.patch(ctx, c, types.ApplyPatchType, content, options...)
	}
	return response, err
}

// OnlyStatusChanged reports whether an object differs from an older version only in its status, which controllers write
// often while servers start. It is false for a kind without generations.
func OnlyStatusChanged(old, live client.Object) bool {
	return live.GetUID() == old.GetUID() && live.GetGeneration() == old.GetGeneration() && live.GetGeneration() != 0 &&
		maps.Equal(live.GetLabels(), old.GetLabels()) && maps.Equal(live.GetAnnotations(), old.GetAnnotations()) &&
		equality.Semantic.DeepEqual(live.GetOwnerReferences(), old.GetOwnerReferences())
}

// replaceLists replaces the lists in the spec of a child by the desired ones. An apply alone keeps the items that
// others have added to a list, and the API server may refuse the result: two ports of one name.
func (s *Set) replaceLists(ctx context.Context, c *change) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(c.desired)
	if err != nil {
		return err
	}
	lists, _ := content["spec"].(map[string]any)
	maps.DeleteFunc(lists, func(_ string, value any) bool { return reflect.TypeOf(value).Kind() != reflect.Slice })
	if len(lists) == 0 {
		return fmt.Errorf("%s has no lists", c.Key)
	}
	c.existing, err = s.patch(ctx, c, types.MergePatchType, map[string]any{"spec": lists,
		"metadata": map[string]any{"uid": c.existing.GetUID(), "resourceVersion": c.existing.GetResourceVersion()}})
	return err
}

// patch sends a patch of a child. A typed object is answered in protobuf, which is cheaper to decode than JSON.
func (s *Set) patch(ctx context.Context, c *change, patchType types.PatchType, content map[string]any,
	options ...client.PatchOption) (client.Object, error) {
	body, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	response := s.empty(c.Key)
	return response, s.Client.Patch(ctx, response, client.RawPatch(patchType, body),
		append(options, client.FieldOwner(s.FieldManager))...)
}

// Delete deletes an object unless it was changed since it was observed. The resource version is a precondition too: an
// object that the garbage collector has just orphaned must not be deleted.
func (s *Set) Delete(ctx context.Context, obj client.Object, propagation metav1.DeletionPropagation) error {
	err := s.Client.Delete(ctx, obj, client.PropagationPolicy(propagation),
		client.Preconditions{UID: ptr.To(obj.GetUID()), ResourceVersion: ptr.To(obj.GetResourceVersion())})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete %s: %w", obj.GetName(), err)
	}
	return nil
}
