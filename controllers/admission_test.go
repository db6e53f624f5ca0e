package controllers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/internal/testing/harness"
)

// installPolicy installs a policy that changes the workloads of the test's namespace where a condition holds, and waits
// until the policy is active. spec holds the changed fields as a CEL object. The policy also sets the annotation
// "policy", whose value is a CEL expression.
func (f *fixture) installPolicy(condition, annotation, spec string, more ...admissionv1.Mutation) {
	f.Helper()
	name := f.Key.Namespace
	policy := &admissionv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	policy.Spec = admissionv1.MutatingAdmissionPolicySpec{
		ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
		MatchConstraints: &admissionv1.MatchResources{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": name}},
			ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
				Rule: admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"},
					Resources: []string{"deployments", "statefulsets"}},
			}}},
		},
		MatchConditions: []admissionv1.MatchCondition{{Name: "when", Expression: condition}},
		Mutations: append(more, admissionv1.Mutation{PatchType: admissionv1.PatchTypeApplyConfiguration,
			ApplyConfiguration: &admissionv1.ApplyConfiguration{Expression: fmt.Sprintf(
				`Object{metadata: Object.metadata{annotations: {"policy": %s}}, spec: Object.spec{%s}}`, annotation, spec)}}),
	}
	binding := &admissionv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name}}
	f.install(policy, binding)
	f.awaitPolicy(func(probe *appsv1.Deployment, err error) bool {
		return err == nil && probe.Annotations["policy"] != ""
	})
}

// install creates a policy and its binding until the end of the test.
func (f *fixture) install(objects ...client.Object) {
	f.Helper()
	for _, obj := range objects {
		f.Must(f.API.Create(f.Ctx, obj))
		f.Cleanup(func() { _ = f.API.Delete(context.Background(), obj) })
	}
}

// awaitPolicy waits until a policy is active, by the API server's response to the creation of a Deployment.
func (f *fixture) awaitPolicy(isActive func(response *appsv1.Deployment, err error) bool) {
	f.Helper()
	harness.Eventually(f, "the policy", 30*time.Second, func() error {
		probe := minimalObjects()["Deployment"].(*appsv1.Deployment)
		probe.Name, probe.Namespace = "probe", f.Key.Namespace
		err := f.API.Create(f.Ctx, probe, client.DryRunAll, client.FieldOwner("somebody"))
		if !isActive(probe, err) {
			return fmt.Errorf("it is not active: %w", err)
		}
		return nil
	})
}

// containers is a CEL object that merges containers into the template.
func containers(list string) string {
	return `template: Object.spec.template{spec: Object.spec.template.spec{containers: [` + list + `]}}`
}

const container = `Object.spec.template.spec.containers`

// TestPolicies: a policy may override a field of the template, or add to one, and may do so in another way each time.
// The operator does not revert that, neither after a restart nor if its own template differs from that of the release
// before, and replaces no server. It still notices that the spec asks for another template.
func TestPolicies(t *testing.T) {
	t.Parallel()
	const next = `(has(object.metadata.resourceVersion) ? object.metadata.resourceVersion : "new")`
	const mirror = container + `{name: "memcached", image: "mirror/memcached"}`
	patch := func(expression string) []admissionv1.Mutation {
		return []admissionv1.Mutation{{PatchType: admissionv1.PatchTypeJSONPatch,
			JSONPatch: &admissionv1.JSONPatch{Expression: expression}}}
	}
	for name, tt := range map[string]struct {
		spec, annotation, rewrite string
		more                      []admissionv1.Mutation
	}{
		"an image": {onDeployment, `"on"`, containers(mirror), nil},
		"an image, and another container": {"{size: 3, pod: {nodeSelector: {disk: fast}}}", `"on"`,
			containers(mirror + `,` + container + `{name: "sidecar", image: "x"}`), nil},
		"a map": {"{size: 3, pod: {nodeSelector: {disk: fast}, labels: {selector: none}}}", `"on"`, "",
			patch(`[JSONPatch{op: "add", path: "/spec/template/spec/nodeSelector",
			value: {"disk": "fast", "pool": "caches"}}]`)},
		"an item of a list": {"{size: 3, pod: {tolerations: [{key: caches, operator: Exists, effect: NoExecute}]}}", `"on"`,
			"", patch(`has(object.spec.template.spec.tolerations) ? [JSONPatch{op: "add",
			path: "/spec/template/spec/tolerations/0/tolerationSeconds", value: 60}] : []`)},
		"its own result": {onDeployment, `"on"`, containers(container + `{name: "memcached",
			image: "mirror/" + object.spec.template.spec.containers[0].image}`), nil},
		"each write": {onDeployment, next, `revisionHistoryLimit: 9`, nil},
		"the template, in each write": {onDeployment, next,
			containers(container + `{name: "memcached", image: "mirror/m:" + ` + next + `}`), nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, tt.spec)
			f.installPolicy("true", tt.annotation, tt.rewrite, tt.more...)
			f.settle()
			f.wantReady()
			before := get[appsv1.Deployment](f)
			for range 2 {
				f.restartOperator()
				f.settle()
				f.wantReady()
				f.r.Options.OpenShift = true
			}
			f.wantTemplate(before.Spec.Template)
			if got := get[appsv1.Deployment](f).ResourceVersion; tt.annotation != next && got != before.ResourceVersion {
				t.Errorf("got resource version %s of the Deployment, want %s, unchanged", got, before.ResourceVersion)
			}
			image := before.Spec.Template.Spec.Containers[0].Image
			if f.mc.Status.Image != image || f.mc.Status.Outdated != nil {
				t.Errorf("got status.image %s, outdated %q, want %s", f.mc.Status.Image, f.mc.Status.Outdated, image)
			}
			f.set(`{"disruptionBudget":{"maxUnavailable":2}}`)
			f.settle()
			f.wantReady()
			f.set(`{"paused":true,"memory":"128Mi"}`)
			f.settle()
			f.wantNotReady(v1alpha1.ReasonPaused, "")
		})
	}
}

// TestMovedDigest: a policy turns a tag into a digest, which has moved when only the size changes. No server is
// replaced, and an event says what is held back. Removed fields are removed nevertheless, and changes of others are
// reverted, also after a restart. A new template includes the new digest.
func TestMovedDigest(t *testing.T) {
	t.Parallel()
	const image = `object.spec.template.spec.containers[0].image`
	for name, spec := range map[string]string{"Deployment": onDeployment, "StatefulSet": onStatefulSet} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, spec)
			f.installPolicy("true", `"on"`, containers(container+`{name: "memcached", image: `+image+`.contains("@") ?
				`+image+` : `+image+` + "@" + string(object.spec.replicas)}`))
			want := func(image string, started int) {
				t.Helper()
				f.settle()
				f.wantReady()
				if f.mc.Status.Image != image || f.Started["server"] != started {
					t.Errorf("got image %s after %d starts, want %s after %d", f.mc.Status.Image, f.Started["server"], image, started)
				}
			}
			workload := func() client.Object {
				t.Helper()
				if name == "Deployment" {
					return get[appsv1.Deployment](f)
				}
				return get[appsv1.StatefulSet](f)
			}
			minReady := func() string {
				t.Helper()
				content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(workload())
				f.Must(err)
				return fmt.Sprint(content["spec"].(map[string]any)["minReadySeconds"])
			}
			want("memcached:1@3", 3)
			f.set(`{"size":4,"rollout":{"minReadySeconds":7}}`)
			want("memcached:1@3", 4)
			f.wantEvent("Normal HeldBack " + name + ` cache: an admission policy would change ` +
				`/spec/template/spec/containers/0/image and replace all pods`)
			for _, e := range workload().GetManagedFields() {
				fields, err := json.Marshal(e.FieldsV1)
				f.Must(err)
				if e.Operation == metav1.ManagedFieldsOperationApply && bytes.Contains(fields, []byte("dnsPolicy")) {
					t.Errorf("%s owns a default value now", e.Manager)
				}
			}
			if got := minReady(); got != "7" {
				t.Errorf("got minReadySeconds %s, want 7", got)
			}
			f.restartOperator()
			f.set(`{"rollout":null}`)
			want("memcached:1@3", 4)
			if got := minReady(); got != "<nil>" {
				t.Errorf("got minReadySeconds %s, want none", got)
			}
			f.Patch(workload(), `{"spec":{"replicas":9}}`)
			want("memcached:1@3", 4)
			for range 2 {
				f.Patch(workload(), `{"spec":{"template":{"spec":{"containers":[{"name":"memcached","image":"x@1"}]}}}}`)
				f.restartOperator()
				f.mustReconcile()
				f.mustReconcile()
				if got := f.mc.Status.Image; got != "memcached:1@4" {
					t.Errorf("got image %s, want the one that the policy makes of ours", got)
				}
			}
			f.settle()
			f.set(`{"size":5,"threads":2}`)
			f.settle()
			want("memcached:1@5", f.Started["server"])
		})
	}
}

// TestPolicyRefusesAll: a policy that no spec satisfies refuses each child for the same reason, which is said once.
func TestPolicyRefusesAll(t *testing.T) {
	f := newFixture(t, "{size: 27, workload: StatefulSet, serverAddresses: ClusterIP, networkPolicy: {}}")
	name := f.Key.Namespace
	rule := admissionv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"deployments",
		"services", "statefulsets", "networkpolicies", "poddisruptionbudgets"}}
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{MatchConstraints: &admissionv1.MatchResources{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": name}},
			ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create}, Rule: rule}}}},
			Validations: []admissionv1.Validation{{Expression: `has(object.metadata.labels) && "team" in object.metadata.labels`,
				Message: "each object needs the label team"}}}}
	f.install(policy, &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name,
			ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}})
	f.awaitPolicy(func(_ *appsv1.Deployment, err error) bool { return apierrors.IsInvalid(err) })
	f.mustReconcile()
	f.wantStalled(v1alpha1.ReasonInvalid, "apply NetworkPolicy cache, Service cache and 28 others: "+
		"ValidatingAdmissionPolicy '"+name+"' with binding '"+name+"' denied request: each object needs the label team")
	if c := meta.FindStatusCondition(f.mc.Status.Conditions, v1alpha1.ConditionStalled); len(c.Message) > 300 {
		t.Errorf("got the message %q, want one reason", c.Message)
	}
}

// TestPolicyChangesForeignWrite: when a policy changes a field of ours in a write of another manager, managedFields
// still names us as the owner of the field. The change is detected and reverted nevertheless.
func TestPolicyChangesForeignWrite(t *testing.T) {
	f := ready(t, onDeployment)
	template := get[appsv1.Deployment](f).Spec.Template
	f.installPolicy("request.options.fieldManager == 'somebody'", `"on"`,
		containers(container+`{name: "memcached", image: "mirror/memcached"}`))
	d := get[appsv1.Deployment](f)
	f.Patch(d, `{"metadata":{"annotations":{"a":"b"}}}`)
	if got := d.Spec.Template.Spec.Containers[0].Image; got != "mirror/memcached" {
		t.Fatalf("got image %s, want that of the policy", got)
	}
	f.mustReconcile()
	f.wantTemplate(template)
}
