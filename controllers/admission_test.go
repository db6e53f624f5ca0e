package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
)

// installPolicy installs a policy that changes the Deployments of the test's namespace where a condition holds, and
// waits until the policy is active. spec holds the changed fields as a CEL object. The policy also sets the annotation
// "policy", whose value is a CEL expression.
func (f *fixture) installPolicy(condition, annotation, spec string, more ...admissionv1.Mutation) {
	f.Helper()
	name := f.mc.Namespace
	policy := &admissionv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	policy.Spec = admissionv1.MutatingAdmissionPolicySpec{
		ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
		MatchConstraints: &admissionv1.MatchResources{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": name}},
			ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
				Rule: admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"},
					Resources: []string{"deployments"}},
			}}},
		},
		MatchConditions: []admissionv1.MatchCondition{{Name: "when", Expression: condition}},
		Mutations: append(more, admissionv1.Mutation{PatchType: admissionv1.PatchTypeApplyConfiguration,
			ApplyConfiguration: &admissionv1.ApplyConfiguration{Expression: fmt.Sprintf(
				`Object{metadata: Object.metadata{annotations: {"policy": %s}}, spec: Object.spec{%s}}`, annotation, spec)}}),
	}
	binding := &admissionv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name}}
	f.must(f.api.Create(f.ctx, policy))
	f.must(f.api.Create(f.ctx, binding))
	f.Cleanup(func() {
		_ = f.api.Delete(context.Background(), policy)
		_ = f.api.Delete(context.Background(), binding)
	})
	f.must(wait.PollUntilContextTimeout(f.ctx, 50*time.Millisecond, 30*time.Second, true,
		func(ctx context.Context) (bool, error) {
			probe := minimalObjects()["Deployment"].(*appsv1.Deployment)
			probe.Name, probe.Namespace = "probe", name
			err := f.api.Create(ctx, probe, client.DryRunAll, client.FieldOwner("somebody"))
			return probe.Annotations["policy"] != "", err
		}))
}

// rewriteImage is a CEL object that changes the image of memcached.
const rewriteImage = `template: Object.spec.template{spec: Object.spec.template.spec{containers: [
	Object.spec.template.spec.containers{name: "memcached", image: "mirror/memcached"}]}}`

// TestPolicyRewritesTemplate: a policy may override a field of the template, or add to one. The operator does not
// revert that, neither after a restart nor if its own template differs from that of the release before. It still
// notices that the spec asks for another template.
func TestPolicyRewritesTemplate(t *testing.T) {
	t.Parallel()
	patch := func(expression string) []admissionv1.Mutation {
		return []admissionv1.Mutation{{PatchType: admissionv1.PatchTypeJSONPatch,
			JSONPatch: &admissionv1.JSONPatch{Expression: expression}}}
	}
	for name, tt := range map[string]struct {
		spec, rewrite string
		more          []admissionv1.Mutation
	}{
		"an image": {"{size: 3}", rewriteImage, nil},
		"an image, and another container": {"{size: 3, pod: {nodeSelector: {disk: fast}}}",
			strings.Replace(rewriteImage, "}]}}", `},
			Object.spec.template.spec.containers{name: "sidecar", image: "x"}]}}`, 1), nil},
		"a map": {"{size: 3, pod: {nodeSelector: {disk: fast}, labels: {selector: none}}}", "",
			patch(`[JSONPatch{op: "add", path: "/spec/template/spec/nodeSelector", value: {"disk": "fast", "pool": "caches"}}]`)},
		"an item of a list": {"{size: 3, pod: {tolerations: [{key: caches, operator: Exists, effect: NoExecute}]}}", "",
			patch(`has(object.spec.template.spec.tolerations) ? [JSONPatch{op: "add",
			path: "/spec/template/spec/tolerations/0/tolerationSeconds", value: 60}] : []`)},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixtureOf(t, tt.spec)
			f.installPolicy("true", `"on"`, tt.rewrite, tt.more...)
			f.becomeReady()
			f.mustReconcile()
			f.wantRequests()
			before := get[appsv1.Deployment](f)
			for range 2 {
				f.restartOperator()
				f.mustReconcile()
				f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
				f.mustReconcile()
				f.wantRequests()
				f.r.Options.OpenShift = true
			}
			f.wantTemplate(before.Spec.Template)
			if got := get[appsv1.Deployment](f).ResourceVersion; got != before.ResourceVersion {
				t.Errorf("got resource version %s of the Deployment, want %s, unchanged", got, before.ResourceVersion)
			}
			image := before.Spec.Template.Spec.Containers[0].Image
			if f.mc.Status.Image != image || f.mc.Status.Outdated != nil {
				t.Errorf("got status.image %s, outdated %q, want %s", f.mc.Status.Image, f.mc.Status.Outdated, image)
			}
			f.patch(`{"spec":{"paused":true,"memory":"128Mi"}}`)
			f.mustReconcile()
			f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPaused)
		})
	}
}

// TestPolicyThatIsNotIdempotent: a policy that changes its own result each time does not replace servers in a loop.
func TestPolicyThatIsNotIdempotent(t *testing.T) {
	f := newFixture(t)
	f.installPolicy("true", `"on"`, `template: Object.spec.template{spec: Object.spec.template.spec{containers: [
	Object.spec.template.spec.containers{name: "memcached",
		image: "mirror/" + object.spec.template.spec.containers[0].image}]}}`)
	f.becomeReady()
	template := get[appsv1.Deployment](f).Spec.Template
	for range 3 {
		f.restartOperator()
		f.mustReconcile()
	}
	f.wantTemplate(template)
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// TestPausedAndDryRunFails: while a Memcached is paused and the dry run fails, the status says that changes may be
// pending.
func TestPausedAndDryRunFails(t *testing.T) {
	f := newFixture(t)
	f.installPolicy("true", `"on"`, `revisionHistoryLimit: 9`)
	f.becomeReady()
	f.patch(`{"spec":{"paused":true}}`)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.restartOperator()
	f.setServersReady(0)
	f.failures["dry-run Deployment"] = apierrors.NewInternalError(errors.New("webhook is down"))
	f.wantReconcileError("webhook is down")
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPaused)
	f.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonServersLost)
	f.wantMessage(v1alpha1.ConditionReady, "may hold changes back, because")
	f.failures["dry-run Deployment"] = forbidden("a policy")
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPaused)
	f.failures = map[string]error{}
	f.setServersReady(3)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// TestPolicyWritesNewValueEachTime: a policy that sets another value on each apply does not cause a loop of applies,
// and replaces no server when the operator restarts.
func TestPolicyWritesNewValueEachTime(t *testing.T) {
	t.Parallel()
	const next = `has(object.metadata.resourceVersion) ? object.metadata.resourceVersion : "new"`
	for name, spec := range map[string]string{"outside of the template": `revisionHistoryLimit: 9`,
		"in the template": `template: Object.spec.template{spec: Object.spec.template.spec{containers: [
	Object.spec.template.spec.containers{name: "memcached", image: "mirror/memcached:" + (` + next + `)}]}}`} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.installPolicy("true", next, spec)
			f.becomeReady()
			f.mustReconcile()
			f.wantRequests()
			f.patch(`{"spec":{"disruptionBudget":{"maxUnavailable":2}}}`)
			f.mustReconcile()
			f.setServersReady(3)
			f.mustReconcile()
			f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
			template := get[appsv1.Deployment](f).Spec.Template
			for range 3 {
				f.restartOperator()
				f.mustReconcile()
			}
			f.wantTemplate(template)
			f.mustReconcile()
			f.wantRequests()
		})
	}
}

// TestPolicyChangesForeignWrite: when a policy changes a field of ours in a write of another manager, managedFields
// still names us as the owner of the field. The change is detected and reverted nevertheless.
func TestPolicyChangesForeignWrite(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	template := get[appsv1.Deployment](f).Spec.Template
	f.installPolicy("request.options.fieldManager == 'somebody'", `"on"`, rewriteImage)
	f.must(f.api.Patch(f.ctx, get[appsv1.Deployment](f), client.RawPatch(types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"a":"b"}}}`)), client.FieldOwner("somebody")))
	if got := get[appsv1.Deployment](f).Spec.Template.Spec.Containers[0].Image; got != "mirror/memcached" {
		t.Fatalf("got image %s, want that of the policy", got)
	}
	f.mustReconcile()
	f.wantTemplate(template)
}

// TestPolicyRefusesWithConflict: a policy may answer every write with a conflict. After maxConflicts in a row, the
// reconcile returns an error.
func TestPolicyRefusesWithConflict(t *testing.T) {
	f := newFixture(t)
	f.failures["apply Service"] = apierrors.NewConflict(corev1.Resource("services"), "cache",
		errors.New("a policy says so"))
	for range maxConflicts {
		result := f.mustReconcile()
		f.now = f.now.Add(children.ExpectationTimeout)
		if result.RequeueAfter != conflictRetry || f.mc.Status.ObservedGeneration > 0 {
			t.Errorf("got %+v and status %+v, want a requeue after %s and no status", result, f.mc.Status, conflictRetry)
		}
	}
	for range 2 {
		f.wantReconcileError("a policy says so")
		f.wantCondition(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressingWithRetry)
	}
	f.wantEvent("Warning ProgressingWithRetry apply Service cache")
}
