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
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/names"
)

// TestRequests: a creation takes six requests, and a reconcile that changes nothing takes none. docs/performance.md has
// what that costs.
func TestRequests(t *testing.T) {
	f := newFixture(t)
	f.mustReconcile()
	f.wantRequests("apply Memcached", "apply Service", "apply PodDisruptionBudget", "apply Deployment", "patch status")
	f.roll(3)
	f.mustReconcile()
	f.wantRequests("patch status")
	f.wantEvent("Normal Ready 3 of 3 servers ready")
	f.mustReconcile()
	f.wantRequests()

	f.restart()
	f.r.Options.DefaultImage = "memcached:2"
	f.mustReconcile()
	f.wantRequests()

	f.patch(`{"spec":{"size":2}}`)
	f.mustReconcile()
	f.wantRequests("apply Deployment", "patch status")
	f.want(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonResizing)
}

// TestProgress: status updates that only report progress are rate-limited; all others are written at once.
func TestProgress(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, rollout: {progressDeadlineSeconds: 10}}")
	f.mustReconcile()
	f.roll(0)
	if result := f.mustReconcile(); result.RequeueAfter != progressInterval {
		t.Errorf("reports new servers after %s, want %s", result.RequeueAfter, progressInterval)
	}
	f.wantRequests()
	f.roll(1) // Available, but not Ready
	f.mustReconcile()
	f.wantRequests()
	f.now = f.now.Add(progressInterval)
	f.mustReconcile()
	f.wantRequests("patch status")
	f.want(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonAvailable)
	f.roll(2)
	f.mustReconcile()
	f.wantRequests()
	f.roll(0)
	f.mustReconcile()
	f.wantRequests("patch status")
	f.want(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.ReasonUnavailable)
	if result := f.mustReconcile(); result.RequeueAfter != 10*time.Second {
		t.Errorf("requeues for the deadline after %s, want 10 s", result.RequeueAfter)
	}
	f.roll(3)
	f.mustReconcile()
	f.wantRequests("patch status")
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// TestDeadline: a server that becomes ready again and again is no progress; time without an operator does not count.
func TestDeadline(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, rollout: {progressDeadlineSeconds: 10}}")
	f.mustReconcile()
	for range 4 {
		f.roll(1)
		f.mustReconcile()
		f.roll(2)
		f.now = f.now.Add(4 * time.Second)
		f.mustReconcile()
	}
	f.want(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonProgressDeadlineExceeded)
	f.restart()
	f.mustReconcile()
	f.want(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonProgressDeadlineExceeded)
	f.patch(`{"spec":{"memory":"128Mi"}}`)
	f.mustReconcile()
	f.want(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonRollingOut)
	f.restart()
	f.now = f.now.Add(time.Hour)
	f.mustReconcile()
	f.want(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonRollingOut)
	f.now = f.now.Add(10 * time.Second)
	f.mustReconcile()
	f.want(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonProgressDeadlineExceeded)
}

// TestEmptyNodes: status.nodes is a list even if the last servers were all deleted at once.
func TestEmptyNodes(t *testing.T) {
	f := newFixture(t)
	f.ready()
	f.patch(`{"spec":{"size":0}}`)
	f.mustReconcile()
	f.roll(0)
	f.mustReconcile()
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	if f.mc.Status.Nodes == nil {
		t.Error("status.nodes is absent")
	}
	f.mustReconcile()
	f.wantRequests()
}

func TestDrift(t *testing.T) {
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
		"cache label of the workload": {"Deployment", &appsv1.Deployment{},
			`{"metadata":{"labels":{"app.kubernetes.io/managed-by":null}}}`},
		"cache label": {"Service", &corev1.Service{}, `{"metadata":{"labels":{"app.kubernetes.io/managed-by":null}}}`},
		"port": {"Service", &corev1.Service{},
			`{"spec":{"ports":[{"port":11211,"name":"memcached","targetPort":1}]}}`},
		"selector": {"Service", &corev1.Service{}, `{"spec":{"selector":{"app.kubernetes.io/instance":"other"}}}`},
		"budget":   {"PodDisruptionBudget", &policyv1.PodDisruptionBudget{}, `{"spec":{"maxUnavailable":5}}`},
		"owner":    {"PodDisruptionBudget", &policyv1.PodDisruptionBudget{}, `{"metadata":{"ownerReferences":null}}`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.ready()
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
				t.Errorf("%s was not reverted:\n got %+v\nwant %+v", tt.kind, tt.obj, before)
			}
			f.mustReconcile()
			f.mustReconcile()
			for _, r := range f.requests {
				if r == "apply "+tt.kind {
					t.Errorf("%s is applied again, though nothing differs", tt.kind)
				}
			}
		})
	}
}

// TestDriftWithoutGenerations: the API server counts no changes of a Service, but keeps a number that it was created
// with.
func TestDriftWithoutGenerations(t *testing.T) {
	f := newFixture(t)
	left := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: f.mc.Name, Namespace: f.mc.Namespace, Generation: 7,
		Labels: names.Servers.Labels(f.mc)}}
	left.Spec = corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"a": "b"}}
	f.must(f.api.Create(f.ctx, left))
	f.ready()
	f.mustReconcile()
	before := get[corev1.Service](f)
	f.must(f.api.Patch(f.ctx, get[corev1.Service](f), mergePatch(`{"spec":{"selector":{"a":"b"}}}`),
		client.FieldOwner("somebody")))
	if !childChanged(event.UpdateEvent{ObjectOld: before, ObjectNew: get[corev1.Service](f)}) {
		t.Error("the change of the Service is no reason to reconcile")
	}
	f.mustReconcile()
	if got := get[corev1.Service](f).Spec.Selector; !maps.Equal(got, before.Spec.Selector) {
		t.Errorf("the selector is %v, want %v", got, before.Spec.Selector)
	}
}

// TestOutOfSight: a workload that lost the label by which the informer cache selects it keeps its template, though the
// builder would now build another, and a deletion finds it.
func TestOutOfSight(t *testing.T) {
	f := newFixture(t)
	f.ready()
	template := get[appsv1.Deployment](f).Spec.Template
	lose := func() {
		f.must(f.api.Patch(f.ctx, get[appsv1.Deployment](f), client.RawPatch(types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"app.kubernetes.io/managed-by":"Helm"}}}`)), client.FieldOwner("somebody")))
	}
	lose()
	f.now = f.now.Add(children.ExpectationTimeout)
	f.r.Options.OpenShift, f.r.Options.DefaultImage = true, "memcached:2"
	f.mustReconcile()
	f.wantTemplate(template)
	lose()
	f.now = f.now.Add(children.ExpectationTimeout)
	f.must(f.api.Delete(f.ctx, f.mc))
	f.mustReconcile()
	f.gone()
}

// TestForeignFields: fields that others set on our children are preserved, and cause no writes. A list of ours holds
// our items and no others.
func TestForeignFields(t *testing.T) {
	f := newFixture(t)
	f.ready()
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
		t.Errorf("what others added is gone: %+v", after.Spec.Template.Spec.Containers)
	}
	if after.Generation != before.Generation+1 {
		t.Errorf("generation went from %d to %d, want one write for the new memory", before.Generation, after.Generation)
	}
}

// TestOthersItems: an item that others add to a list of ours is removed, whether the list has to change or not.
func TestOthersItems(t *testing.T) {
	for name, tt := range map[string]struct {
		obj     client.Object
		others  string
		count   func(client.Object) int
		further string // a change of the spec that replaces the item itself
	}{
		"port of a Service": {&corev1.Service{}, `{"spec":{"ports":[{"port":11211,"name":"memcached","appProtocol":"x"},
			{"port":1,"name":"other"}]}}`,
			func(o client.Object) int { return len(o.(*corev1.Service).Spec.Ports) }, ""},
		"co-owned port of a Service": {&corev1.Service{},
			`{"spec":{"ports":[{"port":11211,"name":"memcached","appProtocol":"x"}]}}`,
			func(o client.Object) int { return len(o.(*corev1.Service).Spec.Ports) }, `{"spec":{"containerPort":12345}}`},
		"container": {&appsv1.Deployment{}, `{"spec":{"template":{"spec":{"containers":[{"name":"sidecar","image":"x"}]}}}}`,
			func(o client.Object) int { return len(o.(*appsv1.Deployment).Spec.Template.Spec.Containers) },
			`{"spec":{"memory":"128Mi"}}`},
		"co-owned container port": {&appsv1.Deployment{}, `{"spec":{"template":{"spec":{"containers":[{"name":"memcached",
			"ports":[{"containerPort":11211,"name":"memcached","protocol":"TCP"}]}]}}}}`,
			func(o client.Object) int { return len(o.(*appsv1.Deployment).Spec.Template.Spec.Containers[0].Ports) },
			`{"spec":{"containerPort":12345}}`},
		"volume": {&appsv1.Deployment{}, `{"spec":{"template":{"spec":{"volumes":[{"name":"x","emptyDir":{}}]}}}}`,
			func(o client.Object) int { return len(o.(*appsv1.Deployment).Spec.Template.Spec.Volumes) },
			`{"spec":{"memory":"128Mi"}}`},
		"init container": {&appsv1.Deployment{},
			`{"spec":{"template":{"spec":{"initContainers":[{"name":"x","image":"x"}]}}}}`,
			func(o client.Object) int { return len(o.(*appsv1.Deployment).Spec.Template.Spec.InitContainers) },
			`{"spec":{"memory":"128Mi"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixtureOf(t, "{size: 3, metrics: {}}")
			f.ready()
			key := client.ObjectKeyFromObject(f.mc)
			f.must(f.api.Get(f.ctx, key, tt.obj))
			want := tt.count(tt.obj)
			tt.obj.SetManagedFields(nil)
			var content map[string]any
			f.must(json.Unmarshal([]byte(tt.others), &content))
			u := &unstructured.Unstructured{Object: content}
			u.SetGroupVersionKind(f.gvk(tt.obj))
			u.SetNamespace(key.Namespace)
			u.SetName(key.Name)
			f.must(f.api.Apply(f.ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("somebody"),
				client.ForceOwnership))
			if _, ok := tt.obj.(*appsv1.Deployment); ok && !strings.Contains(tt.further, "Port") {
				f.mustReconcile()
				f.must(f.api.Get(f.ctx, key, tt.obj))
				if got := tt.count(tt.obj); got == want {
					t.Error("servers are replaced because of what others added")
				}
			}
			if tt.further != "" {
				f.patch(tt.further)
			}
			for range 4 {
				f.mustReconcile()
				f.now = f.now.Add(controllerTimeout)
			}
			f.must(f.api.Get(f.ctx, key, tt.obj))
			if got := tt.count(tt.obj); got != want {
				t.Errorf("there are %d items, want %d: %+v", got, want, tt.obj)
			}
			if c := meta.FindStatusCondition(f.mc.Status.Conditions, v1alpha1.ConditionStalled); c != nil {
				t.Errorf("stalled: %s", c.Message)
			}
			f.mustReconcile()
			f.wantRequests()
		})
	}
}

// TestMergedFields: a field that was written together with a list can be removed later.
func TestMergedFields(t *testing.T) {
	f := newFixture(t)
	f.ready()
	sidecar := `{"apiVersion":"apps/v1","kind":"Deployment","spec":{"template":{"spec":{"containers":[
		{"name":"sidecar","image":"x"}]}}}}`
	f.must(f.api.Patch(f.ctx, get[appsv1.Deployment](f), client.RawPatch(types.ApplyPatchType, []byte(sidecar)),
		client.FieldOwner("somebody")))
	f.patch(`{"spec":{"pod":{"nodeSelector":{"disk":"fast"}}}}`)
	f.mustReconcile()
	pod := get[appsv1.Deployment](f).Spec.Template.Spec
	if len(pod.Containers) != 1 || pod.NodeSelector["disk"] != "fast" {
		t.Fatalf("the pods have %v and %+v", pod.NodeSelector, pod.Containers)
	}
	f.patch(`{"spec":{"pod":null}}`)
	f.mustReconcile()
	if left := get[appsv1.Deployment](f).Spec.Template.Spec.NodeSelector; len(left) > 0 {
		t.Errorf("the pods still have %v", left)
	}
}

// TestPortOfAnother: a port that somebody else took over and changed is put back.
func TestPortOfAnother(t *testing.T) {
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
				t.Errorf("the ports are %+v", s.Spec.Ports)
			}
			if c := meta.FindStatusCondition(f.mc.Status.Conditions, v1alpha1.ConditionStalled); c != nil {
				t.Errorf("stalled: %s", c.Message)
			}
		})
	}
}

func (f *fixture) gvk(obj client.Object) schema.GroupVersionKind {
	f.Helper()
	gvk, err := apiutil.GVKForObject(obj, f.api.Scheme())
	f.must(err)
	return gvk
}

func controlledBy(uid types.UID) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Other", Name: "other", UID: uid,
		Controller: ptr.To(true)}}
}

// namesakes are objects that have the name of a child.
func namesakes() map[string]client.Object {
	labels := map[string]string{"a": "b"}
	return map[string]client.Object{
		"Deployment": &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}}},
		"Service":             &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}}},
		"PodDisruptionBudget": &policyv1.PodDisruptionBudget{},
	}
}

func TestConflict(t *testing.T) {
	dresses := map[string]func(*fixture, client.Object){
		"plain":             func(*fixture, client.Object) {},
		"with a controller": func(_ *fixture, o client.Object) { o.SetOwnerReferences(controlledBy("other")) },
		"with our labels, a controller": func(f *fixture, o client.Object) {
			o.SetLabels(names.Servers.Labels(f.mc))
			o.SetOwnerReferences(controlledBy("other"))
		},
		"with some of our labels": func(_ *fixture, o client.Object) {
			o.SetLabels(map[string]string{names.LabelManagedBy: names.Operator})
		},
	}
	for kind, template := range namesakes() {
		for name, dress := range dresses {
			t.Run(kind+" "+name, func(t *testing.T) {
				f := newFixture(t)
				obj := template.DeepCopyObject().(client.Object)
				obj.SetName(f.mc.Name)
				obj.SetNamespace(f.mc.Namespace)
				dress(f, obj)
				f.must(f.api.Create(f.ctx, obj))
				version := obj.GetResourceVersion()

				result := f.mustReconcile()
				if result.RequeueAfter == conflictRetry { // a creation was refused
					result = f.mustReconcile()
				}
				if result.RequeueAfter != time.Minute {
					t.Errorf("looks again after %s, want a minute", result.RequeueAfter)
				}
				f.want(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonConflict)
				f.want(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonConflict)
				f.wantEvent("Warning Conflict " + kind + " cache exists")
				f.must(f.api.Get(f.ctx, client.ObjectKeyFromObject(obj), obj))
				if obj.GetResourceVersion() != version {
					t.Errorf("the foreign %s was written to: %+v", kind, obj)
				}

				f.must(f.api.Delete(f.ctx, obj))
				f.mustReconcile()
				f.roll(3)
				f.mustReconcile()
				f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
				if meta.FindStatusCondition(f.mc.Status.Conditions, v1alpha1.ConditionStalled) != nil {
					t.Error("still Stalled")
				}
			})
		}
	}
}

// TestAdoption: children that an orphaning deletion left behind are adopted, without a restart of their servers.
func TestAdoption(t *testing.T) {
	f := newFixture(t)
	f.ready()
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
			t.Errorf("%T is not controlled by the Memcached", obj)
		}
	}
	if !equality.Semantic.DeepEqual(template, get[appsv1.Deployment](f).Spec.Template) {
		t.Error("the template changed")
	}
}

// TestAdoptionWithoutLabels: a child that lost its labels and its owner is still ours, as managedFields shows.
func TestAdoptionWithoutLabels(t *testing.T) {
	f := newFixture(t)
	f.ready()
	f.must(f.api.Patch(f.ctx, get[appsv1.Deployment](f), mergePatch(`{"metadata":{"ownerReferences":null,"labels":null}}`),
		client.FieldOwner("somebody")))
	f.now = f.now.Add(children.ExpectationTimeout)
	f.mustReconcile()
	f.wantEvent("Normal Adopted Deployment cache")
	if c := meta.FindStatusCondition(f.mc.Status.Conditions, v1alpha1.ConditionStalled); c != nil {
		t.Errorf("stalled: %s", c.Message)
	}
	if !metav1.IsControlledBy(get[appsv1.Deployment](f), f.mc) {
		t.Error("the Deployment is not controlled by the Memcached")
	}
}

// TestFormerLeader: an operator that was frozen, and is no longer the leader, does not restore an older template.
func TestFormerLeader(t *testing.T) {
	f := newFixture(t)
	f.ready()
	before, old := get[appsv1.Deployment](f), f.mc.DeepCopy()
	f.patch(`{"spec":{"memory":"128Mi"}}`)
	f.mustReconcile()
	template := get[appsv1.Deployment](f).Spec.Template
	f.restart()
	before.Spec.Replicas = ptr.To[int32](9) // which is to be reverted
	// What was not ready is changed without an announcement, which would meet a conflict.
	old.Status.Conditions = nil
	f.cached["Deployment"], f.cached[kindMemcached] = before, old
	_, _ = f.reconcile()
	f.wantTemplate(template)
	if !slices.Contains(f.requests, "apply Deployment") {
		t.Errorf("nothing is applied: %q", f.requests)
	}
}

// TestStatusInFlux: status updates of the Deployment's controller do not block a change.
func TestStatusInFlux(t *testing.T) {
	f := newFixture(t)
	f.ready()
	f.cached["Deployment"] = get[appsv1.Deployment](f)
	f.roll(2)
	f.patch(`{"spec":{"size":2}}`)
	f.mustReconcile()
	f.wantRequests("apply Deployment", "get Deployment", "apply Deployment", "patch status")
	if got := *get[appsv1.Deployment](f).Spec.Replicas; got != 2 {
		t.Errorf("%d servers are wanted", got)
	}
}

// TestDebugPods: pods with our labels that others created are no servers.
func TestDebugPods(t *testing.T) {
	f := newFixture(t)
	f.ready()
	for name, owners := range map[string][]metav1.OwnerReference{
		"bare": nil,
		"replica-set": {{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "cache-debug", UID: "a",
			Controller: ptr.To(true)}},
		"other-resource": controlledBy("b"),
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: f.mc.Namespace, OwnerReferences: owners,
			Labels: podLabels(names.Servers.Labels(f.mc))}}
		p.Spec.Containers = []corev1.Container{{Name: names.Container, Image: "memcached"}}
		f.must(f.api.Create(f.ctx, p))
	}
	f.mustReconcile()
	f.wantRequests()
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// TestGuards: no server is created while the policy that restricts access to it is refused, or its name is taken, and
// servers that run are left alone.
func TestGuards(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, networkPolicy: {}}")
	f.fail["NetworkPolicy"] = apierrors.NewForbidden(corev1.Resource("networkpolicies"), "cache", errors.New("no"))
	missing := func() bool { return apierrors.IsNotFound(f.api.Get(f.ctx, f.key("cache"), &appsv1.Deployment{})) }
	f.wantError("apply NetworkPolicy cache")
	f.want(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressingWithRetry)
	if !missing() {
		t.Error("servers are created without the policy")
	}
	f.fail = map[string]error{}
	foreign := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "cache", Namespace: f.mc.Namespace}}
	f.must(f.api.Create(f.ctx, foreign))
	f.mustReconcile()
	f.want(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonConflict)
	if !missing() {
		t.Error("servers are created beside somebody else's policy")
	}
	f.must(f.api.Delete(f.ctx, foreign))
	f.ready()

	d := get[appsv1.Deployment](f)
	f.patch(`{"spec":{"size":5,"networkPolicy":{"from":[{"podSelector":{}}]}}}`)
	f.fail["NetworkPolicy"] = apierrors.NewForbidden(corev1.Resource("networkpolicies"), "cache", errors.New("no"))
	f.wantError("apply NetworkPolicy cache")
	if got := get[appsv1.Deployment](f); got.ResourceVersion != d.ResourceVersion {
		t.Error("servers are changed while the policy cannot be")
	}
}

// TestForeignProxyConfig: proxies do not mount a foreign ConfigMap.
func TestForeignProxyConfig(t *testing.T) {
	f := newFixtureOf(t, "{size: 1, workload: StatefulSet, proxy: {size: 1}}")
	f.must(f.api.Create(f.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cache-proxy",
		Namespace: f.mc.Namespace}, Data: map[string]string{"proxy.lua": "evil()"}}))
	f.mustReconcile()
	f.mustReconcile()
	f.want(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonConflict)
	if err := f.api.Get(f.ctx, f.key("cache-proxy"), &appsv1.Deployment{}); !apierrors.IsNotFound(err) {
		t.Errorf("proxies are created: %v", err)
	}
}

// TestStaleCache: Ready is not based on a cached Deployment of an older, equal spec, neither in the process that wrote
// the newer one nor in another.
func TestStaleCache(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarted %t", restarted), func(t *testing.T) {
			f := newFixture(t)
			f.ready()
			first := get[appsv1.Deployment](f)
			f.patch(`{"spec":{"memory":"128Mi"}}`)
			f.mustReconcile()
			f.patch(`{"spec":{"memory":"64Mi"}}`)
			f.cached["Deployment"] = first
			if restarted {
				f.restart()
			}
			f.mustReconcile()
			if meta.IsStatusConditionTrue(f.mc.Status.Conditions, v1alpha1.ConditionReady) &&
				f.mc.Status.ObservedGeneration == f.mc.Generation {
				t.Errorf("Ready by a Deployment of generation %d", first.Generation)
			}
		})
	}
}

// TestThereAndBack: a change that is reverted before the informer cache shows it is reverted on the child too.
func TestThereAndBack(t *testing.T) {
	f := newFixture(t)
	f.ready()
	for _, n := range []string{"2", "1"} {
		f.patch(`{"spec":{"disruptionBudget":{"maxUnavailable":` + n + `}}}`)
		f.mustReconcile()
		if got := get[policyv1.PodDisruptionBudget](f).Spec.MaxUnavailable.String(); got != n {
			t.Errorf("maxUnavailable is %s, want %s", got, n)
		}
	}
}

// TestRefusedImage: removing spec.image does not select an image that never ran.
func TestRefusedImage(t *testing.T) {
	f := newFixture(t)
	f.ready()
	before := get[appsv1.Deployment](f).Spec.Template
	f.fail["Deployment"] = apierrors.NewForbidden(appsv1.Resource("deployments"), "cache",
		errors.New("denied by a policy"))
	f.patch(`{"spec":{"image":"refused"}}`)
	if _, err := f.reconcile(); !apierrors.IsForbidden(err) {
		t.Errorf("returns %v", err)
	}
	if f.mc.Status.Image != "memcached:1" {
		t.Errorf("image in use is %q", f.mc.Status.Image)
	}
	f.fail["Deployment"] = nil
	f.patch(`{"spec":{"image":null}}`)
	f.mustReconcile()
	if got := get[appsv1.Deployment](f).Spec.Template; !equality.Semantic.DeepEqual(got, before) {
		t.Errorf("servers are replaced: %+v", got)
	}
}

// TestCreatedAndDeletedAtOnce: a child that the informer cache never shows is looked up after a while.
func TestCreatedAndDeletedAtOnce(t *testing.T) {
	f := newFixture(t)
	f.mustReconcile()
	f.must(f.api.Delete(f.ctx, get[appsv1.Deployment](f)))
	if result := f.mustReconcile(); result.RequeueAfter == 0 || len(f.requests) > 0 {
		t.Errorf("does not wait for the cache: %+v, %q", result, f.requests)
	}
	f.now = f.now.Add(children.ExpectationTimeout)
	f.mustReconcile()
	get[appsv1.Deployment](f)
}

// TestAnnounce: a change without a new generation is announced in the status before servers are replaced.
func TestAnnounce(t *testing.T) {
	f := newFixture(t)
	f.ready()
	f.r.Options.DefaultImage = "memcached:2"
	f.patch(`{"metadata":{"annotations":{"cache.example.com/restartedAt":"now"}}}`)
	f.mustReconcile()
	f.wantRequests("ask Deployment", "get Namespace", "patch status", "apply Deployment",
		"patch status") // the last for the image
	f.want(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRollingOut)
	template := get[appsv1.Deployment](f).Spec.Template
	if got := template.Annotations[v1alpha1.RestartedAtAnnotation]; got != "now" {
		t.Errorf("restartedAt of the template is %q", got)
	}
	if got := template.Spec.Containers[0].Image; got != "memcached:2" || f.mc.Status.Image != got {
		t.Errorf("image is %q, in the status %q, want the new default", got, f.mc.Status.Image)
	}

	f.patch(`{"metadata":{"annotations":null}}`)
	f.mustReconcile()
	if got := get[appsv1.Deployment](f).Spec.Template; !equality.Semantic.DeepEqual(got, template) {
		t.Errorf("removing the annotation changes the template: %+v", got)
	}
}

func TestPaused(t *testing.T) {
	f := newFixture(t)
	f.ready()
	f.patch(`{"spec":{"paused":true}}`)
	f.mustReconcile()
	f.wantRequests("patch status")
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.wantEvent("Normal Paused")
	f.patch(`{"spec":{"image":"memcached:2"}}`)
	f.mustReconcile()
	f.wantRequests("ask Deployment", "patch status")
	f.mustReconcile()
	f.wantRequests()
	f.want(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPaused)
	if f.mc.Status.Image != "memcached:1" {
		t.Errorf("image in use is %q, though the pause holds the new one back", f.mc.Status.Image)
	}
	f.patch(`{"spec":{"paused":false}}`)
	f.mustReconcile()
	f.wantRequests("apply Deployment", "patch status")
	f.wantEvent("Normal Resumed")
}

func TestErrors(t *testing.T) {
	f := newFixture(t)
	f.fail["Deployment"] = apierrors.NewForbidden(appsv1.Resource("deployments"), "cache", errors.New("exceeded quota"))
	if _, err := f.reconcile(); !apierrors.IsForbidden(err) {
		t.Errorf("a refusal returns %v, want it to be retried", err)
	}
	f.want(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressingWithRetry)
	f.wantEvent("Warning ProgressingWithRetry apply Deployment cache")

	f.fail["Deployment"] = apierrors.NewInvalid(appsv1.SchemeGroupVersion.WithKind("Deployment").GroupKind(), "cache",
		nil)
	if result := f.mustReconcile(); result.RequeueAfter != time.Minute {
		t.Errorf("an invalid child is retried after %s, want a minute", result.RequeueAfter)
	}
	f.want(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonInvalid)

	f.fail["Deployment"] = errors.New(strings.Repeat("ä", 40000)) // more than a condition may hold
	if _, err := f.reconcile(); err == nil {
		t.Error("an unknown error is not retried")
	}
	f.want(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressingWithRetry)

	f.fail["Deployment"] = nil
	f.now = f.now.Add(children.ExpectationTimeout)
	f.mustReconcile()
	f.want(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonRollingOut)
}

// TestGone: nothing is created for a deleted object that the informer cache still shows.
func TestGone(t *testing.T) {
	f := newFixture(t)
	f.mustReconcile()
	f.roll(1) // not ready, or the announcement would notice the deletion
	f.mustReconcile()
	f.cached[kindMemcached] = f.mc.DeepCopy()
	f.must(f.api.Delete(f.ctx, f.mc, client.PropagationPolicy(metav1.DeletePropagationForeground)))
	f.must(f.api.Delete(f.ctx, get[appsv1.Deployment](f)))
	f.mustReconcile()
	f.wantRequests("get Deployment", "get Deployment", "get Memcached")
}

// TestNamespaceDeleted: the deletion of a namespace deletes children before their Memcached. That is no loss, and
// nothing is recreated.
func TestNamespaceDeleted(t *testing.T) {
	f := newFixture(t)
	f.ready()
	f.must(f.api.Delete(f.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: f.mc.Namespace}}))
	f.must(f.api.Delete(f.ctx, get[corev1.Service](f)))
	for len(f.events.Events) > 0 {
		<-f.events.Events
	}
	f.mustReconcile()
	f.wantRequests("get Service", "get Memcached", "apply Service", "get Namespace", "patch status")
	f.want(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonDeleting)
	f.want(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonAsExpected)
	f.must(f.api.Delete(f.ctx, get[appsv1.Deployment](f)))
	f.now = f.now.Add(children.ExpectationTimeout)
	f.mustReconcile()
	f.want(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonDeleting)
	if n := len(f.events.Events); n > 0 {
		t.Errorf("%d events, which the namespace does not accept, such as %s", n, <-f.events.Events)
	}
}

func TestDelete(t *testing.T) {
	t.Run("waits for servers", func(t *testing.T) {
		f := newFixture(t)
		f.ready()
		f.must(f.api.Delete(f.ctx, f.mc))
		f.mustReconcile()
		f.wantRequests("get Namespace", "patch status", "delete Deployment")
		f.want(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonFinalizing)
		f.wantEvent("Normal Finalizing")
		f.mustReconcile()
		f.wantRequests()
		if !controllerutil.ContainsFinalizer(f.mc, v1alpha1.Finalizer) {
			t.Error("the finalizer is removed while pods exist")
		}
		f.collectGarbage()
		f.mustReconcile()
		f.wantRequests("patch Memcached")
		if err := f.api.Get(f.ctx, client.ObjectKeyFromObject(f.mc), f.mc); !apierrors.IsNotFound(err) {
			t.Errorf("still there: %v", err)
		}
	})
	t.Run("does not wait for ever, even if the operator restarts", func(t *testing.T) {
		f := newFixture(t)
		f.ready()
		f.must(f.api.Delete(f.ctx, f.mc))
		f.now = f.now.Add(time.Hour) // no operator was there
		f.mustReconcile()
		f.now = time.Now().Add(time.Minute)
		f.restart()
		if result := f.mustReconcile(); result.RequeueAfter < finalizeTimeout-time.Minute-10*time.Second ||
			result.RequeueAfter > finalizeTimeout-time.Minute+time.Second {
			t.Errorf("looks again after %s, want the rest of %s", result.RequeueAfter, finalizeTimeout)
		}
		f.now = f.now.Add(finalizeTimeout)
		f.mustReconcile()
		f.wantRequests("patch Memcached")
		f.wantEvent("Warning FinalizeTimeout")
	})
	t.Run("waits for a workload that cannot be deleted", func(t *testing.T) {
		f := newFixture(t)
		f.mustReconcile()
		f.fail["delete"] = apierrors.NewForbidden(appsv1.Resource("deployments"), "cache", errors.New("denied by a policy"))
		f.must(f.api.Delete(f.ctx, f.mc))
		f.now = f.now.Add(finalizeTimeout + time.Minute)
		for _, want := range [][]string{{"get Namespace", "patch status", "delete Deployment", "get Namespace"},
			{"delete Deployment", "get Namespace"}} {
			f.wantError("denied by a policy")
			f.wantRequests(want...)
			f.now = f.now.Add(time.Second)
		}
		f.now = f.now.Add(progressInterval)
		f.wantError("denied by a policy")
		if got := f.message(v1alpha1.ConditionReady); !strings.Contains(got, "denied by a policy") {
			t.Errorf("Ready says %q", got)
		}
	})
	t.Run("does not wait in a namespace that is being deleted", func(t *testing.T) {
		f := newFixture(t)
		f.ready()
		f.must(f.api.Delete(f.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: f.mc.Namespace}}))
		f.must(f.api.Delete(f.ctx, f.mc))
		f.fail["delete"] = apierrors.NewForbidden(appsv1.Resource("deployments"), "cache", errors.New("no RoleBinding"))
		f.mustReconcile()
		f.wantRequests("get Namespace", "patch Memcached")
	})
	t.Run("leaves orphans", func(t *testing.T) {
		f := newFixture(t)
		f.ready()
		f.must(f.api.Delete(f.ctx, f.mc, client.PropagationPolicy(metav1.DeletePropagationOrphan)))
		f.mustReconcile()
		f.wantRequests("patch Memcached")
		if d := get[appsv1.Deployment](f); !d.DeletionTimestamp.IsZero() {
			t.Error("deletes the Deployment")
		}
	})
	t.Run("leaves a workload that was orphaned behind the cache", func(t *testing.T) {
		f := newFixture(t)
		f.ready()
		f.cached["Deployment"] = get[appsv1.Deployment](f)
		f.must(f.api.Patch(f.ctx, get[appsv1.Deployment](f), client.RawPatch(types.MergePatchType,
			[]byte(`{"metadata":{"ownerReferences":null}}`))))
		f.must(f.api.Delete(f.ctx, f.mc))
		f.mustReconcile()
		if d := get[appsv1.Deployment](f); !d.DeletionTimestamp.IsZero() {
			t.Error("deletes the Deployment")
		}
	})
	t.Run("adopts nothing once it is deleted", func(t *testing.T) {
		f := newFixture(t)
		f.ready()
		f.cached[kindMemcached] = f.mc.DeepCopy()
		f.must(f.api.Delete(f.ctx, f.mc, client.PropagationPolicy(metav1.DeletePropagationOrphan)))
		f.must(f.api.Patch(f.ctx, get[appsv1.Deployment](f), client.RawPatch(types.MergePatchType,
			[]byte(`{"metadata":{"ownerReferences":null}}`))))
		f.mustReconcile()
		if metav1.IsControlledBy(get[appsv1.Deployment](f), f.mc) {
			t.Errorf("adopted what an orphaning deletion left: %q", f.requests)
		}
	})
	t.Run("removes a finalizer that others own too", func(t *testing.T) {
		f := newFixture(t)
		f.patch(`{"metadata":{"finalizers":["cache.example.com/finalizer"]}}`)
		f.ready()
		f.must(f.api.Delete(f.ctx, f.mc, client.PropagationPolicy(metav1.DeletePropagationOrphan)))
		f.mustReconcile()
		if controllerutil.ContainsFinalizer(f.mc, v1alpha1.Finalizer) {
			t.Error("the finalizer stays")
		}
	})
	t.Run("keeps the finalizers of others", func(t *testing.T) {
		f := newFixture(t)
		f.ready()
		f.patch(`{"metadata":{"finalizers":["cache.example.com/finalizer","example.com/other"]}}`)
		f.must(f.api.Delete(f.ctx, f.mc, client.PropagationPolicy(metav1.DeletePropagationOrphan)))
		f.mustReconcile()
		if len(f.mc.Finalizers) != 2 || controllerutil.ContainsFinalizer(f.mc, v1alpha1.Finalizer) {
			t.Errorf("finalizers are %q", f.mc.Finalizers)
		}
	})
}

// collectGarbage plays the garbage collector after a deletion of the Deployment in the foreground.
func (f *fixture) collectGarbage() {
	f.Helper()
	d := get[appsv1.Deployment](f)
	if d.DeletionTimestamp.IsZero() || !controllerutil.ContainsFinalizer(d, metav1.FinalizerDeleteDependents) {
		f.Errorf("the Deployment was not deleted in the foreground: %+v", d.ObjectMeta)
	}
	f.must(f.api.DeleteAllOf(f.ctx, &corev1.Pod{}, client.InNamespace(f.mc.Namespace), client.GracePeriodSeconds(0)))
	f.must(f.api.Patch(f.ctx, d, mergePatch(`{"metadata":{"finalizers":null}}`)))
}
