package controllers

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/names"
)

// bogus is a status that a tool restores from a backup: it is another manager's, and out of date.
func (f *fixture) bogus() {
	f.Helper()
	condition := func(conditionType string) metav1.Condition {
		return metav1.Condition{Type: conditionType, Status: metav1.ConditionTrue, Reason: "Restored", Message: "of a backup",
			LastTransitionTime: metav1.NewTime(f.now.Truncate(time.Second)), ObservedGeneration: f.mc.Generation}
	}
	f.mc.Status.Conditions = append(f.mc.Status.Conditions, condition("Other"))
	for _, conditionType := range []string{v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled} {
		meta.SetStatusCondition(&f.mc.Status.Conditions, condition(conditionType))
	}
	f.mc.Status.Nodes = append(f.mc.Status.Nodes, "bogus")
	f.mc.Status.Image, f.mc.Status.Servers = "bogus", []string{"bogus"}
	f.must(f.api.Status().Update(f.ctx, f.mc, client.FieldOwner("backup")))
}

// TestStatusOfAnother: nothing that another manager wrote into the status survives a reconcile, or stops a deletion.
func TestStatusOfAnother(t *testing.T) {
	f := newFixture(t)
	f.ready()
	before := f.mc.Status.DeepCopy()
	f.bogus()
	f.restart()
	f.mustReconcile()
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	for _, c := range f.mc.Status.Conditions {
		if c.Reason == "Restored" {
			t.Errorf("the condition %s of another manager survives", c.Type)
		}
	}
	if !slices.Equal(f.mc.Status.Nodes, before.Nodes) || f.mc.Status.Image != before.Image ||
		!slices.Equal(f.mc.Status.Servers, before.Servers) {
		t.Errorf("the status is %+v, want %+v", f.mc.Status, before)
	}

	f.bogus()
	f.must(f.api.Delete(f.ctx, f.mc))
	f.mustReconcile()
	f.want(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonFinalizing)
	f.gone()
}

// TestStatusOfAnotherDuringProgress: not even one that differs only in progress is left for a while.
func TestStatusOfAnotherDuringProgress(t *testing.T) {
	f := newFixture(t)
	f.mustReconcile()
	f.roll(1)
	f.now = f.now.Add(progressInterval)
	f.mustReconcile()
	before := f.mc.Status.DeepCopy()
	f.mc.Status.Selector, f.mc.Status.Nodes, f.mc.Status.Replicas = "bogus", before.Nodes[:1], 1
	f.must(f.api.Status().Update(f.ctx, f.mc, client.FieldOwner("backup")))
	f.mustReconcile()
	if !equality.Semantic.DeepEqual(&f.mc.Status, before) {
		t.Errorf("the status is %+v, want %+v", f.mc.Status, before)
	}
}

// TestStatusThatCannotBeWritten: a failed write of the status does not block the deletion.
func TestStatusThatCannotBeWritten(t *testing.T) {
	f := newFixture(t)
	f.ready()
	f.fail["status"] = apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("memcacheds").GroupResource(), "cache",
		errors.New("no"))
	f.must(f.api.Delete(f.ctx, f.mc))
	f.mustReconcile()
	f.gone()
}

// gone plays the garbage collector, and fails unless the Memcached is deleted.
func (f *fixture) gone() {
	f.Helper()
	f.collectGarbage()
	f.mustReconcile()
	if err := f.api.Get(f.ctx, client.ObjectKeyFromObject(f.mc), f.mc); !apierrors.IsNotFound(err) {
		f.Errorf("still there: %v", err)
	}
}

// TestNotForgotten: a response that an object does not exist, for example of an aggregated API server that is starting,
// does not stop the reconciliation of a Memcached. Its state is deleted when the Memcached is.
func TestNotForgotten(t *testing.T) {
	f := newFixture(t)
	f.mustReconcile()
	f.roll(3)
	f.fail["status"] = apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("memcacheds").GroupResource(), "cache")
	f.mustReconcile()
	f.fail = map[string]error{}
	if q := f.watched(get[appsv1.Deployment](f), false); len(q.after) != 1 {
		t.Errorf("a change of the Deployment is queued %d times", len(q.after))
	}
	f.mustReconcile()
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.cached[kindMemcached] = nil
	f.mustReconcile()
	if _, ok := f.r.states.m.Load(client.ObjectKeyFromObject(f.mc)); ok {
		t.Error("the state still exists")
	}
}

// TestNeedsReconcile: of the updates of a Memcached, our own status is no reason to reconcile; that of another manager
// is, and so is a successor that took its place between two watch events.
func TestNeedsReconcile(t *testing.T) {
	f := newFixture(t)
	f.mustReconcile()
	before := f.mc.DeepCopy()
	f.roll(3)
	f.mustReconcile()
	for name, tt := range map[string]struct {
		change func(*v1alpha1.Memcached)
		want   bool
	}{
		"our status":       {func(*v1alpha1.Memcached) {}, false},
		"another's status": {func(mc *v1alpha1.Memcached) { mc.Status.Nodes, mc.ResourceVersion = nil, "other" }, true},
		"labels":           {func(mc *v1alpha1.Memcached) { mc.Labels = map[string]string{"a": "b"} }, false},
		"a successor":      {func(mc *v1alpha1.Memcached) { mc.UID = "other" }, true},
		"annotations":      {func(mc *v1alpha1.Memcached) { mc.Annotations = map[string]string{"a": "b"} }, true},
	} {
		after := f.mc.DeepCopy()
		tt.change(after)
		if got := f.r.needsReconcile(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != tt.want {
			t.Errorf("%s needs a reconcile: %t, want %t", name, got, tt.want)
		}
	}
}

// TestPodChanged: a pod that another ReplicaSet adopts is counted again.
func TestPodChanged(t *testing.T) {
	before := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{names.LabelInstance: "cache"}}}
	for name, tt := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"nothing":    {func(p *corev1.Pod) { p.ResourceVersion = "2" }, false},
		"terminates": {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, true},
		"adopted":    {func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{{UID: "rs"}} }, true},
		"labels":     {func(p *corev1.Pod) { p.Labels = nil }, true},
		"status":     {func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, true},
	} {
		after := before.DeepCopy()
		tt.change(after)
		if got := podChanged(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
}

// TestSuccessor: the status that a reconcile computed for a deleted object never reaches the one that took its place.
func TestSuccessor(t *testing.T) {
	f := newFixture(t)
	f.ready()
	f.roll(2)
	f.cached[kindMemcached] = f.mc.DeepCopy()
	f.cached["Deployment"] = get[appsv1.Deployment](f)
	successor := &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Name: f.mc.Name, Namespace: f.mc.Namespace},
		Spec: f.mc.Spec}
	f.patch(`{"metadata":{"finalizers":null}}`)
	f.must(f.api.Delete(f.ctx, f.mc))
	f.must(f.api.Create(f.ctx, successor))
	if result := f.mustReconcile(); result.RequeueAfter == 0 {
		t.Error("does not requeue")
	}
	if f.mc.UID != successor.UID || f.mc.Status.ObservedGeneration != -1 || len(f.mc.Status.Nodes) > 0 {
		t.Errorf("the successor has the status %+v", f.mc.Status)
	}
}

// TestReplacedChild: a child that somebody replaces during a reconcile is not reported as Invalid.
func TestReplacedChild(t *testing.T) {
	f := newFixture(t)
	f.ready()
	old := get[corev1.Service](f)
	f.must(f.api.Delete(f.ctx, old))
	other := old.DeepCopy()
	other.UID, other.ResourceVersion, other.OwnerReferences, other.Spec.ClusterIPs = "", "", controlledBy("other"), nil
	f.must(f.api.Create(f.ctx, other))
	old.Spec.Selector = nil // a difference, or nothing would be applied
	old.ManagedFields = nil
	f.cached["Service"] = old
	f.patch(`{"spec":{"containerPort":12345}}`)
	if result := f.mustReconcile(); result.RequeueAfter != conflictRetry {
		t.Errorf("looks again after %s, want %s", result.RequeueAfter, conflictRetry)
	}
	if meta.FindStatusCondition(f.mc.Status.Conditions, v1alpha1.ConditionStalled) != nil {
		t.Errorf("Stalled: %+v", f.mc.Status.Conditions)
	}
	delete(f.cached, "Service")
	f.now = f.now.Add(children.ExpectationTimeout)
	f.mustReconcile()
	f.want(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonConflict)
}

// TestPredecessor: the children of a deleted Memcached of the same name are waited for. They are no conflict.
func TestPredecessor(t *testing.T) {
	f := newFixture(t)
	owner := []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: kindMemcached, Name: f.mc.Name,
		UID: "predecessor", Controller: new(bool)}}
	*owner[0].Controller = true
	var left []client.Object
	for _, obj := range namesakes() {
		obj.SetName(f.mc.Name)
		obj.SetNamespace(f.mc.Namespace)
		obj.SetLabels(names.Servers.Labels(f.mc))
		obj.SetOwnerReferences(owner)
		f.must(f.api.Create(f.ctx, obj))
		left = append(left, obj)
	}
	if result := f.mustReconcile(); result.RequeueAfter != predecessorRetry {
		t.Errorf("looks again after %s, want %s", result.RequeueAfter, predecessorRetry)
	}
	f.want(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonRollingOut)
	if c := meta.FindStatusCondition(f.mc.Status.Conditions, v1alpha1.ConditionReady); !strings.Contains(c.Message,
		"to be deleted") {
		t.Errorf("the message is %q", c.Message)
	}
	for _, obj := range left {
		f.must(f.api.Delete(f.ctx, obj))
	}
	f.ready()
}

// TestJoinedErrors: an error that a retry may fix does not hide one that no retry fixes.
func TestJoinedErrors(t *testing.T) {
	f := newFixture(t)
	f.fail["Service"] = apierrors.NewForbidden(corev1.Resource("services"), "cache", errors.New("exceeded quota"))
	f.fail["Deployment"] = apierrors.NewInvalid(appsv1.SchemeGroupVersion.WithKind("Deployment").GroupKind(), "cache",
		nil)
	if result := f.mustReconcile(); result.RequeueAfter != stalledRetry {
		t.Errorf("looks again after %s, want %s", result.RequeueAfter, stalledRetry)
	}
	f.want(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonInvalid)
	if c := meta.FindStatusCondition(f.mc.Status.Conditions, v1alpha1.ConditionStalled); !strings.Contains(c.Message,
		"exceeded quota") {
		t.Errorf("the message hides the other error: %s", c.Message)
	}
}

// TestRetry: after the cause of an error is removed, the retry follows within seconds.
func TestRetry(t *testing.T) {
	limiter := retries()
	var longest time.Duration
	for range 100 {
		longest = max(longest, limiter.When(request("ns", "cache")))
	}
	if longest > 30*time.Second {
		t.Errorf("an error is tried again after %s", longest)
	}
}

// TestImageIsWrittenWithTheServers: the image that a restart chose is preserved if a write after the Deployment fails.
func TestImageIsWrittenWithTheServers(t *testing.T) {
	for name, breakIt := range map[string]func(*fixture){
		"a child of another": func(f *fixture) {
			budget := get[policyv1.PodDisruptionBudget](f)
			f.must(f.api.Delete(f.ctx, budget))
			budget.ObjectMeta = metav1.ObjectMeta{Name: f.mc.Name, Namespace: f.mc.Namespace}
			f.must(f.api.Create(f.ctx, budget))
		},
		"a status that cannot be written": func(f *fixture) { f.fail["status"] = errors.New("no") },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.ready()
			breakIt(f)
			f.r.Options.DefaultImage = "memcached:2"
			f.mc.Annotations = map[string]string{v1alpha1.RestartedAtAnnotation: "now"}
			f.patch(`{"metadata":{"annotations":{"cache.example.com/restartedAt":"now"}}}`)
			for range 3 {
				_, _ = f.reconcile()
				f.restart()
			}
			f.fail = map[string]error{}
			_, _ = f.reconcile()
			d := get[appsv1.Deployment](f)
			if got := d.Spec.Template.Spec.Containers[0].Image; got != "memcached:2" || d.Generation != 2 {
				t.Errorf("the image is %s after %d generations", got, d.Generation)
			}
			if f.mc.Status.Image != "memcached:2" {
				t.Errorf("status.image is %s", f.mc.Status.Image)
			}
		})
	}
}

// TestNoServerTouched: a change that touches no server is reported in one write, and Ready stays True.
func TestNoServerTouched(t *testing.T) {
	for name, tt := range map[string]struct {
		spec  string
		waits bool // for the controller of the Deployment
	}{
		"budget":  {`{"disruptionBudget":{"maxUnavailable":2}}`, false},
		"rollout": {`{"rollout":{"maxUnavailable":2}}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.ready()
			for len(f.events.Events) > 0 {
				<-f.events.Events
			}
			f.patch(`{"spec":` + tt.spec + `}`)
			f.mustReconcile()
			if tt.waits {
				f.mustReconcile()
				f.wantRequests() // the status of the previous generation is still true
				d := get[appsv1.Deployment](f)
				d.Status.ObservedGeneration = d.Generation
				f.must(f.api.Status().Update(f.ctx, d))
				f.mustReconcile()
				f.wantRequests("patch status")
			} else {
				f.wantRequests("apply Deployment", "apply PodDisruptionBudget", "patch status")
			}
			if n := len(f.events.Events); n > 0 {
				t.Errorf("%d events, such as %s", n, <-f.events.Events)
			}
			f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
			if c := meta.FindStatusCondition(f.mc.Status.Conditions,
				v1alpha1.ConditionReady); c.LastTransitionTime.After(f.now) {
				t.Errorf("Ready changed at %s", c.LastTransitionTime)
			}
		})
	}
}

// TestLostAnnotation: removing the record from the Deployment replaces no server.
func TestLostAnnotation(t *testing.T) {
	f := newFixture(t)
	f.ready()
	d := get[appsv1.Deployment](f)
	f.must(f.api.Patch(f.ctx, d.DeepCopy(), client.RawPatch(types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"cache.example.com/template-record":"{"}}}`)), client.FieldOwner("somebody")))
	f.mustReconcile()
	f.wantTemplate(d.Spec.Template)
	const key = v1alpha1.TemplateRecordAnnotation
	got, want := get[appsv1.Deployment](f).Annotations[key], d.Annotations[key]
	if got = strings.Replace(got, `"ran":true,`, "", 1); got != want {
		t.Errorf("the record is %s, want %s", got, want)
	}
}

// TestServersOfThePort: status.servers has the port of the Service, even while that may not follow the spec.
func TestServersOfThePort(t *testing.T) {
	f := newFixture(t)
	f.ready()
	before := f.mc.Status.Servers
	f.patch(`{"spec":{"paused":true,"containerPort":11999}}`)
	f.mustReconcile()
	if !slices.Equal(f.mc.Status.Servers, before) {
		t.Errorf("paused, the servers are %v, want %v", f.mc.Status.Servers, before)
	}
	f.patch(`{"spec":{"paused":false}}`)
	f.mustReconcile()
	if want := "cache." + f.mc.Namespace + ".svc:11999"; f.mc.Status.Servers[0] != want {
		t.Errorf("the servers are %v, want %s", f.mc.Status.Servers, want)
	}
}

// TestCopy: a user's copy of a child, labels and owner included, is left alone.
func TestCopy(t *testing.T) {
	f := newFixture(t)
	f.ready()
	of := get[corev1.Service](f)
	mine := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "cache-metrics", Namespace: of.Namespace,
		Labels: of.Labels, OwnerReferences: of.OwnerReferences},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 9150}}}}
	f.must(f.api.Create(f.ctx, mine))
	f.mustReconcile()
	f.wantRequests()
	f.must(f.api.Get(f.ctx, client.ObjectKeyFromObject(mine), mine))
}

// TestFinalizerOfDeleted: no finalizer is added to an object whose deletion the informer cache does not show yet.
func TestFinalizerOfDeleted(t *testing.T) {
	f := newFixture(t)
	f.mc.Finalizers = []string{"example.com/other"}
	f.must(f.api.Update(f.ctx, f.mc))
	f.cached[kindMemcached] = f.mc.DeepCopy()
	f.must(f.api.Delete(f.ctx, f.mc))
	f.mustReconcile()
	f.wantRequests("apply Memcached")
	f.mc.Finalizers = nil
	f.must(f.api.Update(f.ctx, f.mc))
}

// TestConflictsInARow: conflicts with successful reconciles in between are not counted as consecutive.
func TestConflictsInARow(t *testing.T) {
	f := newFixture(t)
	f.ready()
	for range 2 * maxConflicts {
		f.roll(2)
		f.fail["status"] = apierrors.NewConflict(corev1.Resource("memcacheds"), "cache", errors.New("changed"))
		f.mustReconcile()
		f.fail = map[string]error{}
		f.roll(3)
		f.mustReconcile()
		f.wantRequests()
	}
}
