package controllers

import (
	"errors"
	"maps"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// TestDriftIsReverted: changes of our fields by another manager are reverted, and no server is replaced. An event says
// which field, whose change, and what to do instead.
func TestDriftIsReverted(t *testing.T) {
	t.Parallel()
	image := func(fields string) string {
		return `{"spec":{"template":{"spec":{"containers":[{"name":"memcached",` + fields + `}]}}}}`
	}
	tests := map[string]struct {
		obj   client.Object
		json  string
		event string
	}{
		"replicas": {&appsv1.Deployment{}, `{"spec":{"replicas":9}}`,
			"Reverted Deployment cache: reverted .spec.replicas, changed by somebody; set spec.size of the Memcached instead"},
		"image": {&appsv1.Deployment{}, image(`"image":"other"`), `Reverted Deployment cache: reverted ` +
			`.spec.template.spec.containers[name="memcached"].image, changed by somebody; set spec.image of the`},
		"resources": {&appsv1.Deployment{}, image(`"resources":{"limits":{"memory":"1Gi"}}`),
			`.resources.limits.memory, changed by somebody; set spec.memory or spec.pod.resources of the`},
		"argument": {&appsv1.Deployment{}, image(`"args":["-m","1"]`), "set spec.pod of the"},
		"template label": {&appsv1.Deployment{},
			`{"spec":{"template":{"metadata":{"labels":{"app.kubernetes.io/part-of":"x"}}}}}`, "set spec.pod of the"},
		"label": {&appsv1.Deployment{}, `{"metadata":{"labels":{"app.kubernetes.io/part-of":null}}}`,
			"reverted .metadata.labels.app.kubernetes.io/part-of, changed by somebody; only the operator sets this"},
		"label by which the cache selects the workload": {&appsv1.Deployment{},
			`{"metadata":{"labels":{"app.kubernetes.io/managed-by":null}}}`, ""},
		"template record": {&appsv1.Deployment{},
			`{"metadata":{"annotations":{"cache.example.com/template-record":"{"}}}`, ""},
		"label by which the cache selects the Service": {&corev1.Service{},
			`{"metadata":{"labels":{"app.kubernetes.io/managed-by":null}}}`, "Reverted Service cache"},
		"target port": {&corev1.Service{}, `{"spec":{"ports":[{"port":11211,"name":"memcached","targetPort":1}]}}`,
			"only the operator sets this"},
		"selector": {&corev1.Service{}, `{"spec":{"selector":{"cache.example.com/name":"other"}}}`,
			"Service cache: reverted .spec.selector, changed by somebody; only the operator sets this"},
		"budget": {&policyv1.PodDisruptionBudget{}, `{"spec":{"maxUnavailable":5}}`, "set spec.disruptionBudget of the"},
		"owner":  {&policyv1.PodDisruptionBudget{}, `{"metadata":{"ownerReferences":null}}`, "Adopted PodDisruptionBudget"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := ready(t, onDeployment)
			f.Must(f.API.Get(f.Ctx, f.Key, tt.obj))
			before := tt.obj.DeepCopyObject().(client.Object)
			f.Patch(tt.obj, tt.json)
			f.r.Options.DefaultImage = "memcached:2" // which the template must not get
			f.settle()
			f.Must(f.API.Get(f.Ctx, f.Key, tt.obj))
			for _, obj := range []client.Object{before, tt.obj} {
				obj.SetManagedFields(nil)
				obj.SetResourceVersion("")
				obj.SetGeneration(0)
				if d, ok := obj.(*appsv1.Deployment); ok {
					d.Status = appsv1.DeploymentStatus{}
				}
			}
			if !equality.Semantic.DeepEqual(before, tt.obj) {
				t.Errorf("got\n%+v\nwant\n%+v", tt.obj, before)
			}
			f.wantReady()
			f.wantEvent(tt.event)
		})
	}
}

// TestRevertAfterConflict: the event of a revert is not lost if the first apply conflicts, as after most changes of a
// Deployment, whose controller then writes the revision.
func TestRevertAfterConflict(t *testing.T) {
	f := ready(t, onDeployment)
	f.Patch(get[appsv1.Deployment](f), `{"spec":{"replicas":9}}`)
	f.failures["apply Deployment"] = apierrors.NewConflict(appsv1.Resource("deployments"), "cache", errors.New("changed"))
	f.mustReconcile()
	clear(f.failures)
	f.settle()
	f.wantReady()
	f.wantEvent("Reverted Deployment cache: reverted .spec.replicas")
}

// TestServiceDriftIsReverted: the API server does not increment metadata.generation of a Service. If somebody created
// the Service with a generation, the generation never changes. Drift is detected nevertheless.
func TestServiceDriftIsReverted(t *testing.T) {
	f := newFixture(t, onDeployment)
	orphan := &corev1.Service{ObjectMeta: f.Object("cache")}
	orphan.Labels, orphan.Generation = names.Servers.Labels(f.mc), 7
	orphan.Spec = corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"a": "b"}}
	f.Must(f.API.Create(f.Ctx, orphan))
	f.settle()
	before := get[corev1.Service](f)
	f.Patch(before.DeepCopy(), `{"spec":{"selector":{"a":"b"}}}`)
	f.mustReconcile()
	if got := get[corev1.Service](f).Spec.Selector; !maps.Equal(got, before.Spec.Selector) {
		t.Errorf("got selector %v, want %v", got, before.Spec.Selector)
	}
}

// TestLoadBalancerClass: the webhook of a load balancer sets a field of a new Service that cannot change later. The
// Service follows the spec nevertheless.
func TestLoadBalancerClass(t *testing.T) {
	f := newFixture(t, "{size: 1, workload: StatefulSet, serverAddresses: ClusterIP, service: {type: LoadBalancer}}")
	service := &corev1.Service{ObjectMeta: f.Object("cache-0")}
	service.Labels = names.Servers.Labels(f.mc)
	service.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: ptr.To("example.com/lb"),
		Ports: []corev1.ServicePort{{Name: names.Port, Port: 11211}}}
	f.Must(f.API.Create(f.Ctx, service))
	for _, spec := range []string{`{"type":"LoadBalancer"}`, `{"annotations":{"a":"b"}}`, `{"type":"ClusterIP"}`} {
		f.set(`{"service":` + spec + `}`)
		f.settle()
		f.wantReady()
		service = getNamed[corev1.Service](f, "cache-0")
		isLoadBalancer := service.Spec.Type == corev1.ServiceTypeLoadBalancer
		if isLoadBalancer != (service.Spec.LoadBalancerClass != nil) ||
			isLoadBalancer == strings.Contains(spec, "ClusterIP") {
			t.Errorf("with %s: got the Service %+v", spec, service.Spec)
		}
	}
	if service.Annotations["a"] != "b" {
		t.Errorf("got the annotations %v of the Service, want a: b", service.Annotations)
	}
}

// fieldsOfChild is what TestForeignFields compares of a Service or a Deployment.
func fieldsOfChild(obj client.Object) (list []any) {
	list = append(list, obj.GetAnnotations()["a"])
	switch obj := obj.(type) {
	case *corev1.Service:
		list = append(list, string(obj.Spec.SessionAffinity))
		for _, port := range obj.Spec.Ports {
			list = append(list, int(port.Port))
		}
	case *appsv1.Deployment:
		for _, c := range obj.Spec.Template.Spec.Containers {
			list = append(list, c.Name, len(c.Env))
		}
		list = append(list, len(obj.Spec.Template.Spec.Volumes))
	}
	return list
}

// TestForeignFields: fields and items that others add to a child of ours stay, as with any server-side apply, and cause
// no writes. If others rename an item of ours, it comes back. Items that the API server does not accept beside ours are
// removed, the other fields of their owner stay.
func TestForeignFields(t *testing.T) {
	t.Parallel()
	service := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}}
	deployment := &appsv1.Deployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}}
	template := func(spec string) string { return `{"spec":{"template":{"spec":` + spec + `}}}` }
	for name, tt := range map[string]struct {
		obj     client.Object
		how     types.PatchType
		foreign string // what another manager patches
		before  []any
		change  string // of the spec
		after   []any
	}{
		"port": {service, types.StrategicMergePatchType, `{"spec":{"ports":[{"port":1,"name":"other"}]}}`,
			[]any{"", "None", 1, 11211}, `{"containerPort":12345}`, []any{"", "None", 1, 12345}},
		"port of our name": {service, types.StrategicMergePatchType, `{"spec":{"ports":[{"port":11211,"name":"renamed"},
			{"port":12345,"name":"memcached","protocol":"TCP"}]}}`,
			[]any{"", "None", 11211}, `{"size":4}`, []any{"", "None", 11211}},
		"number of our port": {service, types.JSONPatchType, `[{"op":"replace","path":"/spec/ports/0/port","value":12000}]`,
			[]any{"", "None", 11211}, `{"size":4}`, []any{"", "None", 11211}},
		"refused port, and other fields": {service, types.ApplyPatchType, `{"apiVersion":"v1","kind":"Service",
			"metadata":{"annotations":{"a":"b"}},"spec":{"sessionAffinity":"ClientIP","ports":[
			{"port":11211,"name":"memcached","appProtocol":"x"},{"port":1,"name":"other"}]}}`,
			[]any{"b", "ClientIP", 11211, 1}, `{"containerPort":12345}`, []any{"b", "ClientIP", 12345}},
		"annotation and variable": {deployment, types.StrategicMergePatchType, `{"metadata":{"annotations":{"a":"b"}},
			"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"now"}},"spec":{"containers":
			[{"name":"memcached","env":[{"name":"E","value":"1"}],"resources":{"limits":{"cpu":"1"}}}]}}}}`,
			[]any{"b", "memcached", 1, 0}, `{"memory":"128Mi"}`, []any{"b", "memcached", 1, 0}},
		"container": {deployment, types.StrategicMergePatchType, template(`{"containers":[{"name":"sidecar","image":"x"}]}`),
			[]any{"", "sidecar", 0, "memcached", 0, 0}, `{"memory":"128Mi"}`, []any{"", "sidecar", 0, "memcached", 0, 0}},
		"renamed container": {deployment, types.StrategicMergePatchType, template(`{"containers":[
			{"name":"memcached","$patch":"delete"},{"name":"renamed","image":"x"}]}`),
			[]any{"", "renamed", 0, "memcached", 0, 0}, `{"size":4}`, []any{"", "renamed", 0, "memcached", 0, 0}},
		"volume": {deployment, types.StrategicMergePatchType, template(`{"volumes":[{"name":"x","emptyDir":{}}]}`),
			[]any{"", "memcached", 0, 1}, `{"memory":"128Mi"}`, []any{"", "memcached", 0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			f := ready(t, onDeployment)
			obj, servers := tt.obj.DeepCopyObject().(client.Object), f.mc.Status.Servers
			want := func(want []any) {
				t.Helper()
				f.settle()
				f.wantReady()
				f.Must(f.API.Get(f.Ctx, f.Key, obj))
				if got := fieldsOfChild(obj); !equality.Semantic.DeepEqual(got, want) {
					t.Errorf("got %v, want %v", got, want)
				}
			}
			obj.SetName("cache")
			obj.SetNamespace(f.Key.Namespace)
			options := []client.PatchOption{client.FieldOwner("somebody")}
			if tt.how == types.ApplyPatchType {
				options = append(options, client.ForceOwnership)
			}
			f.Must(f.API.Patch(f.Ctx, obj, client.RawPatch(tt.how, []byte(tt.foreign)), options...))
			before := obj.GetGeneration()
			want(tt.before)
			if got := f.mc.Status.Servers; !equality.Semantic.DeepEqual(got, servers) {
				t.Errorf("got the addresses %v, want %v", got, servers)
			}
			f.set(tt.change)
			want(tt.after)
			if got := obj.GetGeneration(); name == "annotation and variable" && got != before+1 {
				t.Errorf("got generation %d, want %d: one write for the new memory", got, before+1)
			}
			f.set(`{"size":3,"memory":null,"containerPort":11211}`)
			f.settle()
			f.wantReady()
		})
	}
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
		"Deployment": &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](0),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "memcached", Image: "i"}}}}}},
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
				f := newFixture(t, onDeployment)
				obj := template.DeepCopyObject().(client.Object)
				obj.SetName("cache")
				obj.SetNamespace(f.Key.Namespace)
				modify(f, obj)
				f.Must(f.API.Create(f.Ctx, obj))
				version := obj.GetResourceVersion()
				f.mustReconcile() // the API server may refuse the creation
				if wait := f.mustReconcile().RequeueAfter; wait != stalledRetry {
					t.Errorf("got another reconcile after %s, want %s", wait, stalledRetry)
				}
				f.wantStalled(v1alpha1.ReasonConflict, kind+" cache exists")
				f.wantNotReady(v1alpha1.ReasonConflict, "")
				f.wantEvent("Warning Conflict " + kind + " cache exists")
				f.Must(f.API.Get(f.Ctx, f.Key, obj))
				if obj.GetResourceVersion() != version {
					t.Errorf("got %s of version %s, want it unchanged at %s", kind, obj.GetResourceVersion(), version)
				}
				f.Must(f.API.Delete(f.Ctx, obj))
				f.settle()
				f.wantReady()
			})
		}
	}
}

// TestImmutableField: a child that the operator cannot make its own, such as the Deployment of the tutorials' operator,
// which has another selector, is to be deleted, and the status says so.
func TestImmutableField(t *testing.T) {
	t.Parallel()
	for kind, tt := range map[string]struct{ spec, text string }{
		"Deployment": {onDeployment, "Deployment cache has another selector, which cannot change: delete it, and the " +
			"operator creates it again; its servers restart empty"},
		"Service": {onStatefulSet, "Service cache has another clusterIPs[0], which cannot change: delete it, and the " +
			"operator creates it again"},
	} {
		t.Run(kind, func(t *testing.T) {
			f := newFixture(t, tt.spec)
			obj := minimalObjects()[kind]
			obj.SetName("cache")
			obj.SetNamespace(f.Key.Namespace)
			f.Must(controllerutil.SetControllerReference(f.mc, obj, f.API.Scheme()))
			f.Must(f.API.Create(f.Ctx, obj))
			f.mustReconcile() // the API server refuses the creation
			if wait := f.mustReconcile().RequeueAfter; wait != stalledRetry {
				t.Errorf("got another reconcile after %s, want %s", wait, stalledRetry)
			}
			f.wantStalled(v1alpha1.ReasonInvalid, tt.text)
			f.Must(f.API.Delete(f.Ctx, obj))
			f.settle()
			f.wantReady()
		})
	}
}

// TestOrphansAreAdopted: children without an owner reference are adopted, and no server is replaced. A child that lost
// its labels too is recognized by its managedFields.
func TestOrphansAreAdopted(t *testing.T) {
	t.Parallel()
	for name, orphan := range map[string]string{"with labels": `{"metadata":{"ownerReferences":null}}`,
		"without labels": `{"metadata":{"ownerReferences":null,"labels":null}}`} {
		t.Run(name, func(t *testing.T) {
			f := ready(t, onDeployment)
			template := get[appsv1.Deployment](f).Spec.Template
			list := []client.Object{get[appsv1.Deployment](f), get[corev1.Service](f), get[policyv1.PodDisruptionBudget](f)}
			for _, obj := range list {
				f.Patch(obj, orphan)
			}
			f.settle()
			f.wantEvent("Normal Adopted Deployment cache")
			f.wantReady()
			for _, obj := range list {
				f.Must(f.API.Get(f.Ctx, f.Key, obj))
				if !metav1.IsControlledBy(obj, f.mc) {
					t.Errorf("got owners %+v of %T, want the Memcached", obj.GetOwnerReferences(), obj)
				}
			}
			f.wantTemplate(template)
		})
	}
}

// TestForeignPods: pods with our labels that others created are not counted as servers.
func TestForeignPods(t *testing.T) {
	f := ready(t, onDeployment)
	for name, owners := range map[string][]metav1.OwnerReference{
		"bare": nil,
		"replica-set": {{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "cache-debug", UID: "a",
			Controller: ptr.To(true)}},
		"other-resource": controlledByOther("b"),
	} {
		pod := f.pods("")[0].DeepCopy()
		pod.ObjectMeta = metav1.ObjectMeta{Name: name, Namespace: pod.Namespace, Labels: pod.Labels, OwnerReferences: owners}
		f.Must(f.API.Create(f.Ctx, pod))
	}
	f.mustReconcile()
	f.wantRequests()
	f.wantReady()
}

// TestCopyOfChildIsLeftAlone: the operator does not delete a user's copy of a child, even one with its labels and
// owner.
func TestCopyOfChildIsLeftAlone(t *testing.T) {
	f := ready(t, onDeployment)
	service := get[corev1.Service](f)
	userCopy := &corev1.Service{ObjectMeta: f.Object("cache-metrics"),
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 9150}}}}
	userCopy.Labels, userCopy.OwnerReferences = service.Labels, service.OwnerReferences
	f.Must(f.API.Create(f.Ctx, userCopy))
	f.settle()
	if !f.exists("cache-metrics", userCopy) {
		t.Error("the copy was deleted")
	}
}

// TestGuards: while a child without which pods must not run cannot be written, because it is refused or its name is
// taken, they are neither created nor changed, and proxies are told of no server that is not ours.
func TestGuards(t *testing.T) {
	t.Parallel()
	port := corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 11211}}}
	proxies := "{size: 1, workload: StatefulSet, proxy: {size: 1}}"
	for name, tt := range map[string]struct {
		spec    string
		foreign client.Object
		name    string
		guarded client.Object // that does not exist
		named   string
	}{
		"NetworkPolicy": {"{size: 3, networkPolicy: {}}", &networkingv1.NetworkPolicy{}, "cache",
			&appsv1.Deployment{}, "cache"},
		"configuration of the proxies": {proxies, &corev1.ConfigMap{Data: map[string]string{"proxy.lua": "evil()"}},
			"cache-proxy", &appsv1.Deployment{}, "cache-proxy"},
		"Service of a server": {proxies, &corev1.Service{Spec: port}, "cache-0", &appsv1.StatefulSet{}, "cache"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, tt.spec)
			tt.foreign.SetName(tt.name)
			tt.foreign.SetNamespace(f.Key.Namespace)
			f.Must(f.API.Create(f.Ctx, tt.foreign))
			f.settle()
			f.wantStalled(v1alpha1.ReasonConflict, tt.name)
			if f.exists(tt.named, tt.guarded) {
				t.Errorf("got a %T %s, want none", tt.guarded, tt.named)
			}
			if got := f.state.Proxies(); name == "Service of a server" && len(got.After) > 0 {
				t.Errorf("got servers %q in the configuration of the proxies, want none", got.After)
			}
			f.Must(f.API.Delete(f.Ctx, tt.foreign))
			f.settle()
			f.wantReady()
		})
	}
	t.Run("NetworkPolicy that is refused", func(t *testing.T) {
		f := ready(t, "{size: 3, networkPolicy: {}}")
		before := get[appsv1.Deployment](f).ResourceVersion
		f.set(`{"size":5,"networkPolicy":{"from":[{"podSelector":{}}]}}`)
		f.failures["apply NetworkPolicy"] = forbidden("no")
		f.reconcileError("apply NetworkPolicy cache")
		if got := get[appsv1.Deployment](f).ResourceVersion; got != before {
			t.Error("got a changed Deployment while the NetworkPolicy is refused, want it unchanged")
		}
	})
	t.Run("Service of another server", func(t *testing.T) {
		f := ready(t, withProxy)
		foreign := &corev1.Service{ObjectMeta: f.Object("cache-2"), Spec: port}
		f.Must(f.API.Create(f.Ctx, foreign))
		f.set(`{"size":3}`)
		f.settle()
		f.wantStalled(v1alpha1.ReasonConflict, "cache-2")
		if got, list := *get[appsv1.StatefulSet](f).Spec.Replicas, f.state.Proxies(); got != 2 || len(list.After) != 2 {
			t.Errorf("got %d servers and the list %+v of the proxies, want 2 until the third can have its Service", got, list)
		}
		f.Must(f.API.Delete(f.Ctx, foreign))
		f.settle()
		f.wantReady()
	})
}

// TestChildrenOfPredecessor: the operator deletes the children of a deleted Memcached of the same name, which the
// garbage collector can miss, and waits until those are deleted whose names it needs. They are no conflict.
func TestChildrenOfPredecessor(t *testing.T) {
	f := ready(t, "{size: 3, networkPolicy: {}}")
	f.succeed(func(spec *v1alpha1.MemcachedSpec) { spec.NetworkPolicy = nil })
	f.collectPods()
	if wait := f.mustReconcile().RequeueAfter; wait != deletionRetry {
		t.Errorf("got requeue after %s, want %s", wait, deletionRetry)
	}
	f.wantNotReady(v1alpha1.ReasonRollingOut, "to be deleted")
	if f.exists("cache", &networkingv1.NetworkPolicy{}) {
		t.Error("the NetworkPolicy still exists, which the new Memcached does not need")
	}
	f.settle()
	f.wantReady()
}

// succeed deletes the Memcached at once, and creates another one of the same name.
func (f *fixture) succeed(change func(*v1alpha1.MemcachedSpec)) {
	f.Helper()
	successor := &v1alpha1.Memcached{ObjectMeta: f.Object("cache"), Spec: f.mc.Spec}
	change(&successor.Spec)
	f.user(`{"metadata":{"finalizers":null}}`)
	f.Must(f.API.Delete(f.Ctx, f.mc))
	f.Must(f.API.Create(f.Ctx, successor))
	f.mc = successor
}
