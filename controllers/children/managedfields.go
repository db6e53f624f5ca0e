package children

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// extracted holds the fields of a child that the operator owns.
type extracted struct {
	config  runtime.ApplyConfiguration
	fields  *fieldpath.Set // nil for nothing
	content map[string]any // of the whole child
	others  bool           // others added items to lists of the child
}

// Own returns the fields of a child that the operator owns, as an apply configuration: the same as the generated
// functions Extract... of client-go. These keep the schemas of all of Kubernetes in memory, 8 MB, and are slower.
func (s *Set) Own(obj client.Object) (runtime.ApplyConfiguration, error) {
	own, err := s.own(obj)
	return own.config, err
}

// own extracts only once for each object, because that is most of the work of a reconcile.
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
		if own.content, err = runtime.DefaultUnstructuredConverter.ToUnstructured(obj); err != nil {
			return own, err
		}
		delete(own.content, "status") // never owned by an apply of the object itself
		own.fields = &fieldpath.Set{}
		fields := strings.NewReader(obj.GetManagedFields()[i].FieldsV1.GetRawString())
		if err := own.fields.FromJSON(fields); err != nil {
			return own, err
		}
		var picked any
		picked, own.others = extract(own.content, own.fields)
		if picked, ok := picked.(map[string]any); ok {
			u.Object = picked
		}
	}
	u.SetGroupVersionKind(kind.GroupVersionKind)
	u.SetNamespace(obj.GetNamespace())
	u.SetName(obj.GetName())
	own.config = kind.config()
	return own, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, own.config)
}

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// listPatch takes the items out of lists of a child that others added. A list of which we say items holds what we say
// and nothing else. unwanted takes out the items too that we own and do not want any more.
//
// What is in a pod template is left alone until the template changes anyway: no server is replaced for it.
func (s *Set) listPatch(c *Change, unwanted bool) ([]operation, error) {
	own, err := s.own(c.Existing)
	if err != nil || own.fields == nil {
		return nil, err
	}
	desired, err := runtime.DefaultUnstructuredConverter.ToUnstructured(c.Desired)
	if err != nil {
		return nil, err
	}
	ops := listOperations("", own.content, own.fields, desired, unwanted)
	mine, err := runtime.DefaultUnstructuredConverter.ToUnstructured(own.config)
	if err != nil {
		return nil, err
	}
	before, _, _ := unstructured.NestedFieldNoCopy(mine, "spec", "template")
	after, _, _ := unstructured.NestedFieldNoCopy(desired, "spec", "template")
	if equality.Semantic.DeepEqual(before, after) {
		ops = slices.DeleteFunc(ops, func(o operation) bool { return strings.HasPrefix(o.Path, "/spec/template/") })
	}
	return ops, nil
}

// listOperations finds the items at and below a value of which we own fields. Items are removed from the last to the
// first. The ports of a Service are set as a whole, because there must be one.
func listOperations(path string, v any, fields *fieldpath.Set, desired any, unwanted bool) (ops []operation) {
	switch v := v.(type) {
	case map[string]any:
		desired, _ := desired.(map[string]any)
		for name, field := range v {
			below, ok := fields.Children.Get(fieldpath.PathElement{FieldName: &name})
			if !ok && unwanted && name == "ports" { // somebody took over the only one
				below, ok = &fieldpath.Set{}, desired[name] != nil
			}
			if ok && name != "ownerReferences" && name != "finalizers" { // of which others may add some
				escaped := strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
				ops = append(ops, listOperations(path+"/"+escaped, field, below, desired[name], unwanted)...)
			}
		}
	case []any:
		list, _ := desired.([]any)
		named := elements(fields)
		for i, item := range slices.Backward(v) {
			at := path + "/" + strconv.Itoa(i)
			e := slices.IndexFunc(named, func(e fieldpath.PathElement) bool { return matches(item, e) })
			d := -1
			if e >= 0 {
				d = slices.IndexFunc(list, func(item any) bool { return matches(item, named[e]) })
			}
			switch {
			case e < 0 || d < 0 && unwanted:
				if path == "/spec/ports" && len(list) > 0 {
					return []operation{{"replace", path, list}}
				}
				ops = append(ops, operation{"remove", at, nil})
			case d >= 0:
				if below, ok := fields.Children.Get(named[e]); ok {
					ops = append(ops, listOperations(at, item, below, list[d], unwanted)...)
				}
			}
		}
	}
	return ops
}

// extract returns the part of a JSON value that is in a set of fields, or nil, and whether others added items to a list
// of which the set has items.
func extract(v any, fields *fieldpath.Set) (own any, others bool) {
	switch v := v.(type) {
	case map[string]any:
		picked := map[string]any{}
		for name, field := range v {
			owned, more := extractAt(field, fieldpath.PathElement{FieldName: &name}, fields)
			if owned != nil {
				picked[name] = owned
			}
			// Others may add owner references and finalizers.
			others = others || more && name != "ownerReferences" && name != "finalizers"
		}
		if len(picked) > 0 {
			own = picked
		}
	case []any:
		var picked []any
		named := elements(fields)
		for _, item := range v {
			i := slices.IndexFunc(named, func(e fieldpath.PathElement) bool { return matches(item, e) })
			if i < 0 {
				others = true
				continue
			}
			owned, more := extractAt(item, named[i], fields)
			picked, others = append(picked, owned), others || more
		}
		if len(picked) > 0 {
			own = picked
		}
	}
	return own, others
}

// extractAt does the same for the value at one path element. An element without fields below it is owned as a whole.
func extractAt(v any, element fieldpath.PathElement, fields *fieldpath.Set) (own any, others bool) {
	if below, ok := fields.Children.Get(element); ok {
		return extract(v, below)
	}
	if fields.Members.Has(element) {
		return v, false
	}
	return nil, false
}

// elements returns the path elements of a set of fields of a list.
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
