package children

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Result is what became of changes.
type Result struct {
	// Written are the changes that changed something.
	Written []Written
	// Waiting says what must be gone before children can be created; empty for nothing.
	Waiting string
	// Err joins the errors. Those that no retry helps against are StallErrors.
	Err error
	// Raced says that a child changed under our hands, which the cache will show in a moment.
	Raced bool
	// NamespaceTerminating says that nothing can be created any more.
	NamespaceTerminating bool
}

// Written is a change that was made.
type Written struct {
	Change
	// Now is the child after the write; nil where it was deleted.
	Now client.Object
	// Adopted says that the child was an orphan.
	Adopted bool
}

// Apply makes the changes, all of them even where one fails. alive says that the owner is known to exist and not to be
// going away; where it is not, Apply asks before it creates or adopts, and returns ErrOwnerGone.
func (s *Set) Apply(ctx context.Context, owner Owner, changes []Change, mem *Memory, alive bool, now time.Time) Result {
	var r Result
	var errs []error
	raced := false
	for _, c := range changes {
		if !alive && (c.Live == nil || owner.Relation(c.Live) == Orphaned) {
			if err := s.proveAlive(ctx, owner); err != nil {
				r.Err = errors.Join(append(errs, err)...)
				return r
			}
			alive = true
		}
		switch err := s.change(ctx, owner, c, mem, now, &r); {
		case err == nil:
		case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			r.NamespaceTerminating = true
		default:
			raced = raced || IsRace(err)
			if IsRace(err) && mem.races == 0 {
				r.Raced = true // an admission plugin that answers so does it again
			} else {
				errs = append(errs, err)
			}
		}
	}
	mem.races++
	if !raced {
		mem.races = 0
	}
	r.Err = errors.Join(errs...)
	return r
}

func (s *Set) change(ctx context.Context, owner Owner, c Change, mem *Memory, now time.Time, r *Result) error {
	if c.Desired == nil {
		if err := s.Delete(ctx, c.Live, metav1.DeletePropagationBackground); err != nil {
			return err
		}
		r.Written = append(r.Written, Written{Change: c})
		return nil
	}
	adopt := false
	if c.Live != nil {
		relation := owner.Relation(c.Live)
		switch {
		case relation == Foreign:
			return conflict(c.Key, owner)
		case relation == OfPredecessor, c.Live.GetDeletionTimestamp() != nil:
			r.Waiting = fmt.Sprintf("waiting for the end of %s", c.Key)
			return nil
		}
		adopt = relation == Orphaned
	}
	delete(mem.compared, c.Key)
	answer, err := s.apply(ctx, c.kind, c.Desired, c.Live)
	if err != nil {
		if IsRace(err) {
			return fmt.Errorf("apply %s: %w", c.Key, err)
		}
		return classify(err, "apply", c.Key)
	}
	mem.Wrote(c.Key, answer.GetResourceVersion(), now)
	own, err := s.Own(answer)
	if err != nil {
		return err
	}
	mem.compared[c.Key] = comparison{digest(c.Desired), digest(own), true}
	if c.Live == nil || c.Live.GetResourceVersion() != answer.GetResourceVersion() {
		r.Written = append(r.Written, Written{c, answer, adopt})
	}
	return nil
}

// Delete deletes a child that is still as it was observed. The resource version is a precondition too: if the garbage
// collector has just orphaned the child, it is not ours to delete.
func (s *Set) Delete(ctx context.Context, obj client.Object, propagation metav1.DeletionPropagation) error {
	err := s.Client.Delete(ctx, obj, client.PropagationPolicy(propagation),
		client.Preconditions{UID: ptr.To(obj.GetUID()), ResourceVersion: ptr.To(obj.GetResourceVersion())})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete %s: %w", obj.GetName(), err)
	}
	return nil
}
