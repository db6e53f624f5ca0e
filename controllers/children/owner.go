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
	// Foreign objects are somebody else's and are never touched.
	Foreign Relation = iota
	// Ours are controlled by the owner.
	Ours
	// Orphaned objects have all labels of the owner's children and no controller: they are to be adopted.
	Orphaned
	// OfPredecessor are those controlled by a deleted owner of the same kind and name: the garbage collector is about to
	// delete them.
	OfPredecessor
)

// Relation tells how obj relates to the owner.
func (o Owner) Relation(obj metav1.Object) Relation {
	if controller := metav1.GetControllerOfNoCopy(obj); controller != nil {
		group := schema.FromAPIVersionAndKind(controller.APIVersion, controller.Kind).GroupKind()
		switch {
		case controller.UID == o.GetUID():
			return Ours
		case group == o.GVK.GroupKind() && controller.Name == o.GetName():
			return OfPredecessor
		}
		return Foreign
	}
	have := obj.GetLabels()
	for k, v := range o.Labels {
		if have[k] != v {
			return Foreign
		}
	}
	return Orphaned
}

// ErrOwnerGone says that the owner is deleted or being deleted, which the cache does not show yet.
var ErrOwnerGone = errors.New("the owner is gone or being deleted")

// proveAlive asks the API server itself whether the owner still exists and is not being deleted. Nothing may be created
// for an object that goes away: the garbage collector might already have looked for its children.
func (s *Set) proveAlive(ctx context.Context, owner Owner) error {
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(owner.GVK)
	if err := s.Live.Get(ctx, client.ObjectKeyFromObject(owner), live); err != nil {
		if apierrors.IsNotFound(err) {
			return ErrOwnerGone
		}
		return fmt.Errorf("look up %s %s: %w", owner.GVK.Kind, owner.GetName(), err)
	}
	if live.UID != owner.GetUID() || !live.DeletionTimestamp.IsZero() {
		return ErrOwnerGone
	}
	return nil
}
