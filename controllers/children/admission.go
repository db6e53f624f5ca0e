package children

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"

	"gomodules.xyz/jsonpatch/v2"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
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
	if err != nil || !s.appliedFields(response).Difference(s.appliedFields(live)).
		FilterIncludeMatches(podTemplate).Empty() {
		return true, err
	}
	existing := template(c.existing)
	differs := paths(existing, template(response))
	template(response).Set(existing)
	if c.isSame(response) {
		return false, nil
	}
	c.template = s.appliedTemplate(live)
	response, err = s.apply(ctx, c, client.DryRunAll)
	if err != nil || templateDigest(response) != templateDigest(c.existing) {
		c.template = nil
		return true, err
	}
	c.heldBack = differs
	return true, nil
}

// appliedTemplate returns the fields of a workload's pod template that the operator has applied, with existing values.
func (s *Set) appliedTemplate(existing client.Object) any {
	if deployment, ok := existing.(*appsv1.Deployment); ok {
		applied, err := appsv1ac.ExtractDeployment(deployment, s.FieldManager)
		utilruntime.Must(err)
		return applied.Spec.Template
	}
	applied, err := appsv1ac.ExtractStatefulSet(existing.(*appsv1.StatefulSet), s.FieldManager)
	utilruntime.Must(err)
	return applied.Spec.Template
}

// isSame reports whether the existing child is what a dry run answered. An apply also removes labels and annotations
// that are not desired any more, which the version of a child does not include.
func (c *change) isSame(response client.Object) bool {
	return c.version(response) == c.version(c.existing) &&
		len(labels.Merge(response.GetLabels(), c.existing.GetLabels())) == len(response.GetLabels()) &&
		len(labels.Merge(response.GetAnnotations(), c.existing.GetAnnotations())) == len(response.GetAnnotations())
}

// template returns the pod template of a child; an invalid value if it has none.
func template(child client.Object) reflect.Value {
	if spec := content(child); spec.Kind() == reflect.Struct {
		return spec.FieldByName("Template")
	}
	return reflect.Value{}
}

// templateDigest identifies the pod template of a child; 0 if it has none.
func templateDigest(child client.Object) uint64 {
	if t := template(child); t.IsValid() {
		return digest(t.Interface())
	}
	return 0
}

// paths returns the JSON pointers of the fields in which a pod template differs from another.
func paths(before, after reflect.Value) string {
	a, _ := json.Marshal(before.Interface()) // cannot fail: API types
	b, _ := json.Marshal(after.Interface())
	operations, _ := jsonpatch.CreatePatch(a, b)
	var list []string
	for _, o := range operations {
		list = append(list, "/spec/template"+o.Path)
	}
	slices.Sort(list)
	return Names(list, 3)
}
