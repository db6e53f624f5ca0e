package children

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// extracted is what the operator owns of a child.
type extracted struct {
	config      runtime.ApplyConfiguration
	listsDiffer bool // others added items to lists of the child
}

// Own returns what the operator owns of a child, in the form of an apply configuration: what the generated functions
// Extract... of client-go return. These keep the schemas of all of Kubernetes in memory, 8 MB, and take more time.
func (s *Set) Own(obj client.Object) (runtime.ApplyConfiguration, error) {
	own, err := s.own(obj)
	return own.config, err
}

// own extracts once for each object: that is most of the work of a reconcile.
func (s *Set) own(obj client.Object) (extracted, error) {
	if own, ok := s.owned[obj]; ok {
		return own, nil
	}
	i := slices.IndexFunc(s.Kinds, func(k Kind) bool { return reflect.TypeOf(k.Object) == reflect.TypeOf(obj) })
	if i < 0 {
		return extracted{}, fmt.Errorf("%T is not in the table of child kinds", obj)
	}
	own, err := s.extract(s.Kinds[i], obj)
	if err != nil {
		return own, fmt.Errorf("extract the owned fields of %s %s: %w", s.Kinds[i].Kind, obj.GetName(), err)
	}
	if s.owned == nil {
		s.owned = map[client.Object]extracted{}
	}
	s.owned[obj] = own
	return own, nil
}

func (s *Set) extract(kind Kind, obj client.Object) (own extracted, err error) {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	if i := slices.IndexFunc(obj.GetManagedFields(), s.isOwn); i >= 0 {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
		if err != nil {
			return own, err
		}
		delete(content, "status") // which an apply of the object itself never owns
		fields := &fieldpath.Set{}
		if err := fields.FromJSON(strings.NewReader(obj.GetManagedFields()[i].FieldsV1.GetRawString())); err != nil {
			return own, err
		}
		picked, others := extract(content, fields)
		if picked, ok := picked.(map[string]any); ok {
			u.Object, own.listsDiffer = picked, others
		}
	}
	u.SetGroupVersionKind(kind.GroupVersionKind)
	u.SetNamespace(obj.GetNamespace())
	u.SetName(obj.GetName())
	own.config = kind.config()
	return own, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, own.config)
}

// extract returns what a set of fields holds of a JSON value, nil for nothing, and whether others added items to a list
// of which the set holds items.
func extract(v any, fields *fieldpath.Set) (own any, others bool) {
	switch v := v.(type) {
	case map[string]any:
		picked := map[string]any{}
		for name, field := range v {
			owned, more := extractAt(field, fieldpath.PathElement{FieldName: &name}, fields)
			if owned != nil {
				picked[name] = owned
			}
			// Whoever adds an owner or a finalizer has a right to.
			others = others || more && name != "ownerReferences" && name != "finalizers"
		}
		if len(picked) > 0 {
			own = picked
		}
	case []any:
		var picked []any
		for _, item := range v {
			i := slices.IndexFunc(elements(fields), func(e fieldpath.PathElement) bool { return matches(item, e) })
			if i < 0 {
				others = true
				continue
			}
			owned, more := extractAt(item, elements(fields)[i], fields)
			picked, others = append(picked, owned), others || more
		}
		if len(picked) > 0 {
			own = picked
		}
	}
	return own, others
}

// extractAt does the same for the value at an element of the set. One without fields below it is owned as a whole.
func extractAt(v any, element fieldpath.PathElement, fields *fieldpath.Set) (own any, others bool) {
	if below, ok := fields.Children.Get(element); ok {
		return extract(v, below)
	}
	if fields.Members.Has(element) {
		return v, false
	}
	return nil, false
}

// elements are the keys and values in a set of fields of a list.
func elements(fields *fieldpath.Set) []fieldpath.PathElement {
	return slices.Collect(func(yield func(fieldpath.PathElement) bool) {
		for e := range fields.Members.All() {
			yield(e)
		}
		for e := range fields.Children.All() {
			yield(e)
		}
	})
}

// matches reports whether an item of a list is the one that a path element names by its keys or its value.
func matches(item any, element fieldpath.PathElement) bool {
	switch {
	case element.Value != nil:
		return value.Equals(*element.Value, value.NewValueInterface(item))
	case element.Key == nil:
		return false
	}
	fields, ok := item.(map[string]any)
	for _, key := range *element.Key {
		ok = ok && value.Equals(key.Value, value.NewValueInterface(fields[key.Name]))
	}
	return ok
}
