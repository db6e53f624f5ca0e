package children

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Owner is an object that has children.
type Owner struct {
	client.Object
	// GVK is the owner's kind.
	GVK schema.GroupVersionKind
	// Labels are on every child of this owner, and on no child of another.
	Labels map[string]string
}

// Relation of an object to an owner.
type Relation int

// Relations of an object to an owner.
const (
	// Foreign objects belong to somebody else and are never written.
	Foreign Relation = iota
	// Ours are controlled by the owner.
	Ours
	// Orphaned objects are former children without a controller, which are to be adopted.
	Orphaned
	// OfPredecessor are those controlled by a deleted owner of the same kind and name: the garbage collector is about to
	// delete them.
	OfPredecessor
)

// Relation returns how an object relates to the owner. An object without a controller that was applied as a child is an
// orphan even if it has lost its labels.
func (s *Set) Relation(obj client.Object) Relation {
	if controller := metav1.GetControllerOfNoCopy(obj); controller != nil {
		group := schema.FromAPIVersionAndKind(controller.APIVersion, controller.Kind).GroupKind()
		switch {
		case controller.UID == s.Owner.GetUID():
			return Ours
		case group == s.Owner.GVK.GroupKind() && controller.Name == s.Owner.GetName():
			return OfPredecessor
		}
		return Foreign
	}
	have := obj.GetLabels()
	for k, v := range s.Owner.Labels {
		if have[k] != v && (!s.applied(obj) || k == s.InstanceLabel && have[k] != "") {
			return Foreign
		}
	}
	return Orphaned
}

// ErrOwnerDeleted says that the owner is deleted or being deleted, which the cache does not show yet.
var ErrOwnerDeleted = errors.New("the owner is deleted or being deleted")

// verifyOwner reads the owner from the API server, and returns an error unless it exists and is not being deleted.
// Nothing may be created for a deleted owner: the garbage collector may already have searched for its children.
func (s *Set) verifyOwner(ctx context.Context) error {
	owner := s.Owner
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(owner.GVK)
	if err := s.APIReader.Get(ctx, client.ObjectKeyFromObject(owner), live); err != nil {
		if apierrors.IsNotFound(err) {
			return ErrOwnerDeleted
		}
		return fmt.Errorf("look up %s %s: %w", owner.GVK.Kind, owner.GetName(), err)
	}
	if live.UID != owner.GetUID() || !live.DeletionTimestamp.IsZero() {
		return ErrOwnerDeleted
	}
	return nil
}
