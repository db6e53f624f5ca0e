// Package children observes, applies and prunes the objects that an operator creates for another object, their owner.
// It does not depend on what the children are for.
package children

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Kind is one row of the table of child kinds: all that the operator must know to watch, cache, apply and prune them.
type Kind struct {
	schema.GroupVersionKind
	// Object is an empty object of the kind.
	Object client.Object

	list client.ObjectList
}

// NewKind returns a row of the table.
func NewKind(object client.Object, list client.ObjectList) Kind {
	gvk, err := apiutil.GVKForObject(object, clientgoscheme.Scheme)
	if err != nil {
		panic(err) // a programming error: the kind is not in client-go's scheme
	}
	return Kind{gvk, object, list}
}

// Key names a child of an owner: a kind and a name in the owner's namespace.
type Key struct{ Kind, Name string }

func (k Key) String() string { return k.Kind + " " + k.Name }

// keyOf returns the key of a desired child. Every generated apply configuration of an object has these methods.
func keyOf(desired runtime.ApplyConfiguration) Key {
	c := desired.(interface {
		GetKind() *string
		GetName() *string
	})
	return Key{*c.GetKind(), *c.GetName()}
}

// Set is the table of child kinds, the clients that reach them, and the owner of the children.
type Set struct {
	// Client reads from the informer cache, which must be indexed by SetupIndexes, and writes.
	Client client.Client
	// APIReader reads from the API server.
	APIReader client.Reader
	// FieldManager is the name under which children are applied.
	FieldManager string
	// InstanceLabel is the label of a child that holds the name of its owner.
	InstanceLabel string
	// Kinds are the kinds of children, in no order.
	Kinds []Kind
	// Owner is the object that has the children.
	Owner Owner
	// State is what is remembered about the owner's children between reconciles.
	State *State
	// New says that the owner is new and has no children yet, and that the API server has just confirmed its uid and
	// generation. LookUp then reads nothing from the API server: a child that the informer cache does not show does not
	// exist, or a foreign object has its name and the API server refuses to create the child. Apply need not read the
	// owner either.
	New bool
}

// byInstance indexes children by their owner, so that a look-up costs the same however many objects a namespace holds.
const byInstance = "instance"

// SetupIndexes adds the indexes that Observe needs, for the kinds of the table and for further ones.
func (s *Set) SetupIndexes(ctx context.Context, indexer client.FieldIndexer, further ...client.Object) error {
	for _, kind := range s.Kinds {
		further = append(further, kind.Object)
	}
	for _, obj := range further {
		err := indexer.IndexField(ctx, obj, byInstance,
			func(o client.Object) []string { return []string{o.GetLabels()[s.InstanceLabel]} })
		if err != nil {
			return fmt.Errorf("index %T: %w", obj, err)
		}
	}
	return nil
}

// LookUp reads a child that the informer cache does not show from the API server, and adds it to observed if it exists.
// The cache holds only objects with our labels, but other objects can have the name of a child.
func (s *Set) LookUp(ctx context.Context, key Key, observed Observed) error {
	if s.New || observed[key] != nil {
		return nil
	}
	live, err := s.read(ctx, key)
	if err == nil {
		observed[key] = live
	}
	return client.IgnoreNotFound(err)
}

// read reads a child from the API server.
func (s *Set) read(ctx context.Context, key Key) (client.Object, error) {
	live := s.empty(key)
	if err := s.APIReader.Get(ctx, client.ObjectKeyFromObject(live), live); err != nil {
		return nil, fmt.Errorf("look up %s: %w", key, err)
	}
	return live, nil
}

// empty returns an object that has nothing but the name of a child, whose kind is in the table.
func (s *Set) empty(key Key) client.Object {
	i := slices.IndexFunc(s.Kinds, func(k Kind) bool { return k.Kind == key.Kind })
	obj := s.Kinds[i].Object.DeepCopyObject().(client.Object)
	obj.SetNamespace(s.Owner.GetNamespace())
	obj.SetName(key.Name)
	return obj
}

// Observed are the children of one owner: from the informer cache, looked up, or just written. They are shared with the
// cache and must not be modified.
type Observed map[Key]client.Object

// Observe reads the children of the owner from the cache.
func (s *Set) Observe(ctx context.Context) (Observed, error) {
	observed := Observed{}
	for _, kind := range s.Kinds {
		list := kind.list.DeepCopyObject().(client.ObjectList)
		if err := s.List(ctx, list); err != nil {
			return nil, err
		}
		_ = meta.EachListItem(list, func(obj runtime.Object) error {
			child := obj.(client.Object)
			observed[Key{kind.Kind, child.GetName()}] = child
			return nil
		})
	}
	return observed, nil
}

// List reads the objects with the owner's name in InstanceLabel, from the cache and without copying them.
func (s *Set) List(ctx context.Context, list client.ObjectList) error {
	err := s.Client.List(ctx, list, client.InNamespace(s.Owner.GetNamespace()),
		client.MatchingFields{byInstance: s.Owner.GetName()}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return fmt.Errorf("list %T: %w", list, err)
	}
	return nil
}

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
	// OfPredecessor are those controlled by a deleted owner of the same kind and name.
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
		if have[k] != v && (!s.isApplied(obj) || k == s.InstanceLabel && have[k] != "") {
			return Foreign
		}
	}
	return Orphaned
}

// isLeftover reports whether an object is a child of a deleted owner, and nobody has deleted it yet. The garbage
// collector can miss it: if its watch is interrupted while the owner is deleted and created again, it notices no
// deletion. It keeps an object that has another owner too, and so does the operator.
func (s *Set) isLeftover(obj client.Object) bool {
	return s.Relation(obj) == OfPredecessor && len(obj.GetOwnerReferences()) == 1 && obj.GetDeletionTimestamp() == nil
}

// ErrStaleOwner says that the owner was deleted or changed, which the informer cache does not show yet.
var ErrStaleOwner = errors.New("the owner was deleted or changed")

// verifyOwner reads the owner from the API server, and returns ErrStaleOwner unless it is as in the informer cache.
func (s *Set) verifyOwner(ctx context.Context) error {
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(s.Owner.GVK)
	err := s.APIReader.Get(ctx, client.ObjectKeyFromObject(s.Owner), live)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("look up %s %s: %w", s.Owner.GVK.Kind, s.Owner.GetName(), err)
	case err != nil || live.UID != s.Owner.GetUID() || !live.DeletionTimestamp.IsZero() ||
		live.Generation != s.Owner.GetGeneration() || !maps.Equal(live.Annotations, s.Owner.GetAnnotations()):
		return ErrStaleOwner
	}
	s.State.ownerVerified = true
	return nil
}
