package children

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
