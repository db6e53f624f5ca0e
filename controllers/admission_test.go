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

// mutate installs a policy that changes Deployments of the test's namespace whenever a condition holds, and waits
// until it is active. The change is a CEL object. The policy also adds an annotation, which shows that it was
// applied.
func (f *fixture) mutate(condition, annotation, spec string, further ...admissionv1.Mutation) {
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
		Mutations: append(further, admissionv1.Mutation{PatchType: admissionv1.PatchTypeApplyConfiguration,
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
			probe := namesakes()["Deployment"].(*appsv1.Deployment)
			probe.Name, probe.Namespace = "probe", name
			err := f.api.Create(ctx, probe, client.DryRunAll, client.FieldOwner("somebody"))
			return probe.Annotations["policy"] != "", err
		}))
}

const container = `template: Object.spec.template{spec: Object.spec.template.spec{containers: [
	Object.spec.template.spec.containers{name: "memcached", image: "mirror/memcached"}]}}`

// TestPolicyRewrites: a policy may override a field of ours. That is no drift, neither after a restart of the operator
// nor for an operator with another builder.
func TestPolicyRewrites(t *testing.T) {
	f := newFixture(t)
	f.mutate("true", `"on"`, container)
	f.mustReconcile()
	f.roll(3)
	f.mustReconcile()
	f.wantRequests("ask Deployment", "ask Deployment", "apply Deployment") // to record the template
	f.roll(3)
	f.mustReconcile()
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.mustReconcile()
	f.wantRequests()
	template := get[appsv1.Deployment](f).Spec.Template

	f.restart()
	f.mustReconcile()
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.wantRequests()

	f.restart()
	f.r.Options.OpenShift = true
	f.mustReconcile()
	f.wantRequests()
	f.wantTemplate(template)
	if f.mc.Status.Image != "mirror/memcached" {
		t.Errorf("the image in use is %s", f.mc.Status.Image)
	}
}

// TestPolicyAdds: an addition of a policy to a field that is owned as a whole changes the template too.
func TestPolicyAdds(t *testing.T) {
	for name, tt := range map[string]struct{ spec, patch string }{
		"to a map": {"{size: 3, pod: {nodeSelector: {disk: fast}, labels: {selector: none}}}",
			`[JSONPatch{op: "add", path: "/spec/template/spec/nodeSelector", value: {"disk": "fast", "pool": "caches"}}]`},
		"to an item of a list": {"{size: 3, pod: {tolerations: [{key: caches, operator: Exists, effect: NoExecute}]}}",
			`has(object.spec.template.spec.tolerations) ? [JSONPatch{op: "add",
			path: "/spec/template/spec/tolerations/0/tolerationSeconds", value: 60}] : []`},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixtureOf(t, tt.spec)
			f.mutate("true", `"on"`, "", admissionv1.Mutation{PatchType: admissionv1.PatchTypeJSONPatch,
				JSONPatch: &admissionv1.JSONPatch{Expression: tt.patch}})
			f.mustReconcile()
			f.roll(3)
			f.mustReconcile()
			f.wantRequests("ask Deployment", "ask Deployment", "apply Deployment") // to record the template
			f.roll(3)
			f.mustReconcile()
			f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
			template := get[appsv1.Deployment](f).Spec.Template
			f.restart()
			f.r.Options.OpenShift = true
			f.mustReconcile()
			f.wantRequests()
			f.wantTemplate(template)
		})
	}
}

// TestPolicyThatNeverSettles: a policy that changes its own result again does not replace servers in a loop.
func TestPolicyThatNeverSettles(t *testing.T) {
	f := newFixture(t)
	f.mutate("true", `"on"`, `template: Object.spec.template{spec: Object.spec.template.spec{containers: [
	Object.spec.template.spec.containers{name: "memcached",
		image: "mirror/" + object.spec.template.spec.containers[0].image}]}}`)
	f.ready()
	template := get[appsv1.Deployment](f).Spec.Template
	for range 3 {
		f.restart()
		f.mustReconcile()
	}
	f.wantTemplate(template)
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// TestPausedWithoutAnswer: if the dry run fails, the status does not claim that no change is pending.
func TestPausedWithoutAnswer(t *testing.T) {
	f := newFixture(t)
	f.mutate("true", `"on"`, `revisionHistoryLimit: 9`)
	f.ready()
	f.patch(`{"spec":{"paused":true}}`)
	f.mustReconcile()
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.restart()
	f.roll(0)
	f.fail["Deployment"] = apierrors.NewInternalError(errors.New("webhook is down"))
	f.wantError("webhook is down")
	f.want(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPaused)
	f.want(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonServersLost)
	if got := f.message(v1alpha1.ConditionReady); !strings.Contains(got, "may hold changes back, because") {
		t.Errorf("Ready says %q", got)
	}
	f.fail["Deployment"] = apierrors.NewForbidden(appsv1.Resource("deployments"), "cache", errors.New("a policy"))
	f.mustReconcile()
	f.want(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPaused)
	f.fail = map[string]error{}
	f.roll(3)
	f.mustReconcile()
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// TestPolicyRewritesTheRest: the same for a field outside of the template, which takes one dry run.
func TestPolicyRewritesTheRest(t *testing.T) {
	f := newFixture(t)
	f.mutate("true", `"on"`, `revisionHistoryLimit: 9`)
	f.ready()
	f.mustReconcile()
	f.wantRequests()
	f.restart()
	f.mustReconcile()
	f.wantRequests("ask Deployment")
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.mustReconcile()
	f.wantRequests()
}

// TestPolicyStamps: a policy that writes a new value on each apply causes no loop.
func TestPolicyStamps(t *testing.T) {
	f := newFixture(t)
	f.mutate("true", `has(object.metadata.resourceVersion) ? object.metadata.resourceVersion : "new"`,
		`revisionHistoryLimit: 9`)
	f.ready()
	f.mustReconcile()
	f.wantRequests()
	f.patch(`{"spec":{"rollout":{"maxUnavailable":2}}}`)
	f.mustReconcile()
	f.roll(3)
	f.mustReconcile()
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.restart()
	for range 3 {
		f.mustReconcile()
		for _, r := range f.requests {
			if r == "apply Deployment" {
				t.Errorf("applies what it applied before: %q", f.requests)
			}
		}
	}
}

// TestPolicyInAnothersWrite: the API server records who owns which field before a policy changes it in somebody else's
// write. The change is detected and reverted nevertheless.
func TestPolicyInAnothersWrite(t *testing.T) {
	f := newFixture(t)
	f.ready()
	template := get[appsv1.Deployment](f).Spec.Template
	f.mutate("request.options.fieldManager == 'somebody'", `"on"`, container)
	f.must(f.api.Patch(f.ctx, get[appsv1.Deployment](f), client.RawPatch(types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"a":"b"}}}`)),
		client.FieldOwner("somebody")))
	if got := get[appsv1.Deployment](f).Spec.Template.Spec.Containers[0].Image; got != "mirror/memcached" {
		t.Fatalf("the policy does not work: %s", got)
	}
	f.mustReconcile()
	f.wantTemplate(template)
}

// TestPolicyAnswersConflict: a policy may answer every write with a conflict. After several in a row, the reconcile
// returns an error.
func TestPolicyAnswersConflict(t *testing.T) {
	f := newFixture(t)
	f.fail["Service"] = apierrors.NewConflict(corev1.Resource("services"), "cache", errors.New("a policy says so"))
	for range maxConflicts {
		result := f.mustReconcile()
		f.now = f.now.Add(children.ExpectationTimeout)
		if result.RequeueAfter != conflictRetry || f.mc.Status.ObservedGeneration > 0 {
			t.Errorf("does not wait for the cache: %+v, %+v", result, f.mc.Status)
		}
	}
	for range 2 {
		f.wantError("a policy says so")
		f.want(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressingWithRetry)
	}
	f.wantEvent("Warning ProgressingWithRetry apply Service cache")
}
