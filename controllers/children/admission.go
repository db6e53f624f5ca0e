package children

import (
	"context"
	"reflect"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// wouldChange reports whether an apply would change the existing child. It returns what the API server would store.
func (s *Set) wouldChange(ctx context.Context, c *change) (response client.Object, changes bool, err error) {
	response, err = s.apply(ctx, c, client.DryRunAll)
	return response, err == nil && !c.isSame(response), err
}

// isSame reports whether the existing child is what a dry run answered. An apply also removes labels and annotations
// that are not desired any more, which the version of a child does not include.
func (c *change) isSame(response client.Object) bool {
	return c.version(response) == c.version(c.existing) &&
		hasKeys(response.GetLabels(), c.existing.GetLabels()) &&
		hasKeys(response.GetAnnotations(), c.existing.GetAnnotations())
}

// hasKeys reports whether a map has all keys of another one.
func hasKeys(m, other map[string]string) bool {
	for key := range other {
		if _, ok := m[key]; !ok {
			return false
		}
	}
	return true
}

// keepsPods reports whether a workload need not be applied after a restart of the operator: an apply would change
// nothing, or only the pod template, because an admission plugin answers differently than before. That would replace
// all pods. If the operator still owns all fields that it has applied, nobody else has changed the template.
func (s *Set) keepsPods(ctx context.Context, c *change) bool {
	if c.desired == nil || c.existing == nil || s.Relation(c.existing) != Ours || s.State.applied[c.Key] != (applied{}) ||
		!c.hasPods() || !c.wasApplied() {
		return false
	}
	response, changes, err := s.wouldChange(ctx, c)
	if err != nil || !changes {
		return err == nil // the apply reports the error
	}
	content(response).FieldByName("Template").Set(content(c.existing).FieldByName("Template"))
	if !c.isSame(response) {
		return false
	}
	live, err := s.read(ctx, c.Key)
	return err == nil && s.appliedFields(live) == s.appliedFields(response)
}

// wasApplied reports whether the existing child holds the labels and annotations of the desired one. For a workload,
// that says that the operator has applied the desired pod template before: its record is among them.
func (c *change) wasApplied() bool {
	holds := func(existing, desired map[string]string) bool {
		for key, value := range desired {
			if existing[key] != value {
				return false
			}
		}
		return true
	}
	metadata := c.metadata()
	return holds(c.existing.GetLabels(), metadata.Labels) && holds(c.existing.GetAnnotations(), metadata.Annotations)
}

// hasPods reports whether the child has a pod template.
func (c *change) hasPods() bool {
	spec := content(c.existing)
	return spec.Kind() == reflect.Struct && spec.FieldByName("Template").IsValid()
}

// appliedFields returns the names of the fields that the operator has applied.
func (s *Set) appliedFields(obj client.Object) string {
	entries := obj.GetManagedFields()
	if i := slices.IndexFunc(entries, s.isOurApply); i >= 0 {
		return entries[i].FieldsV1.GetRawString()
	}
	return ""
}
