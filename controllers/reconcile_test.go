package controllers

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/steps"
)

// TestRequests: a creation takes six requests, and a reconcile that changes nothing takes none. After a restart of the
// operator, each child is applied once, which changes nothing.
// docs/explanation/performance.md says what that costs.
func TestRequests(t *testing.T) {
	f := newFixture(t)
	f.mustReconcile()
	f.wantRequests("patch Memcached", "apply Service", "apply PodDisruptionBudget", "apply Deployment", "patch status")
	f.setServersReady(3)
	f.mustReconcile()
	f.wantRequests("patch status")
	f.wantEvent("Normal Ready 3 of 3 servers ready")
	f.mustReconcile()
	f.wantRequests()

	f.restartOperator()
	before := get[appsv1.Deployment](f).ResourceVersion + get[corev1.Service](f).ResourceVersion
	f.r.Options.DefaultImage = "memcached:2"
	f.mustReconcile()
	f.wantRequests("get Memcached", "apply Service", "apply PodDisruptionBudget", "dry-run Deployment",
		"patch status") // status.outdated
	if after := get[appsv1.Deployment](f).ResourceVersion + get[corev1.Service](f).ResourceVersion; after != before {
		t.Errorf("got resource versions %s after a restart, want %s", after, before)
	}
	f.mustReconcile()
	f.wantRequests()

	f.patch(`{"spec":{"size":2}}`)
	f.mustReconcile()
	f.wantRequests("apply Deployment", "patch status")
	f.wantCondition(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonResizing)
}

// TestProgressDeadline: a server that becomes ready again and again is no progress. Time during which no operator runs
// does not count.
func TestProgressDeadline(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, rollout: {progressDeadlineSeconds: 10}}")
	f.mustReconcile()
	for range 4 {
		f.setServersReady(1)
		f.mustReconcile()
		f.setServersReady(2)
		f.now = f.now.Add(4 * time.Second)
		f.mustReconcile()
	}
	f.wantCondition(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonProgressDeadlineExceeded)
	f.restartOperator()
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonProgressDeadlineExceeded)
	f.patch(`{"spec":{"memory":"128Mi"}}`)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonRollingOut)
	f.restartOperator()
	f.now = f.now.Add(time.Hour)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonRollingOut)
	f.now = f.now.Add(10 * time.Second)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonProgressDeadlineExceeded)
}

// TestNodesAreNeverNull: status.nodes is an empty list if there are no servers.
func TestNodesAreNeverNull(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	f.patch(`{"spec":{"size":0}}`)
	f.mustReconcile()
	f.setServersReady(0)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	if f.mc.Status.Nodes == nil {
		t.Error("got no status.nodes, want an empty list")
	}
	f.mustReconcile()
	f.wantRequests()
}

// TestDriftIsReverted: changes of our fields by another manager are reverted with one apply.
func TestDriftIsReverted(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		kind string
		obj  client.Object
		json string
	}{
		"replicas": {"Deployment", &appsv1.Deployment{}, `{"spec":{"replicas":9}}`},
		"image": {"Deployment", &appsv1.Deployment{},
			`{"spec":{"template":{"spec":{"containers":[{"name":"memcached","image":"other"}]}}}}`},
		"argument": {"Deployment", &appsv1.Deployment{},
			`{"spec":{"template":{"spec":{"containers":[{"name":"memcached","args":["-m","1"]}]}}}}`},
		"template label": {"Deployment", &appsv1.Deployment{},
			`{"spec":{"template":{"metadata":{"labels":{"app.kubernetes.io/part-of":"other"}}}}}`},
		"label": {"Deployment", &appsv1.Deployment{},
			`{"metadata":{"labels":{"app.kubernetes.io/part-of":null}}}`},
		"managed-by label of the workload": {"Deployment", &appsv1.Deployment{},
			`{"metadata":{"labels":{"app.kubernetes.io/managed-by":null}}}`},
		"managed-by label": {"Service", &corev1.Service{}, `{"metadata":{"labels":{"app.kubernetes.io/managed-by":null}}}`},
		"port": {"Service", &corev1.Service{},
			`{"spec":{"ports":[{"port":11211,"name":"memcached","targetPort":1}]}}`},
		"selector": {"Service", &corev1.Service{}, `{"spec":{"selector":{"app.kubernetes.io/instance":"other"}}}`},
		"budget":   {"PodDisruptionBudget", &policyv1.PodDisruptionBudget{}, `{"spec":{"maxUnavailable":5}}`},
		"owner":    {"PodDisruptionBudget", &policyv1.PodDisruptionBudget{}, `{"metadata":{"ownerReferences":null}}`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.becomeReady()
			key := client.ObjectKeyFromObject(f.mc)
			f.must(f.api.Get(f.ctx, key, tt.obj))
			before := tt.obj.DeepCopyObject().(client.Object)
			f.must(f.api.Patch(f.ctx, tt.obj, client.RawPatch(types.StrategicMergePatchType, []byte(tt.json)),
				client.FieldOwner("somebody")))
			f.mustReconcile()
			f.must(f.api.Get(f.ctx, key, tt.obj))
			for _, obj := range []client.Object{before, tt.obj} {
				obj.SetManagedFields(nil)
				obj.SetResourceVersion("")
				obj.SetGeneration(0)
			}
			if !equality.Semantic.DeepEqual(before, tt.obj) {
				t.Errorf("got %s\n%+v\nwant\n%+v", tt.kind, tt.obj, before)
			}
			f.mustReconcile()
			f.mustReconcile()
			if slices.Contains(f.requests, "apply "+tt.kind) {
				t.Errorf("got requests %q, want no apply: nothing differs", f.requests)
			}
		})
	}
}

// TestServiceDriftIsReverted: the API server does not increment metadata.generation of a Service. If somebody created
// the Service with a generation, the generation never changes. Drift is detected nevertheless.
func TestServiceDriftIsReverted(t *testing.T) {
	f := newFixture(t)
	orphan := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: f.mc.Name, Namespace: f.mc.Namespace, Generation: 7,
		Labels: names.Servers.Labels(f.mc)}}
	orphan.Spec = corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"a": "b"}}
	f.must(f.api.Create(f.ctx, orphan))
	f.becomeReady()
	f.mustReconcile()
	before := get[corev1.Service](f)
	f.must(f.api.Patch(f.ctx, get[corev1.Service](f), mergePatch(`{"spec":{"selector":{"a":"b"}}}`),
		client.FieldOwner("somebody")))
	f.mustReconcile()
	if got := get[corev1.Service](f).Spec.Selector; !maps.Equal(got, before.Spec.Selector) {
		t.Errorf("got selector %v, want %v", got, before.Spec.Selector)
	}
}

// TestWorkloadThatTheCacheDoesNotShow: a workload that lost the label by which the informer cache selects it keeps its
// template, even if the operator would now build another one. A deletion of the Memcached deletes the workload.
func TestWorkloadThatTheCacheDoesNotShow(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	template := get[appsv1.Deployment](f).Spec.Template
	relabel := func() {
		f.must(f.api.Patch(f.ctx, get[appsv1.Deployment](f), client.RawPatch(types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"app.kubernetes.io/managed-by":"Helm"}}}`)), client.FieldOwner("somebody")))
	}
	relabel()
	f.now = f.now.Add(children.ExpectationTimeout)
	f.r.Options.OpenShift, f.r.Options.DefaultImage = true, "memcached:2"
	f.mustReconcile()
	f.wantTemplate(template)
	relabel()
	f.now = f.now.Add(children.ExpectationTimeout)
	f.must(f.api.Delete(f.ctx, f.mc))
	f.mustReconcile()
	f.finishDeletion()
}

// TestForeignFieldsArePreserved: fields that others set on our children are preserved, and cause no writes.
func TestForeignFieldsArePreserved(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	patch := []byte(`{"metadata":{"annotations":{"a":"b"}},"spec":{"template":{
		"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"now"}},
		"spec":{"containers":[{"name":"memcached","env":[{"name":"E","value":"1"}],"resources":{"limits":{"cpu":"1"}}}]}}}}`)
	f.must(f.api.Patch(f.ctx, get[appsv1.Deployment](f), client.RawPatch(types.StrategicMergePatchType, patch)))
	before := get[appsv1.Deployment](f)
	f.mustReconcile()
	f.patch(`{"spec":{"memory":"128Mi"}}`)
	f.mustReconcile()
	after := get[appsv1.Deployment](f)
	if len(after.Spec.Template.Spec.Containers[0].Env) != 1 || after.Annotations["a"] != "b" {
		t.Errorf("got annotations %v and containers %+v, want the fields of others in them", after.Annotations,
			after.Spec.Template.Spec.Containers)
	}
	if after.Generation != before.Generation+1 {
		t.Errorf("got generation %d, want %d: one write for the new memory", after.Generation, before.Generation+1)
	}
}

// TestForeignListItems: an item that others add to a list of ours stays, as with any server-side apply. If others
// rename an item of ours, it comes back. An item that the API server does not accept beside ours is removed.
func TestForeignListItems(t *testing.T) {
	t.Parallel()
	ports := func(o client.Object) int { return len(o.(*corev1.Service).Spec.Ports) }
	containers := func(o client.Object) int { return len(o.(*appsv1.Deployment).Spec.Template.Spec.Containers) }
	volumes := func(o client.Object) int { return len(o.(*appsv1.Deployment).Spec.Template.Spec.Volumes) }
	for name, tt := range map[string]struct {
		obj           client.Object
		foreign       string // what another manager patches
		count         func(client.Object) int
		before, after int    // the change
		change        string // of the Memcached
	}{
		"port": {&corev1.Service{}, `{"spec":{"ports":[{"port":1,"name":"other"}]}}`, ports, 2, 2,
			`{"spec":{"containerPort":12345}}`},
		"port of our name": {&corev1.Service{}, `{"spec":{"ports":[{"port":11211,"name":"renamed"},
			{"port":12345,"name":"memcached","protocol":"TCP"}]}}`, ports, 1, 1, `{"spec":{"size":4}}`},
		"container": {&appsv1.Deployment{},
			`{"spec":{"template":{"spec":{"containers":[{"name":"sidecar","image":"x"}]}}}}`, containers, 2, 2,
			`{"spec":{"memory":"128Mi"}}`},
		"renamed container": {&appsv1.Deployment{}, `{"spec":{"template":{"spec":{"containers":[
			{"name":"memcached","$patch":"delete"},{"name":"renamed","image":"x"}]}}}}`, containers, 2, 2,
			`{"spec":{"size":4}}`},
		"volume": {&appsv1.Deployment{}, `{"spec":{"template":{"spec":{"volumes":[{"name":"x","emptyDir":{}}]}}}}`,
			volumes, 3, 3, `{"spec":{"memory":"128Mi"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixtureOf(t, "{size: 3, metrics: {}}")
			f.becomeReady()
			key, servers := client.ObjectKeyFromObject(f.mc), f.mc.Status.Servers
			want := func(n int) {
				t.Helper()
				for range 4 {
					f.mustReconcile()
				}
				f.must(f.api.Get(f.ctx, key, tt.obj))
				if got := tt.count(tt.obj); got != n {
					t.Errorf("got %d items, want %d", got, n)
				}
				f.wantNotStalled()
				f.mustReconcile()
				f.wantRequests()
			}
			f.must(f.api.Get(f.ctx, key, tt.obj))
			f.must(f.api.Patch(f.ctx, tt.obj, client.RawPatch(types.StrategicMergePatchType, []byte(tt.foreign)),
				client.FieldOwner("somebody")))
			want(tt.before)
			if !slices.Equal(f.mc.Status.Servers, servers) {
				t.Errorf("got the addresses %v, want %v", f.mc.Status.Servers, servers)
			}
			f.patch(tt.change)
			want(tt.after)
		})
	}
}

// TestRefusedItems: an item that another manager owns, and that the API server does not accept beside the desired ones,
// is removed. Other fields of theirs stay.
func TestRefusedItems(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	f.applyAsSomebody(get[corev1.Service](f), `{"metadata":{"annotations":{"a":"b"}},"spec":{"sessionAffinity":"ClientIP",
		"ports":[{"port":11211,"name":"memcached","appProtocol":"x"},{"port":1,"name":"other"}]}}`)
	f.mustReconcile()
	if got := get[corev1.Service](f).Spec; len(got.Ports) != 2 || got.SessionAffinity != corev1.ServiceAffinityClientIP {
		t.Errorf("got %+v, want the fields of somebody", got)
	}
	f.patch(`{"spec":{"containerPort":12345}}`)
	f.mustReconcile()
	s := get[corev1.Service](f)
	if len(s.Spec.Ports) != 1 || s.Spec.Ports[0].Port != 12345 || s.Annotations["a"] != "b" ||
		s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		t.Errorf("got %+v with annotations %v, want one port, and the other fields of somebody", s.Spec, s.Annotations)
	}
	f.wantNotStalled()
	f.patch(`{"spec":{"containerPort":11211}}`)
	f.mustReconcile()
	if got := get[corev1.Service](f).Spec.Ports; len(got) != 1 || got[0].Port != 11211 {
		t.Errorf("got ports %+v, want only 11211", got)
	}
}

// TestForeignPortIsReverted: a change of a Service's port by another manager is reverted.
func TestForeignPortIsReverted(t *testing.T) {
	t.Parallel()
	for spec, name := range map[string]string{"{size: 3}": "cache",
		"{size: 1, workload: StatefulSet, serverAddresses: ClusterIP}": "cache-0"} {
		t.Run(name, func(t *testing.T) {
			f := newFixtureOf(t, spec)
			f.mustReconcile()
			s := &corev1.Service{}
			f.must(f.api.Get(f.ctx, f.key(name), s))
			s.Spec.Ports[0].Port = 12000
			f.must(f.api.Update(f.ctx, s, client.FieldOwner("kubectl-edit")))
			for range 3 {
				f.mustReconcile()
			}
			f.must(f.api.Get(f.ctx, f.key(name), s))
			if len(s.Spec.Ports) != 1 || s.Spec.Ports[0].Port != 11211 {
				t.Errorf("got ports %+v, want only 11211", s.Spec.Ports)
			}
			f.wantNotStalled()
		})
	}
}

// applyAsSomebody applies fields of a child as another field manager.
func (f *fixture) applyAsSomebody(child client.Object, fields string) {
	f.Helper()
	u := &unstructured.Unstructured{}
	f.must(json.Unmarshal([]byte(fields), &u.Object))
	u.SetGroupVersionKind(f.gvk(child))
	u.SetNamespace(child.GetNamespace())
	u.SetName(child.GetName())
	f.must(f.api.Apply(f.ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("somebody"),
		client.ForceOwnership))
}

func (f *fixture) wantNotStalled() {
	f.Helper()
	if c := meta.FindStatusCondition(f.mc.Status.Conditions, v1alpha1.ConditionStalled); c != nil {
		f.Errorf("got Stalled with %q, want no such condition", c.Message)
	}
}

func (f *fixture) gvk(obj client.Object) schema.GroupVersionKind {
	f.Helper()
	gvk, err := apiutil.GVKForObject(obj, f.api.Scheme())
	f.must(err)
	return gvk
}

// controlledByOther returns the reference to a controller that is not a Memcached.
func controlledByOther(uid types.UID) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Other", Name: "other", UID: uid,
		Controller: ptr.To(true)}}
}

// minimalObjects returns an object without a name for each of some kinds of children, with only the required fields.
func minimalObjects() map[string]client.Object {
	labels := map[string]string{"a": "b"}
	return map[string]client.Object{
		"Deployment": &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}}},
		"Service":             &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}}},
		"PodDisruptionBudget": &policyv1.PodDisruptionBudget{},
	}
}

// TestForeignObjectWithNameOfChild: a foreign object with the name of a child is reported as a conflict, and not
// written.
func TestForeignObjectWithNameOfChild(t *testing.T) {
	t.Parallel()
	variants := map[string]func(*fixture, client.Object){
		"plain":             func(*fixture, client.Object) {},
		"with a controller": func(_ *fixture, o client.Object) { o.SetOwnerReferences(controlledByOther("other")) },
		"with our labels, a controller": func(f *fixture, o client.Object) {
			o.SetLabels(names.Servers.Labels(f.mc))
			o.SetOwnerReferences(controlledByOther("other"))
		},
		"with some of our labels": func(_ *fixture, o client.Object) {
			o.SetLabels(map[string]string{names.LabelManagedBy: names.Operator})
		},
	}
	for kind, template := range minimalObjects() {
		for name, modify := range variants {
			t.Run(kind+" "+name, func(t *testing.T) {
				f := newFixture(t)
				obj := template.DeepCopyObject().(client.Object)
				obj.SetName(f.mc.Name)
				obj.SetNamespace(f.mc.Namespace)
				modify(f, obj)
				f.must(f.api.Create(f.ctx, obj))
				version := obj.GetResourceVersion()

				result := f.mustReconcile()
				if result.RequeueAfter == conflictRetry { // because the API server refused the creation
					result = f.mustReconcile()
				}
				if result.RequeueAfter != time.Minute {
					t.Errorf("got requeue after %s, want a minute", result.RequeueAfter)
				}
				f.wantCondition(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonConflict)
				f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonConflict)
				f.wantEvent("Warning Conflict " + kind + " cache exists")
				f.must(f.api.Get(f.ctx, client.ObjectKeyFromObject(obj), obj))
				if obj.GetResourceVersion() != version {
					t.Errorf("got %s of version %s, want it unchanged at %s", kind, obj.GetResourceVersion(), version)
				}

				f.must(f.api.Delete(f.ctx, obj))
				f.mustReconcile()
				f.setServersReady(3)
				f.mustReconcile()
				f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
				f.wantNotStalled()
			})
		}
	}
}

// TestOrphansAreAdopted: children without an owner reference are adopted, and no server is replaced.
func TestOrphansAreAdopted(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	template := get[appsv1.Deployment](f).Spec.Template
	for _, obj := range []client.Object{get[appsv1.Deployment](f), get[corev1.Service](f),
		get[policyv1.PodDisruptionBudget](f)} {
		f.must(f.api.Patch(f.ctx, obj, client.RawPatch(types.MergePatchType,
			[]byte(`{"metadata":{"ownerReferences":null}}`))))
	}
	f.mustReconcile()
	f.wantEvent("Normal Adopted Deployment cache")
	for _, obj := range []client.Object{get[appsv1.Deployment](f), get[corev1.Service](f),
		get[policyv1.PodDisruptionBudget](f)} {
		if !metav1.IsControlledBy(obj, f.mc) {
			t.Errorf("got owners %+v of %T, want the Memcached", obj.GetOwnerReferences(), obj)
		}
	}
	f.wantTemplate(template)
}

// TestOrphanWithoutLabelsIsAdopted: a child that lost its labels and its owner is adopted, because its managedFields
// show that the operator applied it.
func TestOrphanWithoutLabelsIsAdopted(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	f.must(f.api.Patch(f.ctx, get[appsv1.Deployment](f), mergePatch(`{"metadata":{"ownerReferences":null,"labels":null}}`),
		client.FieldOwner("somebody")))
	f.now = f.now.Add(children.ExpectationTimeout)
	f.mustReconcile()
	f.wantEvent("Normal Adopted Deployment cache")
	f.wantNotStalled()
	if d := get[appsv1.Deployment](f); !metav1.IsControlledBy(d, f.mc) {
		t.Errorf("got owners %+v of the Deployment, want the Memcached", d.OwnerReferences)
	}
}

// TestFormerLeaderRestoresNothing: an operator that hung, and is no longer the leader, does not restore an older
// template.
func TestFormerLeaderRestoresNothing(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	before, old := get[appsv1.Deployment](f), f.mc.DeepCopy()
	f.patch(`{"spec":{"memory":"128Mi"}}`)
	f.mustReconcile()
	template := get[appsv1.Deployment](f).Spec.Template
	f.now = f.now.Add(children.ExpectationTimeout)
	before.Spec.Replicas = ptr.To[int32](9) // a drift that the operator tries to revert
	// For a Memcached that is ready, the operator would write the status first, which would fail with a conflict.
	old.Status.Conditions = nil
	f.cached["Deployment"], f.cached[kindMemcached] = before, old
	_, _ = f.reconcile()
	f.wantTemplate(template)
	if !slices.Contains(f.requests, "apply Deployment") {
		t.Errorf("got requests %q, want apply Deployment", f.requests)
	}
}

// TestWorkloadStatusChangesDuringApply: an apply that conflicts with a status update of the Deployment is repeated.
func TestWorkloadStatusChangesDuringApply(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	f.cached["Deployment"] = get[appsv1.Deployment](f)
	f.setServersReady(2)
	f.patch(`{"spec":{"size":2}}`)
	f.mustReconcile()
	f.wantRequests("apply Deployment", "get Deployment", "apply Deployment", "patch status")
	if got := *get[appsv1.Deployment](f).Spec.Replicas; got != 2 {
		t.Errorf("got %d replicas, want 2", got)
	}
}

// TestDebugPodsAreNotServers: pods with our labels that others created are not counted as servers.
func TestDebugPodsAreNotServers(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	for name, owners := range map[string][]metav1.OwnerReference{
		"bare": nil,
		"replica-set": {{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "cache-debug", UID: "a",
			Controller: ptr.To(true)}},
		"other-resource": controlledByOther("b"),
	} {
		f.createPod(name, withTemplateHash(names.Servers.Labels(f.mc)), owners, false)
	}
	f.mustReconcile()
	f.wantRequests()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// TestNoServersWithoutNetworkPolicy: while the NetworkPolicy cannot be written, because it is refused or its name is
// taken, no server is created or changed.
func TestNoServersWithoutNetworkPolicy(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, networkPolicy: {}}")
	f.failures["apply NetworkPolicy"] = forbidden("no")
	noDeployment := func() bool { return apierrors.IsNotFound(f.api.Get(f.ctx, f.key("cache"), &appsv1.Deployment{})) }
	f.wantReconcileError("apply NetworkPolicy cache")
	f.wantCondition(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressingWithRetry)
	if !noDeployment() {
		t.Error("got a Deployment while the NetworkPolicy is refused, want none")
	}
	f.failures = map[string]error{}
	foreign := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "cache", Namespace: f.mc.Namespace}}
	f.must(f.api.Create(f.ctx, foreign))
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonConflict)
	if !noDeployment() {
		t.Error("got a Deployment beside a foreign NetworkPolicy, want none")
	}
	f.must(f.api.Delete(f.ctx, foreign))
	f.becomeReady()

	d := get[appsv1.Deployment](f)
	f.patch(`{"spec":{"size":5,"networkPolicy":{"from":[{"podSelector":{}}]}}}`)
	f.failures["apply NetworkPolicy"] = forbidden("no")
	f.wantReconcileError("apply NetworkPolicy cache")
	if got := get[appsv1.Deployment](f); got.ResourceVersion != d.ResourceVersion {
		t.Error("got a changed Deployment while the NetworkPolicy is refused, want it unchanged")
	}
}

// TestNoProxiesWithForeignConfig: no proxies are created while the name of their ConfigMap is taken.
func TestNoProxiesWithForeignConfig(t *testing.T) {
	f := newFixtureOf(t, "{size: 1, workload: StatefulSet, proxy: {size: 1}}")
	f.must(f.api.Create(f.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cache-proxy",
		Namespace: f.mc.Namespace}, Data: map[string]string{"proxy.lua": "evil()"}}))
	f.mustReconcile()
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonConflict)
	if err := f.api.Get(f.ctx, f.key("cache-proxy"), &appsv1.Deployment{}); !apierrors.IsNotFound(err) {
		t.Errorf("got %v, want no Deployment of proxies", err)
	}
}

// TestReadyIgnoresStaleWorkload: Ready does not become True by a stale Deployment in the informer cache, even if its
// spec is as desired. That holds for the process that wrote the newer Deployment, and after a restart.
func TestReadyIgnoresStaleWorkload(t *testing.T) {
	t.Parallel()
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarted %t", restarted), func(t *testing.T) {
			f := newFixture(t)
			f.becomeReady()
			first := get[appsv1.Deployment](f)
			f.patch(`{"spec":{"memory":"128Mi"}}`)
			f.mustReconcile()
			f.patch(`{"spec":{"memory":"64Mi"}}`)
			f.cached["Deployment"] = first
			if restarted {
				f.restartOperator()
			}
			f.mustReconcile()
			if meta.IsStatusConditionTrue(f.mc.Status.Conditions, v1alpha1.ConditionReady) &&
				f.mc.Status.ObservedGeneration == f.mc.Generation {
				t.Errorf("got Ready by the Deployment of generation %d", first.Generation)
			}
		})
	}
}

// TestOlderMemcached: the informer cache of a new operator process may be late for Memcacheds alone. The operator does
// not apply the older spec, even if that Memcached has no finalizer yet. It goes on if only the label of the Deployment
// is wrong.
func TestOlderMemcached(t *testing.T) {
	f := newFixture(t)
	created := f.mc.DeepCopy()
	f.becomeReady()
	f.patch(`{"spec":{"size":4}}`)
	f.mustReconcile()
	older := f.mc.DeepCopy()
	f.patch(`{"spec":{"size":5}}`)
	f.mustReconcile()
	for _, older := range []*v1alpha1.Memcached{older, created} {
		f.restartOperator()
		f.cached[kindMemcached] = older
		f.mustReconcile()
		if size := *get[appsv1.Deployment](f).Spec.Replicas; size != 5 {
			t.Errorf("generation %d: got %d servers, want 5", older.Generation, size)
		}
	}
	delete(f.cached, kindMemcached)
	f.applyAsSomebody(get[appsv1.Deployment](f), `{"metadata":{"labels":{"`+v1alpha1.GenerationLabel+`":"1000"}}}`)
	f.patch(`{"spec":{"size":6}}`)
	f.mustReconcile()
	if size := *get[appsv1.Deployment](f).Spec.Replicas; size != 6 {
		t.Errorf("got %d servers, want 6", size)
	}
}

// TestChangeAndReversal: a change of the spec and its reversal right afterwards both reach the child.
func TestChangeAndReversal(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	for _, n := range []string{"2", "1"} {
		f.patch(`{"spec":{"disruptionBudget":{"maxUnavailable":` + n + `}}}`)
		f.mustReconcile()
		if got := get[policyv1.PodDisruptionBudget](f).Spec.MaxUnavailable.String(); got != n {
			t.Errorf("got maxUnavailable %s, want %s", got, n)
		}
	}
}

// TestRefusedImageIsNotKept: after spec.image is removed, the image that last ran is used, not one that was refused.
func TestRefusedImageIsNotKept(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	before := get[appsv1.Deployment](f).Spec.Template
	f.failures["apply Deployment"] = forbidden("denied by a policy")
	f.patch(`{"spec":{"image":"refused"}}`)
	if _, err := f.reconcile(); !apierrors.IsForbidden(err) {
		t.Errorf("got error %v, want Forbidden", err)
	}
	if f.mc.Status.Image != "memcached:1" {
		t.Errorf("got status.image %q, want memcached:1", f.mc.Status.Image)
	}
	f.failures["apply Deployment"] = nil
	f.patch(`{"spec":{"image":null}}`)
	f.mustReconcile()
	f.wantTemplate(before)
}

// TestChildDeletedBeforeTheCacheShowsIt: a child that the informer cache never shows is created again after
// ExpectationTimeout.
func TestChildDeletedBeforeTheCacheShowsIt(t *testing.T) {
	f := newFixture(t)
	f.mustReconcile()
	f.must(f.api.Delete(f.ctx, get[appsv1.Deployment](f)))
	if result := f.mustReconcile(); result.RequeueAfter == 0 || len(f.requests) > 0 {
		t.Errorf("got %+v and requests %q, want a requeue and no requests", result, f.requests)
	}
	f.now = f.now.Add(children.ExpectationTimeout)
	f.mustReconcile()
	get[appsv1.Deployment](f)
}

// TestRestartIsAnnounced: a change without a new generation sets Ready to False before servers are replaced.
func TestRestartIsAnnounced(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	f.r.Options.DefaultImage = "memcached:2"
	f.patch(`{"metadata":{"annotations":{"cache.example.com/restartedAt":"now"}}}`)
	f.mustReconcile()
	f.wantRequests("patch status", "apply Deployment",
		"patch status") // the second one sets status.image
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRollingOut)
	template := get[appsv1.Deployment](f).Spec.Template
	if got := template.Annotations[v1alpha1.RestartedAtAnnotation]; got != "now" {
		t.Errorf("got restartedAt %q in the template, want now", got)
	}
	if got := template.Spec.Containers[0].Image; got != "memcached:2" || f.mc.Status.Image != got {
		t.Errorf("got image %q and status.image %q, want memcached:2", got, f.mc.Status.Image)
	}

	f.patch(`{"metadata":{"annotations":null}}`)
	f.mustReconcile()
	f.wantTemplate(template)
}

// TestOutdated: the status says which images of a Memcached are not those of a new one. A restart updates them.
func TestOutdated(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, metrics: {}}")
	wantOutdated := func(want ...string) {
		t.Helper()
		if !slices.Equal(f.mc.Status.Outdated, want) {
			t.Errorf("got status.outdated %q, want %q", f.mc.Status.Outdated, want)
		}
	}
	f.becomeReady()
	wantOutdated()
	before := get[appsv1.Deployment](f).Spec.Template

	f.restartOperator()
	f.r.Options.DefaultImage, f.r.Options.AgentImage = "memcached:2", "operator:2"
	f.mustReconcile()
	f.wantTemplate(before)
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	wantOutdated("image", "agentImage")
	if f.mc.Status.AgentImage != "operator:1" {
		t.Errorf("got status.agentImage %q, want operator:1", f.mc.Status.AgentImage)
	}

	f.patch(`{"metadata":{"annotations":{"cache.example.com/restartedAt":"now"}}}`)
	f.failures["apply Deployment"] = forbidden("a policy refuses the new images")
	if _, err := f.reconcile(); err != nil {
		t.Logf("refused: %v", err)
	}
	wantOutdated("image", "agentImage")
	clear(f.failures)
	f.mustReconcile()
	wantOutdated()
	if f.mc.Status.AgentImage != "operator:2" {
		t.Errorf("got status.agentImage %q, want operator:2", f.mc.Status.AgentImage)
	}
	f.becomeReady()
	f.r.Options.DefaultImage, f.r.Options.AgentImage = "memcached:3", "operator:3"
	f.patch(`{"spec":{"image":"memcached:2"}}`) // the user's own choice, and no reason for new servers
	f.mustReconcile()
	f.setServersReady(3)
	f.mustReconcile()
	wantOutdated("agentImage")
}

// TestPaused: while spec.paused is set, changes are reported and not applied.
func TestPaused(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	f.patch(`{"spec":{"paused":true}}`)
	f.mustReconcile()
	f.wantRequests("patch status")
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.wantEvent("Normal Paused")
	f.patch(`{"spec":{"image":"memcached:2"}}`)
	f.mustReconcile()
	f.wantRequests("dry-run Deployment", "patch status")
	f.mustReconcile()
	f.wantRequests("dry-run Deployment")
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPaused)
	if f.mc.Status.Image != "memcached:1" {
		t.Errorf("got status.image %q while paused, want memcached:1", f.mc.Status.Image)
	}
	f.patch(`{"spec":{"paused":false}}`)
	f.mustReconcile()
	f.wantRequests("apply Deployment", "patch status")
	f.wantEvent("Normal Resumed")
}

// TestApplyErrors: the kind of an error decides the condition that reports it, and the time of the retry.
func TestApplyErrors(t *testing.T) {
	f := newFixture(t)
	f.failures["apply Deployment"] = forbidden("exceeded quota")
	if _, err := f.reconcile(); !apierrors.IsForbidden(err) {
		t.Errorf("got error %v, want Forbidden, so that it is retried", err)
	}
	f.wantCondition(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressingWithRetry)
	f.wantEvent("Warning ProgressingWithRetry apply Deployment cache")

	f.failures["apply Deployment"] = apierrors.NewInvalid(schema.GroupKind{Kind: "Deployment"}, "cache", nil)
	if result := f.mustReconcile(); result.RequeueAfter != time.Minute {
		t.Errorf("got requeue after %s for an invalid child, want a minute", result.RequeueAfter)
	}
	f.wantCondition(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonInvalid)

	f.failures["apply Deployment"] = errors.New(strings.Repeat("ä", 40000)) // too long for the message of a condition
	if _, err := f.reconcile(); err == nil {
		t.Error("got no error for an unknown one, want it returned, so that it is retried")
	}
	f.wantCondition(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressingWithRetry)

	f.failures["apply Deployment"] = nil
	f.now = f.now.Add(children.ExpectationTimeout)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonRollingOut)
}

// TestOwnerDeleted: nothing is created for a deleted Memcached that the informer cache still shows.
func TestOwnerDeleted(t *testing.T) {
	f := newFixture(t)
	f.mustReconcile()
	f.setServersReady(1) // if it were ready, the status would be written first, and show the deletion
	f.mustReconcile()
	f.cached[kindMemcached] = f.mc.DeepCopy()
	f.must(f.api.Delete(f.ctx, f.mc, client.PropagationPolicy(metav1.DeletePropagationForeground)))
	f.must(f.api.Delete(f.ctx, get[appsv1.Deployment](f)))
	f.mustReconcile()
	f.wantRequests("get Deployment", "get Deployment", "get Memcached")
}

// TestNamespaceDeleted: the deletion of a namespace deletes children before their Memcached. The operator cannot
// recreate them, and waits for the deletion of the Memcached.
func TestNamespaceDeleted(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	f.must(f.api.Delete(f.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: f.mc.Namespace}}))
	f.must(f.api.Delete(f.ctx, get[appsv1.Deployment](f)))
	if result := f.mustReconcile(); result.RequeueAfter != deletionRetry {
		t.Errorf("got a reconcile after %s, want %s", result.RequeueAfter, deletionRetry)
	}
	f.wantRequests("get Deployment", "get Deployment", "patch status", "get Memcached", "apply Deployment")
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRollingOut)
}

// TestDeletion: the operator deletes the workload, and removes the finalizer when the servers are deleted.
func TestDeletion(t *testing.T) {
	t.Parallel()
	t.Run("waits for servers", func(t *testing.T) {
		f := newFixture(t)
		f.becomeReady()
		f.must(f.api.Delete(f.ctx, f.mc))
		f.mustReconcile()
		f.wantRequests("get Namespace", "patch status", "delete Deployment")
		f.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonFinalizing)
		f.wantEvent("Normal Finalizing")
		f.mustReconcile()
		f.wantRequests()
		if !controllerutil.ContainsFinalizer(f.mc, v1alpha1.Finalizer) {
			t.Error("got the finalizer removed while pods exist")
		}
		f.finishDeletion()
		f.wantRequests("patch Memcached")
	})
	t.Run("waits for finalizeTimeout at most, even if the operator restarts", func(t *testing.T) {
		f := newFixture(t)
		f.becomeReady()
		f.must(f.api.Delete(f.ctx, f.mc))
		f.now = f.now.Add(time.Hour) // during which no operator runs
		f.mustReconcile()
		f.now = time.Now().Add(time.Minute)
		f.restartOperator()
		if result := f.mustReconcile(); result.RequeueAfter < finalizeTimeout-time.Minute-10*time.Second ||
			result.RequeueAfter > finalizeTimeout-time.Minute+time.Second {
			t.Errorf("got requeue after %s, want what is left of %s", result.RequeueAfter, finalizeTimeout)
		}
		f.now = f.now.Add(finalizeTimeout)
		f.mustReconcile()
		f.wantRequests("patch Memcached")
		f.wantEvent("Warning FinalizeTimeout")
	})
	t.Run("waits for a workload that cannot be deleted", func(t *testing.T) {
		f := newFixture(t)
		f.mustReconcile()
		f.failures["delete Deployment"] = forbidden("denied by a policy")
		f.must(f.api.Delete(f.ctx, f.mc))
		f.now = f.now.Add(finalizeTimeout + time.Minute)
		for _, want := range [][]string{{"get Namespace", "patch status", "delete Deployment", "patch status",
			"get Namespace"}, {"delete Deployment", "get Namespace"}} {
			f.wantReconcileError("denied by a policy")
			f.wantRequests(want...)
			f.now = f.now.Add(time.Second)
		}
		f.now = f.now.Add(steps.Pace)
		f.wantReconcileError("denied by a policy")
		f.wantMessage(v1alpha1.ConditionReady, "denied by a policy")
	})
	t.Run("does not wait in a namespace that is being deleted", func(t *testing.T) {
		f := newFixture(t)
		f.becomeReady()
		f.must(f.api.Delete(f.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: f.mc.Namespace}}))
		f.must(f.api.Delete(f.ctx, f.mc))
		f.failures["delete Deployment"] = forbidden("no RoleBinding")
		f.mustReconcile()
		f.wantRequests("get Namespace", "patch Memcached")
	})
	t.Run("deletes nothing if the deletion orphans the children", func(t *testing.T) {
		f := newFixture(t)
		f.becomeReady()
		f.must(f.api.Delete(f.ctx, f.mc, client.PropagationPolicy(metav1.DeletePropagationOrphan)))
		f.mustReconcile()
		f.wantRequests("patch Memcached")
		if d := get[appsv1.Deployment](f); !d.DeletionTimestamp.IsZero() {
			t.Error("got the Deployment deleted, want it left")
		}
	})
	t.Run("deletes no workload that was just orphaned", func(t *testing.T) {
		f := newFixture(t)
		f.becomeReady()
		f.cached["Deployment"] = get[appsv1.Deployment](f)
		f.must(f.api.Patch(f.ctx, get[appsv1.Deployment](f), client.RawPatch(types.MergePatchType,
			[]byte(`{"metadata":{"ownerReferences":null}}`))))
		f.must(f.api.Delete(f.ctx, f.mc))
		f.mustReconcile()
		if d := get[appsv1.Deployment](f); !d.DeletionTimestamp.IsZero() {
			t.Error("got the Deployment deleted, want it left")
		}
	})
	t.Run("adopts no orphan after the deletion", func(t *testing.T) {
		f := newFixture(t)
		f.becomeReady()
		f.cached[kindMemcached] = f.mc.DeepCopy()
		f.must(f.api.Delete(f.ctx, f.mc, client.PropagationPolicy(metav1.DeletePropagationOrphan)))
		f.must(f.api.Patch(f.ctx, get[appsv1.Deployment](f), client.RawPatch(types.MergePatchType,
			[]byte(`{"metadata":{"ownerReferences":null}}`))))
		f.mustReconcile()
		if metav1.IsControlledBy(get[appsv1.Deployment](f), f.mc) {
			t.Errorf("got the Deployment adopted with requests %q, want it left", f.requests)
		}
	})
	t.Run("removes the finalizer even if others own it too", func(t *testing.T) {
		f := newFixture(t)
		f.patch(`{"metadata":{"finalizers":["cache.example.com/finalizer"]}}`)
		f.becomeReady()
		f.must(f.api.Delete(f.ctx, f.mc, client.PropagationPolicy(metav1.DeletePropagationOrphan)))
		f.mustReconcile()
		if controllerutil.ContainsFinalizer(f.mc, v1alpha1.Finalizer) {
			t.Error("got our finalizer, want it removed")
		}
	})
	t.Run("keeps the finalizers of others", func(t *testing.T) {
		f := newFixture(t)
		f.becomeReady()
		f.patch(`{"metadata":{"finalizers":["cache.example.com/finalizer","example.com/other"]}}`)
		f.must(f.api.Delete(f.ctx, f.mc, client.PropagationPolicy(metav1.DeletePropagationOrphan)))
		f.mustReconcile()
		if len(f.mc.Finalizers) != 2 || controllerutil.ContainsFinalizer(f.mc, v1alpha1.Finalizer) {
			t.Errorf("got finalizers %q, want those of others", f.mc.Finalizers)
		}
	})
}

// collectGarbage acts as the garbage collector: it deletes the pods of a Deployment that is being deleted in the
// foreground, and then the Deployment.
func (f *fixture) collectGarbage() {
	f.Helper()
	d := get[appsv1.Deployment](f)
	if d.DeletionTimestamp.IsZero() || !controllerutil.ContainsFinalizer(d, metav1.FinalizerDeleteDependents) {
		f.Errorf("got Deployment %+v, want it being deleted in the foreground", d.ObjectMeta)
	}
	f.deletePods()
	f.must(f.api.Patch(f.ctx, d, mergePatch(`{"metadata":{"finalizers":null}}`)))
}
