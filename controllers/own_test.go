package controllers

import (
	"encoding/json"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/internal/testing/manifest"
	"github.com/example/memcached-operator/internal/testing/specs"
)

// TestExtractMatchesClientGo: for the children of many specs, Set.Extract returns the same fields as the generated
// functions Extract... of client-go.
func TestExtractMatchesClientGo(t *testing.T) {
	f := newFixture(t)
	set := childSet(f.api, f.api)
	secret := &desired.Secret{Name: "secret", Version: "1"}
	kinds := map[string]int{}
	for _, spec := range append(specs.Generate(100), specs.Accepted...) {
		mc := manifest.Parse(t, manifest.Named("cache", spec))
		mc.Namespace, mc.UID = f.mc.Namespace, f.mc.UID
		var secrets desired.Secrets
		if mc.Spec.TLS != nil {
			secrets.TLS = secret
		}
		if mc.Spec.Auth != nil {
			secrets.Auth = secret
		}
		perKind := map[string]int{}
		for _, config := range childrenOf(mc, secrets) {
			// Two children of each kind are enough: each server can have a Service.
			kind := fmt.Sprintf("%T", config)
			perKind[kind]++
			if perKind[kind] > 2 {
				continue
			}
			obj, err := f.dryRun(config)
			if apierrors.IsInvalid(err) { // a generated value may be one that the API server refuses
				continue
			}
			f.must(err)
			want, err := extractByClientGo(obj)
			f.must(err)
			got, err := set.Extract(obj)
			f.must(err)
			if !equality.Semantic.DeepEqual(got, want) {
				t.Fatalf("%T of spec %s: got\n%s, want\n%s", obj, spec, asJSON(f, got), asJSON(f, want))
			}
			kinds[obj.GetObjectKind().GroupVersionKind().Kind]++
		}
	}
	// Another manager may own fields of the same child.
	f.mustReconcile()
	f.applyAsSomebody(get[appsv1.Deployment](f), `{"metadata":{"labels":{"a":"b"},"annotations":{"a":"b"}},
		"spec":{"template":{"metadata":{"annotations":{"a":"b"}},"spec":{"nodeSelector":{"a":"b"},"tolerations":[{"key":"a"}],
		"volumes":[{"name":"x","emptyDir":{}}],"containers":[{"name":"sidecar","image":"x"},{"name":"memcached","env":[{
		"name":"E","value":"1"}],"resources":{"limits":{"cpu":"1"}},"volumeMounts":[{"name":"x","mountPath":"/x"}]}]}}}}`)
	d := get[appsv1.Deployment](f)
	want, err := extractByClientGo(d)
	f.must(err)
	if got, err := set.Extract(d); err != nil || !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("a child with foreign fields: got\n%s, want\n%s (%v)", asJSON(f, got), asJSON(f, want), err)
	}
	if len(kinds) != len(childKinds) {
		t.Errorf("got children of %d kinds, want %d: %v", len(kinds), len(childKinds), kinds)
	}
}

// TestFieldsAreRemoved: when a field is removed from the spec, nothing of it stays in the pod template.
func TestFieldsAreRemoved(t *testing.T) {
	f := newFixture(t)
	apply := func(spec string) (corev1.PodTemplateSpec, error) {
		mc := manifest.Parse(t, manifest.Named("cache", spec))
		mc.Namespace, mc.UID = f.mc.Namespace, f.mc.UID
		secret := &desired.Secret{Name: "secret", Version: "1"}
		var err error
		for _, config := range childrenOf(mc, desired.Secrets{TLS: secret, Auth: secret}) {
			if d, ok := config.(*appsv1ac.DeploymentApplyConfiguration); ok && *d.Name == mc.Name {
				err = f.api.Apply(f.ctx, d, client.FieldOwner(names.Operator), client.ForceOwnership)
			}
		}
		return get[appsv1.Deployment](f).Spec.Template, err
	}
	f.mustReconcile()
	want, err := apply("{}")
	f.must(err)
	changed := 0
	for _, spec := range append(specs.Generate(200), specs.Accepted...) {
		during, err := apply(spec)
		if apierrors.IsInvalid(err) { // a generated value may be one that the API server refuses
			continue
		}
		f.must(err)
		after, err := apply("{}")
		f.must(err)
		if !equality.Semantic.DeepEqual(during, want) {
			changed++
		}
		if !equality.Semantic.DeepEqual(after, want) {
			t.Fatalf("after spec %s: got\n%s, want\n%s", spec, asJSON(f, after), asJSON(f, want))
		}
	}
	if changed < 50 {
		t.Errorf("only %d specs changed the template", changed)
	}
}

// dryRun returns the result of a dry-run apply of a child.
func (f *fixture) dryRun(config runtime.ApplyConfiguration) (client.Object, error) {
	f.Helper()
	text, err := json.Marshal(config)
	f.must(err)
	var meta struct {
		Kind     string
		Metadata struct{ Name string }
	}
	f.must(json.Unmarshal(text, &meta))
	for _, kind := range childKinds {
		if kind.Kind != meta.Kind {
			continue
		}
		obj := kind.Object.DeepCopyObject().(client.Object)
		obj.SetNamespace(f.mc.Namespace)
		obj.SetName(meta.Metadata.Name)
		err := f.api.Patch(f.ctx, obj, client.RawPatch(types.ApplyPatchType, text), client.FieldOwner(names.Operator),
			client.DryRunAll)
		obj.GetObjectKind().SetGroupVersionKind(kind.GroupVersionKind)
		return obj, err
	}
	return nil, fmt.Errorf("%s is not in the table of child kinds", meta.Kind)
}

// extractByClientGo uses the generated functions of client-go.
func extractByClientGo(obj client.Object) (runtime.ApplyConfiguration, error) {
	switch o := obj.(type) {
	case *appsv1.Deployment:
		return appsv1ac.ExtractDeployment(o, names.Operator)
	case *appsv1.StatefulSet:
		return appsv1ac.ExtractStatefulSet(o, names.Operator)
	case *corev1.Service:
		return corev1ac.ExtractService(o, names.Operator)
	case *corev1.ConfigMap:
		return corev1ac.ExtractConfigMap(o, names.Operator)
	case *networkingv1.NetworkPolicy:
		return networkingv1ac.ExtractNetworkPolicy(o, names.Operator)
	case *policyv1.PodDisruptionBudget:
		return policyv1ac.ExtractPodDisruptionBudget(o, names.Operator)
	}
	return nil, fmt.Errorf("%T is not in the table of child kinds", obj)
}

func asJSON(f *fixture, v any) string {
	f.Helper()
	text, err := json.MarshalIndent(v, "", " ")
	f.must(err)
	return string(text)
}
