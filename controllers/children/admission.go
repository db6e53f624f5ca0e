package children

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// podTemplate matches the fields of the pod template of a workload.
var podTemplate = fieldpath.MakePrefixMatcherOrDie("spec", "template")

// wouldChange finds out by a dry run whether an apply would change the existing child.
//
// An admission plugin may answer differently than before, and change a pod template that the plan preserves. That would
// replace all pods:
//
//   - If nothing else would change, the child need not be written.
//   - If the plugin accepts the template that it returned before, the apply is changed: it contains the fields that the
//     operator applies, with their existing values, so that the operator owns the same fields as after any other apply.
//   - If the plugin changes that too, the pods are replaced, as by any write.
//   - If the operator does not own all fields any more that it has applied, somebody else has changed the template: the
//     apply reverts that.
func (s *Set) wouldChange(ctx context.Context, c *change) (changes bool, err error) {
	response, err := s.apply(ctx, c, client.DryRunAll)
	changes = err == nil && !c.isSame(response)
	if !changes || !c.preserveTemplate || templateDigest(response) == templateDigest(c.existing) {
		return changes, err
	}
	live, err := s.read(ctx, c.Key)
	if err != nil || !s.appliedFields(live).FilterIncludeMatches(podTemplate).Equals(
		s.appliedFields(response).FilterIncludeMatches(podTemplate)) {
		return true, err
	}
	c.template, c.heldBack = s.appliedTemplate(live, response)
	content(response).FieldByName("Template").Set(content(c.existing).FieldByName("Template"))
	if c.isSame(response) {
		return false, nil
	}
	if response, err = s.apply(ctx, c, client.DryRunAll); err != nil ||
		templateDigest(response) != templateDigest(c.existing) {
		c.template, c.heldBack = nil, ""
	}
	return true, err
}

// isSame reports whether the existing child is what a dry run answered. An apply also removes labels and annotations
// that are not desired any more, which the version of a child does not include.
func (c *change) isSame(response client.Object) bool {
	return c.version(response) == c.version(c.existing) &&
		len(labels.Merge(response.GetLabels(), c.existing.GetLabels())) == len(response.GetLabels()) &&
		len(labels.Merge(response.GetAnnotations(), c.existing.GetAnnotations())) == len(response.GetAnnotations())
}

// templateDigest identifies the pod template of a child; 0 if it has none.
func templateDigest(child client.Object) uint64 {
	if spec := content(child); spec.Kind() == reflect.Struct {
		if template := spec.FieldByName("Template"); template.IsValid() {
			return digest(template.Interface())
		}
	}
	return 0
}
