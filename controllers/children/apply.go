package children

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
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
	// AsDesired says that all changes were made, and that no admission plugin changed what was applied.
	AsDesired bool
}

// Written is a change that was made.
type Written struct {
	Change
	// Now is the child after the write; nil where it was deleted.
	Now client.Object
	// Adopted says that the child was an orphan.
	Adopted bool
}

// atOnce is how many children of one owner are written at the same time. The sooner all are there, the less often the
// controllers that follow them write.
const atOnce = 8

// Apply makes the changes, at the same time and all of them even where one fails. alive says that the owner is known to
// exist and not to be going away; where it is not, Apply asks before it creates or adopts, and returns ErrOwnerGone.
// Without an answer, it creates and adopts nothing, and makes the other changes.
func (s *Set) Apply(ctx context.Context, owner Owner, changes []Change, mem *Memory, alive bool, now time.Time) Result {
	var r Result
	needsOwner := func(c Change) bool { return c.Live == nil || owner.Relation(c.Live) == Orphaned }
	var errs []error
	if !alive && slices.ContainsFunc(changes, needsOwner) {
		switch err := s.proveAlive(ctx, owner); {
		case errors.Is(err, ErrOwnerGone):
			return Result{Err: err}
		case err != nil:
			errs = append(errs, err)
			changes = slices.DeleteFunc(slices.Clone(changes), needsOwner)
		}
	}
	answers, failures := make([]answer, len(changes)), make([]error, len(changes))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i := range changes {
		delete(mem.compared, changes[i].Key)
		group.Go(func() error {
			answers[i], failures[i] = s.change(ctx, owner, &changes[i])
			return nil
		})
	}
	_ = group.Wait()
	raced := false
	r.AsDesired = len(errs) == 0
	for i, err := range failures {
		r.AsDesired = r.AsDesired && err == nil && answers[i].asApplied
		switch {
		case err == nil:
			r.note(owner, changes[i], answers[i], mem, now)
		case errors.Is(err, errEnding):
			r.Waiting = fmt.Sprintf("waiting for the end of %s", changes[i].Key)
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

// errEnding says that an object must be gone before the child can be written.
var errEnding = errors.New("is about to end")

// answer is what the API server made of a child; its object is nil where the child was deleted.
type answer struct {
	client.Object
	asApplied bool // so that nothing else is owned than was desired
}

// change makes one change. A panic ends no more than that: controller-runtime recovers it in its own goroutine alone.
func (s *Set) change(ctx context.Context, owner Owner, c *Change) (a answer, err error) {
	defer func() {
		if r := recover(); r != nil {
			for _, handle := range utilruntime.PanicHandlers {
				handle(ctx, r) // logs the stack
			}
			err = fmt.Errorf("write %s: panic: %v [recovered]", c.Key, r)
		}
	}()
	if c.Desired == nil {
		return answer{asApplied: true}, s.Delete(ctx, c.Live, metav1.DeletePropagationBackground)
	}
	if c.Live != nil {
		switch relation := owner.Relation(c.Live); {
		case relation == Foreign:
			return a, conflict(c.Key, owner)
		case relation == OfPredecessor, c.Live.GetDeletionTimestamp() != nil:
			return a, errEnding
		}
	}
	a.Object, a.asApplied, err = s.apply(ctx, c.kind, c.Desired, c.Live)
	switch {
	case err == nil:
		return a, nil
	case IsRace(err):
		return a, fmt.Errorf("apply %s: %w", c.Key, err)
	}
	return a, classify(err, "apply", c.Key)
}

// note remembers a change that was made, and tells whether it changed something.
func (r *Result) note(owner Owner, c Change, a answer, mem *Memory, now time.Time) {
	if a.Object == nil {
		r.Written = append(r.Written, Written{Change: c})
		return
	}
	mem.Wrote(c.Key, a.GetResourceVersion(), now)
	if !a.asApplied {
		mem.remember(c.Key, comparison{desired: Digest(c.Desired), settled: true, answer: a.Object})
	}
	if c.Live == nil || c.Live.GetResourceVersion() != a.GetResourceVersion() {
		adopted := c.Live != nil && owner.Relation(c.Live) == Orphaned
		r.Written = append(r.Written, Written{c, a.Object, adopted})
	}
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
