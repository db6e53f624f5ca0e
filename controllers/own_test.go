package controllers

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/internal/testing/manifest"
	"github.com/example/memcached-operator/internal/testing/specs"
)

// TestFieldsAreRemoved: when a field is removed from the spec, nothing of it stays in the pod template.
func TestFieldsAreRemoved(t *testing.T) {
	f := newFixture(t, onDeployment)
	apply := func(spec string) (corev1.PodTemplateSpec, error) {
		mc := manifest.Parse(t, manifest.Named("cache", spec))
		mc.Namespace, mc.UID = f.Key.Namespace, f.mc.UID
		secret := &desired.Secret{Name: "secret", Version: "1"}
		var err error
		for _, config := range childrenOf(mc, desired.Secrets{TLS: secret, Auth: secret}) {
			if d, ok := config.(*appsv1ac.DeploymentApplyConfiguration); ok && *d.Name == mc.Name {
				err = f.API.Apply(f.Ctx, d, client.FieldOwner(names.Operator), client.ForceOwnership)
			}
		}
		return get[appsv1.Deployment](f).Spec.Template, err
	}
	f.mustReconcile()
	want, err := apply("{}")
	f.Must(err)
	changed := 0
	for _, spec := range append(specs.Generate(200), specs.Accepted...) {
		during, err := apply(spec)
		if apierrors.IsInvalid(err) { // a generated value may be one that the API server refuses
			continue
		}
		f.Must(err)
		after, err := apply("{}")
		f.Must(err)
		if !equality.Semantic.DeepEqual(during, want) {
			changed++
		}
		if !equality.Semantic.DeepEqual(after, want) {
			t.Fatalf("after spec %s: got\n%+v, want\n%+v", spec, after, want)
		}
	}
	if changed < 50 {
		t.Errorf("only %d specs changed the template", changed)
	}
}

// TestLabelsOfChildren: labels and annotations of the spec are on each child until they are removed, and neither they
// nor a budget that is left out replace a pod. A budget that existed is deleted.
func TestLabelsOfChildren(t *testing.T) {
	f := ready(t, "{size: 2, workload: StatefulSet, metrics: {}, networkPolicy: {}, proxy: {size: 1}}")
	pods := f.pods("")
	set := func(spec string) children.Observed {
		f.set(spec)
		f.settle()
		f.wantReady()
		for i, pod := range f.pods("") {
			if pod.UID != pods[i].UID || pod.Labels["team"] != "" || pod.Annotations["note"] != "" {
				t.Errorf("with %s, the pod %s became %v", spec, pods[i].Name, pod.ObjectMeta)
			}
		}
		set := childSet(f.r.Client, f.r.APIReader)
		set.Owner = owner(f.mc)
		observed, err := set.Observe(f.Ctx)
		f.Must(err)
		return observed
	}
	kinds := map[string]bool{}
	for key, child := range set(`{"labels":{"team":"shop"},"annotations":{"note":"a"}}`) {
		kinds[key.Kind] = true
		if child.GetLabels()["team"] != "shop" || child.GetAnnotations()["note"] != "a" {
			t.Errorf("%s has the labels %v and the annotations %v", key, child.GetLabels(), child.GetAnnotations())
		}
	}
	if len(kinds) != len(childKinds) {
		t.Errorf("got only children of the kinds %v", kinds)
	}
	for key, child := range set(`{"labels":null,"annotations":null,"disruptionBudget":{"policy":"None"}}`) {
		if child.GetLabels()["team"] != "" || child.GetAnnotations()["note"] != "" || key.Kind == "PodDisruptionBudget" {
			t.Errorf("%s still exists, or has the labels %v and the annotations %v", key, child.GetLabels(),
				child.GetAnnotations())
		}
	}
}
