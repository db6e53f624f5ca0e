package controllers

import (
	"encoding/json"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/internal/testing/manifest"
	"github.com/example/memcached-operator/internal/testing/specs"
)

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

func asJSON(f *fixture, v any) string {
	f.Helper()
	text, err := json.MarshalIndent(v, "", " ")
	f.must(err)
	return string(text)
}
