package children

import (
	"context"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestPolicyRemovesField: a policy removes a field of ours whenever it is applied. One dry run finds that out, however
// often other fields of the child change.
func TestPolicyRemovesField(t *testing.T) {
	t.Parallel()
	requests := 0
	var existing *corev1.Service
	c := interceptor.NewClient(nil, interceptor.Funcs{
		Patch: func(_ context.Context, _ client.WithWatch, obj client.Object, _ client.Patch,
			_ ...client.PatchOption) error {
			requests++ // the object does not change: the policy removed the field again
			existing.DeepCopyInto(obj.(*corev1.Service))
			return nil
		}})
	services := NewKind(&corev1.Service{}, &corev1.ServiceList{}, corev1ac.Service)
	state := &State{}
	existing = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default",
		OwnerReferences: []metav1.OwnerReference{{UID: "owner", Controller: ptr.To(true)}},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "operator", Operation: metav1.ManagedFieldsOperationApply,
			FieldsV1: metav1.NewFieldsV1(
				`{"f:spec":{"f:ports":{"k:{\"port\":1,\"protocol\":\"TCP\"}":{".":{},"f:port":{},"f:protocol":{}}}}}`)}}},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1, Protocol: corev1.ProtocolTCP}}}}
	desired := corev1ac.Service("a", "default").WithSpec(corev1ac.ServiceSpec().
		WithType(corev1.ServiceTypeNodePort).WithPorts(corev1ac.ServicePort().WithPort(1).WithProtocol(corev1.ProtocolTCP)))
	key := Key{"Service", "a"}
	for i := range 3 {
		set := &Set{Client: c, APIReader: c, FieldManager: "operator", Kinds: []Kind{services}, State: state,
			Owner: Owner{Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "owner"}}}}
		observed := existing.DeepCopy()
		observed.ResourceVersion = strconv.Itoa(i)
		observed.Status.Conditions = []metav1.Condition{{Type: "Seen", Message: observed.ResourceVersion}}
		changes, err := set.Compare(t.Context(), []runtime.ApplyConfiguration{desired}, nil, Observed{key: observed}, true)
		if err != nil || len(changes) > 0 {
			t.Errorf("got changes %+v and error %v, want none", changes, err)
		}
	}
	if requests != 1 || len(state.dryRuns[key]) != 1 {
		t.Errorf("got %d dry runs and %d stored results, want one", requests, len(state.dryRuns[key]))
	}
}
