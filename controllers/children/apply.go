package children

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Result is the outcome of Apply.
type Result struct {
	// Written are the changes that were not no-ops.
	Written []Change
	// Failed are the changes that were not written.
	Failed map[Key]bool
	// Waiting is a message that names an object whose deletion a child waits for; empty for none.
	Waiting string
	// Err joins the errors. Those that no retry can fix are StallErrors.
	Err error
}

// errTerminating means that an existing object must be deleted before the child can be written.
var errTerminating = errors.New("is being deleted")

// Apply writes the changes in order. After an error it continues, except with changes that the failed one guards. A
// leftover of a deleted owner is deleted in any case.
//
// Unless the owner is New, it reads the owner from the API server first in three cases, and returns ErrStaleOwner if
// the informer cache shows an older one. Nothing may be created or adopted for a deleted owner: the garbage collector
// may already have searched for its children. A child of another owner of the same name may only be deleted if that
// owner is the older one. And the first changes of a process may be those of an older owner: the cache of a standby
// that takes over may be late, and would undo what the former leader wrote.
func (s *Set) Apply(ctx context.Context, changes []Change, now time.Time) Result {
	r := Result{Failed: map[Key]bool{}}
	var errs []error
	var ownerErr error
	isVerified := s.New
	s.State.ownerVerified = s.State.ownerVerified || isVerified
	for _, c := range changes {
		isLeftover := c.Existing != nil && s.isLeftover(c.Existing)
		if !isLeftover && slices.ContainsFunc(c.Guards, func(guard Key) bool { return r.Failed[guard] }) {
			r.Failed[c.Key] = true // the guard's error is reported
			continue
		}
		needsOwner := !s.State.ownerVerified || c.Existing == nil || isLeftover || s.Relation(c.Existing) == Orphaned
		if needsOwner && !isVerified {
			if ownerErr == nil {
				ownerErr = s.verifyOwner(ctx)
				isVerified = ownerErr == nil
				if errors.Is(ownerErr, ErrStaleOwner) {
					return Result{Err: ownerErr}
				}
				errs = append(errs, ownerErr)
			}
			if ownerErr != nil {
				r.Failed[c.Key] = true
				continue
			}
		}
		delete(s.State.dryRuns, c.Key)
		existing := c.Existing
		response, err := s.writeChange(ctx, &c)
		switch {
		case errors.Is(err, errTerminating):
			r.Failed[c.Key], r.Waiting = true, fmt.Sprintf("waiting for %s to be deleted", c.Key)
		case err != nil:
			r.Failed[c.Key] = true
			errs = append(errs, err)
		case response == nil:
			r.Written = append(r.Written, c)
		default:
			s.State.Expect(c.Key, response.GetResourceVersion(), now)
			if existing == nil || existing.GetResourceVersion() != response.GetResourceVersion() {
				c.Stored, c.Adopted = response, existing != nil && s.Relation(existing) == Orphaned
				r.Written = append(r.Written, c)
			}
		}
	}
	r.Err = errors.Join(errs...)
	return r
}

// writeChange writes one change. It returns the child after that; nil if the child was deleted.
func (s *Set) writeChange(ctx context.Context, c *Change) (client.Object, error) {
	if c.Desired == nil {
		return nil, s.Delete(ctx, c.Existing, metav1.DeletePropagationBackground)
	}
	if c.Existing != nil {
		switch relation := s.Relation(c.Existing); {
		case relation == Foreign:
			return nil, &StallError{ReasonConflict, fmt.Sprintf(
				"%s exists and is not controlled by this %s; remove or rename one of the two", c.Key, s.Owner.GVK.Kind)}
		case s.isLeftover(c.Existing):
			log.FromContext(ctx).Info("deleting a child of a deleted owner of the same name", "child", c.String())
			return nil, cmp.Or(s.Delete(ctx, c.Existing, metav1.DeletePropagationBackground), errTerminating)
		case relation == OfPredecessor, c.Existing.GetDeletionTimestamp() != nil:
			return nil, errTerminating
		}
	}
	response, err := s.write(ctx, c)
	if err == nil {
		return response, nil
	}
	err = fmt.Errorf("apply %s: %w", c.Key, err)
	if apierrors.IsInvalid(err) && !IsConflict(err) {
		err = &StallError{ReasonInvalid, err.Error()}
	}
	return nil, err
}

// absentVersion is a resource version that no object has: an apply with it creates the object, or is refused if the
// object exists.
const absentVersion = "1"

// write applies the desired child over the existing one, and returns the API server's response.
//
// An apply does not remove a list item that another manager owns, even if the operator owns the item too. If there are
// such items after an apply that did not keep the pod template, or the API server refuses the result, for example two
// ports of one name, a merge patch replaces all desired lists. Then the child is applied again. In managedFields, the
// API server records the merge patch as an Update entry of the operator. No later apply could remove the fields of that
// entry, so the entry is deleted before the second apply.
func (s *Set) write(ctx context.Context, c *Change) (response client.Object, err error) {
	if !c.interrupted {
		response, err = s.apply(ctx, c)
		switch {
		case c.Existing == nil, IsConflict(err), err != nil && !apierrors.IsInvalid(err):
			return response, err
		case err == nil:
			if e, err := s.extract(response); err != nil || !e.isChanged || keepsTemplate(c.Owned, c.Desired) {
				return response, err
			}
			c.Existing = response
		}
	}
	merged, mergeErr := s.merge(ctx, c)
	if mergeErr != nil {
		return nil, cmp.Or(err, mergeErr)
	}
	c.Existing = merged
	others := slices.DeleteFunc(merged.GetManagedFields(), s.isOurUpdate)
	if len(others) > 0 { // with an empty list, the next apply would assign all fields to a manager before-first-apply
		c.Existing, err = s.patch(ctx, c, types.MergePatchType, map[string]any{"metadata": map[string]any{
			"uid": merged.GetUID(), "managedFields": others}})
		if err != nil {
			return nil, err
		}
	}
	return s.apply(ctx, c)
}

// keepsTemplate reports whether a change of a workload keeps its pod template: then no server may be replaced.
func keepsTemplate(before, after runtime.ApplyConfiguration) (found bool) {
	var templates [2]any
	for i, config := range []runtime.ApplyConfiguration{before, after} {
		content, _ := runtime.DefaultUnstructuredConverter.ToUnstructured(config) // cannot fail: generated types
		templates[i], found, _ = unstructured.NestedFieldNoCopy(content, "spec", "template")
	}
	return found && equality.Semantic.DeepEqual(templates[0], templates[1])
}

// merge merges the desired spec into the existing child: each desired list then holds the desired items and no others.
// Fields and lists that are no longer desired stay until the apply.
func (s *Set) merge(ctx context.Context, c *Change) (client.Object, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(c.Desired)
	if err != nil {
		return nil, err
	}
	if content["spec"] == nil {
		return nil, fmt.Errorf("%s has no lists to merge", c.Key)
	}
	return s.patch(ctx, c, types.MergePatchType, map[string]any{"spec": content["spec"],
		"metadata": map[string]any{"uid": c.Existing.GetUID(), "resourceVersion": c.Existing.GetResourceVersion()}})
}

// apply applies the desired child over the existing one, and returns the API server's response.
func (s *Set) apply(ctx context.Context, c *Change, options ...client.PatchOption) (client.Object, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(c.Desired)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: content}
	if c.Existing == nil {
		u.SetResourceVersion(absentVersion) // protects an object that somebody else has just created
		return s.patch(ctx, c, types.ApplyPatchType, u.Object, options...)
	}
	// The uid keeps the apply from recreating a child that has just been deleted. The resource version keeps a former
	// leader from restoring an older child.
	u.SetUID(c.Existing.GetUID())
	u.SetResourceVersion(c.Existing.GetResourceVersion())
	options = append(slices.Clip(options), client.ForceOwnership)
	response, err := s.patch(ctx, c, types.ApplyPatchType, u.Object, options...)
	for try := 0; try < 3 && apierrors.IsConflict(err) && s.onlyStatusChanged(ctx, c, u); try++ {
		response, err = s.patch(ctx, c, types.ApplyPatchType, u.Object, options...)
	}
	return response, err
}

// onlyStatusChanged reports whether the apply conflicted only with a change of the child's status, which controllers
// write often while servers start. It puts the current resource version into the content to apply.
func (s *Set) onlyStatusChanged(ctx context.Context, c *Change, content *unstructured.Unstructured) bool {
	live := c.kind.Object.DeepCopyObject().(client.Object)
	if s.APIReader.Get(ctx, client.ObjectKeyFromObject(c.Existing), live) != nil {
		return false
	}
	content.SetResourceVersion(live.GetResourceVersion())
	return live.GetUID() == c.Existing.GetUID() && live.GetGeneration() == c.Existing.GetGeneration() &&
		live.GetGeneration() != 0 && maps.Equal(live.GetLabels(), c.Existing.GetLabels()) &&
		maps.Equal(live.GetAnnotations(), c.Existing.GetAnnotations()) &&
		equality.Semantic.DeepEqual(live.GetOwnerReferences(), c.Existing.GetOwnerReferences())
}

// patch sends a patch of a child. A typed object is answered in protobuf, which is cheaper to decode than JSON.
func (s *Set) patch(ctx context.Context, c *Change, patchType types.PatchType, content map[string]any,
	options ...client.PatchOption) (client.Object, error) {
	body, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	response := c.kind.Object.DeepCopyObject().(client.Object)
	response.SetNamespace(s.Owner.GetNamespace())
	response.SetName(c.Name)
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

// Reasons of a StallError.
const (
	// ReasonConflict means that a foreign object has the name of a child.
	ReasonConflict = "Conflict"
	// ReasonInvalid says that the API server refuses a child.
	ReasonInvalid = "Invalid"
)

// StallError is an error that no retry can fix: somebody must change something. errors.As finds it in joined errors.
type StallError struct{ Reason, Message string }

func (e *StallError) Error() string { return e.Message }

// IsConflict reports whether a write failed because the object was replaced or changed since it was read: the resource
// version or the uid that the write named is not the current one, or the object is being deleted. The API server
// reports two of these cases as Invalid: metadata.uid is immutable, and no finalizer can be added to an object that is
// being deleted.
func IsConflict(err error) bool {
	if apierrors.IsConflict(err) {
		return true
	}
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Field == "metadata.uid" || cause.Field == "metadata.finalizers" {
			return true
		}
	}
	return false
}
