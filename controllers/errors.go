package controllers

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// conflictError says that an object of a name that we need belongs to somebody else.
type conflictError struct{ kind, name string }

func (e *conflictError) Error() string {
	return fmt.Sprintf("%s %s exists and is not controlled by this Memcached; remove or rename one of the two", e.kind, e.name)
}

// reasonOf classifies an error, the one that a retry cannot mend first.
func reasonOf(err error) string {
	var conflict *conflictError
	switch {
	case errors.As(err, &conflict):
		return v1alpha1.ReasonConflict
	case apierrors.IsInvalid(err):
		return v1alpha1.ReasonInvalid
	default:
		return v1alpha1.ReasonProgressingWithRetry
	}
}

// stalls tells whether only a change from outside mends err.
func stalls(err error) bool {
	return err != nil && reasonOf(err) != v1alpha1.ReasonProgressingWithRetry
}

// errGone says that the Memcached is deleted or being deleted, which the cache does not show yet.
var errGone = errors.New("the Memcached is gone or being deleted")

// gone drops the errors of writing to a Memcached that does not exist any more. Our writes to it are forced, so a conflict can
// only be that of its uid.
func gone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
