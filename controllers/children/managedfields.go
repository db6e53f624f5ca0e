package children

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// TrimManagedFields is a transform function of the informer cache. It drops the managedFields entries of other
// managers: they change often, and nothing here reads them.
func (s *Set) TrimManagedFields(in any) (any, error) {
	if obj, ok := in.(metav1.Object); ok {
		obj.SetManagedFields(slices.DeleteFunc(obj.GetManagedFields(),
			func(e metav1.ManagedFieldsEntry) bool { return e.Manager != s.FieldManager }))
	}
	return in, nil
}

// isOurApply reports whether an entry records what the operator applied.
func (s *Set) isOurApply(e metav1.ManagedFieldsEntry) bool {
	return e.Manager == s.FieldManager && e.Operation == metav1.ManagedFieldsOperationApply && e.Subresource == ""
}

// isOurUpdate reports whether an entry is an Update entry of the operator. A merge patch creates one, and the same
// write deletes it, so it exists only after an interrupted write.
func (s *Set) isOurUpdate(e metav1.ManagedFieldsEntry) bool {
	return e.Manager == s.FieldManager && e.Operation == metav1.ManagedFieldsOperationUpdate && e.Subresource == ""
}

// isApplied reports whether the operator applied an object. A user's copy of a child has the same labels and the same
// owner, but no Apply entry of the operator.
func (s *Set) isApplied(obj client.Object) bool {
	return slices.ContainsFunc(obj.GetManagedFields(), s.isOurApply)
}

// extracted is the part of a child that the operator owns.
type extracted struct {
	config    runtime.ApplyConfiguration
	isChanged bool // a list of which the operator owns items also has items of others
}

// Extract returns the fields of a child that the operator owns, as an apply configuration: the same as the generated
// functions Extract... of client-go. These keep the schemas of all of Kubernetes in memory, 8 MB, and are slower.
func (s *Set) Extract(obj client.Object) (runtime.ApplyConfiguration, error) {
	e, err := s.extract(obj)
	return e.config, err
}

// extract caches its result for each object, because it is the most expensive part of a reconcile.
func (s *Set) extract(obj client.Object) (e extracted, err error) {
	if e, ok := s.extractions[obj]; ok {
		return e, nil
	}
	i := slices.IndexFunc(s.Kinds, func(k Kind) bool { return reflect.TypeOf(k.Object) == reflect.TypeOf(obj) })
	if i < 0 {
		return e, fmt.Errorf("%T is not in the table of child kinds", obj)
	}
	kind := s.Kinds[i]
	defer func() {
		if err != nil {
			err = fmt.Errorf("extract the owned fields of %s %s: %w", kind.Kind, obj.GetName(), err)
		}
	}()
	u := &unstructured.Unstructured{Object: map[string]any{}}
	if i := slices.IndexFunc(obj.GetManagedFields(), s.isOurApply); i >= 0 {
		fields := &fieldpath.Set{}
		raw := obj.GetManagedFields()[i].FieldsV1.GetRawString()
		if err := fields.FromJSON(strings.NewReader(raw)); err != nil {
			return e, err
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(withoutManagedFields(obj))
		if err != nil {
			return e, err
		}
		delete(content, "status") // never owned by an apply of the object itself
		if owned, ok := e.fields(content, fields).(map[string]any); ok {
			u.Object = owned
		}
	}
	u.SetGroupVersionKind(kind.GroupVersionKind)
	u.SetNamespace(obj.GetNamespace())
	u.SetName(obj.GetName())
	e.config = kind.newConfiguration()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, e.config); err != nil {
		return e, err
	}
	if s.extractions == nil {
		s.extractions = map[client.Object]extracted{}
	}
	s.extractions[obj] = e
	return e, nil
}

// withoutManagedFields returns a shallow copy: the conversion of managedFields would take as long as that of the rest.
func withoutManagedFields(obj client.Object) client.Object {
	original := reflect.ValueOf(obj).Elem()
	shallow := reflect.New(original.Type())
	shallow.Elem().Set(original)
	c := shallow.Interface().(client.Object)
	c.SetManagedFields(nil)
	return c
}

// fields returns the part of a JSON value that is in a set of fields; nil for nothing.
func (e *extracted) fields(v any, set *fieldpath.Set) any {
	switch v := v.(type) {
	case map[string]any:
		owned := map[string]any{}
		for name, field := range v {
			in := e
			if name == "metadata" {
				in = &extracted{} // others may add owner references and finalizers
			}
			if field := in.field(field, fieldpath.PathElement{FieldName: &name}, set); field != nil {
				owned[name] = field
			}
		}
		if len(owned) > 0 {
			return owned
		}
	case []any:
		var owned []any
		elements := slices.AppendSeq(slices.Collect(set.Members.All()), set.Children.All())
		for _, item := range v {
			i := slices.IndexFunc(elements, func(e fieldpath.PathElement) bool { return matches(item, e) })
			if e.isChanged = e.isChanged || i < 0; i >= 0 {
				owned = append(owned, e.field(item, elements[i], set))
			}
		}
		if len(owned) > 0 {
			return owned
		}
	}
	return nil
}

// field returns the owned part of the value at one path element. An element without fields below is owned as a whole.
func (e *extracted) field(v any, element fieldpath.PathElement, set *fieldpath.Set) any {
	if below, ok := set.Children.Get(element); ok {
		return e.fields(v, below)
	}
	if set.Members.Has(element) {
		return v
	}
	return nil
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
