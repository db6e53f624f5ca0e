package children

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// TrimManagedFields is a transform function of the informer cache. Of managedFields, it leaves only that the operator
// applied the object.
func (s *Set) TrimManagedFields(in any) (any, error) {
	if obj, ok := in.(metav1.Object); ok {
		entries := slices.DeleteFunc(obj.GetManagedFields(),
			func(e metav1.ManagedFieldsEntry) bool { return !s.isOurApply(e) })
		for i := range entries {
			entries[i].FieldsV1 = nil
		}
		obj.SetManagedFields(entries)
	}
	return in, nil
}

// isOurApply reports whether an entry records what the operator applied.
func (s *Set) isOurApply(e metav1.ManagedFieldsEntry) bool {
	return e.Manager == s.FieldManager && e.Operation == metav1.ManagedFieldsOperationApply && e.Subresource == ""
}

// isApplied reports whether the operator applied an object. A user's copy of a child has the same labels and the same
// owner, but no Apply entry of the operator.
func (s *Set) isApplied(obj client.Object) bool {
	return slices.ContainsFunc(obj.GetManagedFields(), s.isOurApply)
}

// appliedFields returns the fields that the operator has applied.
func (s *Set) appliedFields(obj client.Object) *fieldpath.Set {
	entries := obj.GetManagedFields()
	if i := slices.IndexFunc(entries, s.isOurApply); i >= 0 {
		return fieldsOf(entries[i])
	}
	return fieldpath.NewSet()
}

func fieldsOf(e metav1.ManagedFieldsEntry) *fieldpath.Set {
	fields := fieldpath.NewSet()
	_ = fields.FromJSON(e.FieldsV1.GetRawReader())
	return fields
}

// reverted says which fields of a child an apply has reverted, and which managers had changed them. It does not know
// fields that an admission plugin had changed in the write of another manager.
func (s *Set) reverted(before, after client.Object) string {
	fields := s.appliedFields(after).Difference(s.appliedFields(before))
	var list, managers []string
	for path := range fields.Leaves().All() {
		list = append(list, path.String())
	}
	for _, e := range before.GetManagedFields() {
		if !s.isOurApply(e) && !fieldsOf(e).Intersection(fields).Empty() {
			managers = append(managers, e.Manager)
		}
	}
	return cmp.Or(Names(list, 3), "a field") + ", changed by " + cmp.Or(Names(managers, 3), "somebody")
}
