package children

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

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
