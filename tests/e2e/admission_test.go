package e2e

import (
	"fmt"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/tests/cluster"
)

const (
	limitHistory = `[JSONPatch{op: "add", path: "/spec/revisionHistoryLimit", value: 5}]`
	countWrites  = `[JSONPatch{op: "add", path: "/metadata/annotations/writes",
		value: string(int(object.metadata.?annotations["writes"].orValue("0")) + 1)}]`
)

// createRewritten creates Memcacheds whose Deployments an admission policy rewrites: on each write of the operator, one
// policy overrides a field, and another one also counts the writes. Neither may prevent Ready.
func (w world) createRewritten() {
	w.Helper()
	names := []string{"rewritten", "rewritten-too", "counted", "counted-too"}
	for _, name := range names {
		w.create(name, 1)
	}
	w.awaitReady(names...)
	w.policy("rewritten", `request.name.startsWith("rewritten")`, limitHistory)
	w.policy("counted", `request.name.startsWith("counted")`, limitHistory, countWrites)
	for _, name := range names {
		w.merge(name, `{"memory":"128Mi"}`)
	}
	w.awaitReady(names...)
	for _, name := range names {
		d, err := load[appsv1.Deployment](w, name)
		w.must(err)
		if got := *d.Spec.RevisionHistoryLimit; got != 5 {
			w.Fatalf("revisionHistoryLimit of %s is %d: the policy has no effect", name, got)
		}
	}
}

// TestPolicyChangesWritesOfOthers: the operator reverts a policy's change in the write of another manager.
// managedFields do not show such a change, because the API server records owners before admission.
func TestPolicyChangesWritesOfOthers(t *testing.T) {
	needMoreTime(t)
	testEnv.Test(t, features.New("a policy that changes a field in other managers' writes").
		Setup(step(func(w world) {
			w.create("cache", 2)
			w.awaitReady("cache")
			w.policy("cache", fmt.Sprintf(`request.userInfo.username != "system:serviceaccount:%s:%s"`, cluster.OperatorNamespace,
				cluster.OperatorDeployment),
				limitHistory)
		})).
		Assess("is reverted", step(func(w world) {
			before, err := load[appsv1.Deployment](w, "cache")
			w.must(err)
			_, err = w.kubectl("annotate", "deployment/cache", "example.com/note=theirs")
			w.must(err)
			reverted := func() error {
				d, err := load[appsv1.Deployment](w, "cache")
				if err != nil {
					return err
				}
				if limit, n := *d.Spec.RevisionHistoryLimit, d.Generation-before.Generation; limit != 1 || n != 2 {
					return fmt.Errorf("revisionHistoryLimit is %d after %d changes, want 1 after 2", limit, n)
				}
				return nil
			}
			w.eventually("revert the change", reverted)
			w.awaitReady("cache")
			w.always("stay reverted", 2*time.Second, reverted)
		})).Feature())
}

// policy makes the API server change the Deployments of the namespace that meet a condition, such as the one with this
// name, until the test ends.
func (w world) policy(deployment, condition string, patches ...string) {
	w.Helper()
	var mutations []admissionregistrationv1.Mutation
	for _, expression := range patches {
		mutations = append(mutations, admissionregistrationv1.Mutation{
			PatchType: admissionregistrationv1.PatchTypeJSONPatch,
			JSONPatch: &admissionregistrationv1.JSONPatch{Expression: expression}})
	}
	policy := &admissionregistrationv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: w.ns + "-" + deployment},
		Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			FailurePolicy:      ptr.To(admissionregistrationv1.Fail),
			ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			MatchConditions:    []admissionregistrationv1.MatchCondition{{Name: "who", Expression: condition}},
			Mutations:          mutations,
			MatchConstraints: &admissionregistrationv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": w.ns}},
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
					RuleWithOperations: admissionregistrationv1.RuleWithOperations{
						Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create,
							admissionregistrationv1.Update},
						Rule: admissionregistrationv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"},
							Resources: []string{"deployments"}},
					}}},
			},
		},
	}
	binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: policy.ObjectMeta,
		Spec:       admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: policy.Name},
	}
	for _, object := range []client.Object{policy, binding} {
		err := w.Create(w.ctx, object)
		if meta.IsNoMatchError(err) && testCluster.Kind == "kind" { // KIND_NODE_IMAGE may be an old one
			w.Skip("the cluster has no mutating admission policies")
		}
		w.must(err)
		w.Cleanup(func() { w.must(w.Delete(w.ctx, object)) })
	}
	w.eventually("wait until the policy is active", func() error {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: deployment}}
		err := w.Patch(w.ctx, d, client.RawPatch(types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"example.com/note":"a try"}}}`)), client.DryRunAll)
		if err == nil && *d.Spec.RevisionHistoryLimit != 5 {
			err = fmt.Errorf("revisionHistoryLimit stays %d", *d.Spec.RevisionHistoryLimit)
		}
		return err
	})
}
