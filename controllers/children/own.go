package children

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Own returns what the operator owns of a child, in the form of an apply configuration: what the generated functions
// Extract... of client-go return. These keep the schemas of all of Kubernetes in memory, 8 MB, and cost more time. The
// answer is kept: to extract it is most of the work of a reconcile that compares all fields.
func (s *Set) Own(obj client.Object) (runtime.ApplyConfiguration, error) {
	if own, ok := s.owned[obj]; ok {
		return own, nil
	}
	i := slices.IndexFunc(s.Kinds, func(k Kind) bool { return reflect.TypeOf(k.Object) == reflect.TypeOf(obj) })
	if i < 0 {
		return nil, fmt.Errorf("%T is not in the table of child kinds", obj)
	}
	own, err := s.extract(s.Kinds[i], obj)
	if err != nil {
		return nil, fmt.Errorf("extract the owned fields of %s %s: %w", s.Kinds[i].Kind, obj.GetName(), err)
	}
	if s.owned == nil {
		s.owned = map[client.Object]runtime.ApplyConfiguration{}
	}
	s.owned[obj] = own
	return own, nil
}

func (s *Set) extract(kind Kind, obj client.Object) (runtime.ApplyConfiguration, error) {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	if i := slices.IndexFunc(obj.GetManagedFields(), s.isOwn); i >= 0 {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
		if err != nil {
			return nil, err
		}
		delete(content, "status") // which an apply of the object itself never owns
		fields, err := recordOf(obj.GetManagedFields()[i])
		if err != nil {
			return nil, err
		}
		if own, ok := pick(content, fields); ok && len(fields) > 0 {
			u.Object = own.(map[string]any)
		}
	}
	u.SetGroupVersionKind(kind.GroupVersionKind)
	u.SetNamespace(obj.GetNamespace())
	u.SetName(obj.GetName())
	own := kind.config()
	return own, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, own)
}

// recordOf reads the record of a manager's fields, as metav1.FieldsV1 describes it.
func recordOf(e metav1.ManagedFieldsEntry) (fields map[string]any, err error) {
	if e.FieldsV1 == nil {
		return nil, nil
	}
	err = json.Unmarshal([]byte(e.FieldsV1.GetRawString()), &fields)
	return fields, err
}

// pick returns what a record names of a JSON value, and whether there is any.
func pick(value, record any) (own any, ok bool) {
	fields, _ := record.(map[string]any)
	if _, self := fields["."]; len(fields) == 0 || self && len(fields) == 1 {
		return value, true // owned as a whole
	}
	switch value := value.(type) {
	case map[string]any:
		picked := map[string]any{}
		for name, below := range fields {
			key, isField := strings.CutPrefix(name, "f:")
			if v, there := value[key]; isField && there {
				if own, ok := pick(v, below); ok {
					picked[key] = own
				}
			}
		}
		return picked, len(picked) > 0
	case []any:
		var picked []any
		for _, item := range value {
			for name, below := range fields {
				if own, ok := pickItem(item, name, below); ok {
					picked = append(picked, own)
					break
				}
			}
		}
		return picked, len(picked) > 0
	}
	return nil, false
}

// pickItem does the same for an item of a list, if the item has the name that a record gives it: "k:" and the keys of
// the item, or "v:" and the item itself.
func pickItem(item any, name string, below any) (own any, ok bool) {
	var want any
	if len(name) < 2 || json.Unmarshal([]byte(name[2:]), &want) != nil {
		return nil, false
	}
	switch fields, isMap := item.(map[string]any); {
	case strings.HasPrefix(name, "v:"):
		return item, reflect.DeepEqual(item, want)
	case !strings.HasPrefix(name, "k:") || !isMap:
		return nil, false
	default:
		keys, _ := want.(map[string]any)
		for key, v := range keys {
			if !reflect.DeepEqual(fields[key], v) {
				return nil, false
			}
		}
		return pick(item, below)
	}
}
