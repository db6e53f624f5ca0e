package children

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Reasons of a StallError.
const (
	// ReasonConflict says that an object of a needed name exists and is somebody else's.
	ReasonConflict = "Conflict"
	// ReasonInvalid says that the API server refuses a child.
	ReasonInvalid = "Invalid"
)

// StallError says that only a change from outside helps. errors.As finds it among joined errors.
type StallError struct{ Reason, Message string }

func (e *StallError) Error() string { return e.Message }

func (s *Set) conflictWith(key Key) error {
	return &StallError{ReasonConflict, fmt.Sprintf("%s exists and is not controlled by this %s; remove or rename one of the two",
		key, s.Owner.GVK.Kind)}
}

// classify makes a StallError of an answer of the API server that no retry changes.
func classify(err error, action string, key Key) error {
	err = fmt.Errorf("%s %s: %w", action, key, err)
	if apierrors.IsInvalid(err) {
		return &StallError{ReasonInvalid, err.Error()}
	}
	return err
}

// IsConflict reports whether a write failed because the object was replaced or changed since it was read: the resource
// version or the uid that the write named is not the current one, or the object is being deleted. For a uid that
// differs from that of an existing object, the API server answers that the field is immutable, and for a finalizer on
// an object that is being deleted, that none can be added.
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
