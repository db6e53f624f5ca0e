package simulation

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// childResources are the resources of all children.
var childResources = []string{"deployments", "statefulsets", "services", "configmaps", "networkpolicies",
	"poddisruptionbudgets"}

// policyLabel selects the policy of a namespace.
const policyLabel = "policy"

// policyRewrite is the policy that rewrites the image of memcached.
const policyRewrite = "rewrite"

// mutations are what policies change in a child, as CEL objects.
var mutations = map[string]struct {
	resources []string
	mutation  string
}{
	// Each write gets another stamp, so that no write of a child is a no-op.
	"stamp": {[]string{"*"}, `Object{metadata: Object.metadata{annotations: {
		"stamp": oldObject == null ? "new" : oldObject.metadata.resourceVersion}, labels: {"stamped": "yes"}}}`},
	policyRewrite: {[]string{"deployments", "statefulsets"}, `Object{spec: Object.spec{template: Object.spec.template{
		spec: Object.spec.template.spec{containers: [Object.spec.template.spec.containers{name: "memcached",
		image: "mirror/memcached"}]}}}}`},
	"sidecar": {[]string{"deployments", "statefulsets"}, `Object{spec: Object.spec{template: Object.spec.template{
		metadata: Object.spec.template.metadata{annotations: {"injected": "yes"}},
		spec: Object.spec.template.spec{containers: [Object.spec.template.spec.containers{name: "sidecar",
		image: "sidecar"}]}}}}`},
}

// match returns what a policy matches: what anybody writes in the namespaces with this label.
func match(policy string, resources ...string) *admissionv1.MatchResources {
	return &admissionv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{policyLabel: policy}},
		ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
			Rule: admissionv1.Rule{APIGroups: []string{"", "apps", "policy", "networking.k8s.io"},
				APIVersions: []string{"v1"}, Resources: resources}}}}}
}

// installPolicies installs the policies once, and waits until the API server enforces them.
var installPolicies = sync.OnceValue(func() error {
	s, err := startServer()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var objects []client.Object
	for name, m := range mutations {
		resources := m.resources
		if resources[0] == "*" {
			resources = childResources
		}
		objects = append(objects, &admissionv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: admissionv1.MutatingAdmissionPolicySpec{ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
				MatchConstraints: match(name, resources...), Mutations: []admissionv1.Mutation{{
					PatchType:          admissionv1.PatchTypeApplyConfiguration,
					ApplyConfiguration: &admissionv1.ApplyConfiguration{Expression: m.mutation}}}}},
			&admissionv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name}})
	}
	refusing := match("", childResources...)
	refusing.NamespaceSelector = nil
	objects = append(objects,
		&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: refused},
			Spec: admissionv1.ValidatingAdmissionPolicySpec{MatchConstraints: refusing, Validations: []admissionv1.Validation{{
				Expression: `!("` + refused + `" in request.userInfo.groups)`, Message: "refused by the test"}}}},
		&admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: refused},
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: refused,
				ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}})
	for _, obj := range objects {
		if err := s.api.Create(ctx, obj); err != nil {
			return err
		}
	}
	if err := awaitRefusal(ctx, s); err != nil {
		return err
	}
	for _, policy := range policies() {
		if err := awaitPolicy(ctx, s, policy); err != nil {
			return err
		}
	}
	return nil
})

func policies() (names []string) {
	for name := range mutations {
		names = append(names, name)
	}
	return names
}

// awaitPolicy waits until the API server enforces a policy.
func awaitPolicy(ctx context.Context, s *server, policy string) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "policy-",
		Labels: map[string]string{policyLabel: policy}}}
	if err := s.api.Create(ctx, ns); err != nil {
		return err
	}
	return harness.Poll(ctx, func(ctx context.Context) error {
		deployment := probeDeployment(ns.Name)
		err := s.api.Create(ctx, deployment, client.DryRunAll)
		containers := deployment.Spec.Template.Spec.Containers
		if err == nil && deployment.Labels["stamped"] == "" && len(containers) == 1 && containers[0].Image == "memcached" {
			err = fmt.Errorf("the API server does not enforce the policy %s", policy)
		}
		return err
	})
}

// refused is the name of a policy that refuses all children, and of the group whose writes it refuses.
const refused = "refused"

// awaitRefusal waits until the API server enforces the policy that refuses.
func awaitRefusal(ctx context.Context, s *server) error {
	as, err := s.client(s.refused)
	if err != nil {
		return err
	}
	return harness.Poll(ctx, func(ctx context.Context) error {
		err := as.Create(ctx, probeDeployment("default"), client.DryRunAll)
		if err == nil {
			return errors.New("the API server does not enforce the policy that refuses")
		}
		if apierrors.IsInvalid(err) {
			return nil
		}
		return err
	})
}

func probeDeployment(namespace string) *appsv1.Deployment {
	labels := map[string]string{"a": "b"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "probe", Namespace: namespace}}
	d.Spec.Selector, d.Spec.Template.Labels = &metav1.LabelSelector{MatchLabels: labels}, labels
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "memcached", Image: "memcached"}}
	return d
}
