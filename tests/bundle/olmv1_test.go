package bundle

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	operatorsv1alpha1 "github.com/operator-framework/api/pkg/operators/v1alpha1"
)

const bundleDir = root + "/bundle"

// TestOLMv1: the bundle has nothing that OLM v1 refuses or ignores, or that would delete caches. `make olmv1-e2e` runs
// OLM v1 itself.
func TestOLMv1(t *testing.T) {
	bundle := load(t)
	for _, object := range bundle.Objects {
		switch object.GetKind() {
		case "ClusterServiceVersion", "Service", "ClusterRole": // every version of OLM and every cluster supports these
		case "CustomResourceDefinition":
			if object.GetAnnotations()["helm.sh/resource-policy"] != "keep" {
				t.Errorf("CRD %s lacks helm.sh/resource-policy: keep, so removing the ClusterExtension deletes every Memcached",
					object.GetName())
			}
		default:
			t.Errorf("%s %s: not every cluster supports this kind in a bundle", object.GetKind(), object.GetName())
		}
	}
	spec := bundle.CSV.Spec
	assert.Contains(t, spec.InstallModes, operatorsv1alpha1.InstallMode{
		Type: operatorsv1alpha1.InstallModeTypeAllNamespaces, Supported: true}, "the mode of OLM v1")
	assert.Empty(t, spec.WebhookDefinitions, "webhooks need cert-manager in OLM v1")
	assert.Zero(t, spec.APIServiceDefinitions, "OLM v1 refuses API services")
	// OLM v1 resolves no dependencies, and refuses a bundle that declares one in any way.
	assert.Empty(t, spec.CustomResourceDefinitions.Required)
	assert.NoFileExists(t, bundleDir+"/metadata/dependencies.yaml")
	properties, _ := os.ReadFile(bundleDir + "/metadata/properties.yaml")
	for _, property := range []string{"olm.package.required", "olm.gvk.required", "olm.constraint"} {
		assert.NotContains(t, string(properties)+bundle.CSV.Annotations["olm.properties"], property)
	}
	// OLM v1 passes the namespaces to watch only by this annotation.
	container := spec.InstallStrategy.StrategySpec.DeploymentSpecs[0].Spec.Template.Spec.Containers[0]
	if !slices.ContainsFunc(container.Env, func(env corev1.EnvVar) bool {
		return env.Name == "WATCH_NAMESPACE" && env.ValueFrom != nil && env.ValueFrom.FieldRef != nil &&
			env.ValueFrom.FieldRef.FieldPath == "metadata.annotations['olm.targetNamespaces']"
	}) {
		t.Error("WATCH_NAMESPACE is not the annotation olm.targetNamespaces")
	}
	// OLM v1 has no OperatorConditions: an operator that waits for its OperatorCondition never starts.
	for _, rule := range rules(bundle.CSV) {
		assert.NotContains(t, rule.APIGroups, "operators.coreos.com", "an API of OLM v0")
	}
}

// TestOLMv1Installer: the service account with which OLM v1 installs the bundle has exactly the permissions that the
// bundle needs.
func TestOLMv1Installer(t *testing.T) {
	bundle := load(t)
	granted := rules(bundle.CSV)
	// OLM v1 adds these for all namespaces.
	granted = append(granted, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"namespaces"},
		Verbs: []string{"get", "list", "watch"}})
	names := []string{"clusterextensions/finalizers memcached-operator"}
	for _, object := range bundle.Objects {
		switch object.GetKind() {
		case "ClusterRole":
			granted = append(granted, role(t, object).Rules...)
		case "CustomResourceDefinition", "Service":
			names = append(names, strings.ToLower(object.GetKind())+"s "+object.GetName())
		}
	}
	for _, deployment := range bundle.CSV.Spec.InstallStrategy.StrategySpec.DeploymentSpecs {
		names = append(names, "deployments "+deployment.Name,
			"serviceaccounts "+deployment.Spec.Template.Spec.ServiceAccountName)
	}

	var grants []rbacv1.PolicyRule
	var named []string
	text, err := os.ReadFile(root + "/config/olmv1/installer.yaml")
	require.NoError(t, err)
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		object := &unstructured.Unstructured{}
		require.NoError(t, yaml.Unmarshal([]byte(document), &object.Object))
		if object.GetName() == "memcached-operator-installer-grants" && object.GetKind() == "ClusterRole" {
			grants = role(t, object).Rules
		}
		for _, rule := range role(t, object).Rules {
			for _, name := range rule.ResourceNames {
				named = append(named, rule.Resources[0]+" "+name)
			}
		}
	}
	assert.ElementsMatch(t, names, named, "the objects of the bundle, and those that the installer may manage")
	want, got := flatten(granted), flatten(grants)
	for right := range want {
		if what, _, _ := strings.Cut(right, " "); !got[right] && !got[what+" *"] {
			t.Errorf("the installer cannot grant %s", right)
		}
	}
	for right := range got {
		assert.True(t, want[right], "the installer can grant %s, which the bundle does not need", right)
	}
}

// rules returns the permissions of the operator.
func rules(csv *operatorsv1alpha1.ClusterServiceVersion) (all []rbacv1.PolicyRule) {
	spec := csv.Spec.InstallStrategy.StrategySpec
	for _, permission := range slices.Concat(spec.Permissions, spec.ClusterPermissions) {
		all = append(all, permission.Rules...)
	}
	return all
}

// role decodes a Role or a ClusterRole; for other objects it returns no rules.
func role(t *testing.T, object *unstructured.Unstructured) (role rbacv1.ClusterRole) {
	t.Helper()
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role))
	return role
}

// flatten returns one entry "resource verb" for each permission in rules.
func flatten(rules []rbacv1.PolicyRule) map[string]bool {
	flat := map[string]bool{}
	for _, rule := range rules {
		what := slices.Clone(rule.NonResourceURLs)
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				what = append(what, group+"/"+resource)
			}
		}
		for _, one := range what {
			for _, verb := range rule.Verbs {
				flat[one+" "+verb] = true
			}
		}
	}
	return flat
}
