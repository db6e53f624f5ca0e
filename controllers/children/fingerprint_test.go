package children

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestFingerprint: what a comparison reads changes the fingerprint, and what others write often does not.
func TestFingerprint(t *testing.T) {
	t.Parallel()
	set := &Set{FieldManager: "operator"}
	deployment := func() *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
			Name: "cache", UID: "uid", Generation: 1, ResourceVersion: "7",
			Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"ours": "1", "theirs": "1"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "Owner", UID: "owner", Controller: new(bool)}},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "operator", Operation: "Apply", Time: &metav1.Time{},
				FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:ours":{}}}}`)}},
		}}
	}
	tests := map[string]struct {
		change func(*appsv1.Deployment)
		same   bool
	}{
		"nothing":        {func(*appsv1.Deployment) {}, true},
		"status":         {func(d *appsv1.Deployment) { d.Status.Replicas, d.ResourceVersion = 3, "8" }, true},
		"its annotation": {func(d *appsv1.Deployment) { d.Annotations["theirs"] = "2" }, true},
		"our annotation": {func(d *appsv1.Deployment) { d.Annotations["ours"] = "2" }, false},
		"label":          {func(d *appsv1.Deployment) { d.Labels["a"] = "c" }, false},
		"no label":       {func(d *appsv1.Deployment) { d.Labels = nil }, false},
		"spec":           {func(d *appsv1.Deployment) { d.Generation = 2 }, false},
		"another object": {func(d *appsv1.Deployment) { d.UID = "other" }, false},
		"owner":          {func(d *appsv1.Deployment) { d.OwnerReferences = nil }, false},
		"controller":     {func(d *appsv1.Deployment) { *d.OwnerReferences[0].Controller = true }, false},
		"end":            {func(d *appsv1.Deployment) { d.DeletionTimestamp = &metav1.Time{} }, false},
		"record":         {func(d *appsv1.Deployment) { d.ManagedFields = nil }, false},
		"another record": {func(d *appsv1.Deployment) { d.ManagedFields[0].Time = &metav1.Time{Time: time.Now()} }, false},
	}
	owner, key := Owner{Object: &appsv1.Deployment{}}, Key{"Deployment", "cache"}
	before := set.Fingerprint(owner, Observed{key: deployment()})
	for name, tt := range tests {
		d := deployment()
		tt.change(d)
		if same := set.Fingerprint(owner, Observed{key: d}) == before; same != tt.same {
			t.Errorf("%s: the same is %t, want %t", name, same, tt.same)
		}
	}
	kept, written := deployment(), deployment()
	kept.Generation, written.Generation, written.ResourceVersion = 0, 0, "8"
	if set.Fingerprint(owner, Observed{key: kept}) == set.Fingerprint(owner, Observed{key: written}) {
		t.Error("no generation: the same after a write")
	}
	if set.Fingerprint(owner, Observed{}) == before {
		t.Error("no child is the same")
	}
}
