package controllers

import (
	"errors"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/names"
)

// overwriteStatus writes the status as another field manager, like a tool that restores an old backup.
func (f *fixture) overwriteStatus() {
	f.Helper()
	condition := func(conditionType string) metav1.Condition {
		return metav1.Condition{Type: conditionType, Status: metav1.ConditionTrue, Reason: "Restored", Message: "of a backup",
			LastTransitionTime: metav1.NewTime(f.now.Truncate(time.Second)), ObservedGeneration: f.mc.Generation}
	}
	f.mc.Status.Conditions = append(f.mc.Status.Conditions, condition("Other"))
	for _, conditionType := range []string{v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled} {
		meta.SetStatusCondition(&f.mc.Status.Conditions, condition(conditionType))
	}
	f.mc.Status.Nodes = append(f.mc.Status.Nodes, "restored")
	f.mc.Status.Image, f.mc.Status.Servers = "restored", []string{"restored"}
	f.must(f.api.Status().Update(f.ctx, f.mc, client.FieldOwner("backup")))
}

// TestForeignStatusIsOverwritten: a reconcile overwrites all that another manager wrote into the status. Such a status
// does not block a deletion.
func TestForeignStatusIsOverwritten(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	before := f.mc.Status.DeepCopy()
	f.overwriteStatus()
	f.restartOperator()
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	for _, c := range f.mc.Status.Conditions {
		if c.Reason == "Restored" {
			t.Errorf("got condition %s of another manager, want it removed or overwritten", c.Type)
		}
	}
	if !slices.Equal(f.mc.Status.Nodes, before.Nodes) || f.mc.Status.Image != before.Image ||
		!slices.Equal(f.mc.Status.Servers, before.Servers) {
		t.Errorf("got status %+v, want %+v", f.mc.Status, before)
	}

	f.overwriteStatus()
	f.must(f.api.Delete(f.ctx, f.mc))
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonFinalizing)
	f.finishDeletion()
}

// TestFailedStatusWriteDoesNotBlockDeletion: a failed write of the status does not block the deletion.
func TestFailedStatusWriteDoesNotBlockDeletion(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	f.failures["patch status"] = forbidden("no")
	f.must(f.api.Delete(f.ctx, f.mc))
	f.mustReconcile()
	f.finishDeletion()
}

// finishDeletion acts as the garbage collector, reconciles, and fails unless the Memcached is deleted.
func (f *fixture) finishDeletion() {
	f.Helper()
	f.collectGarbage()
	f.mustReconcile()
	if err := f.api.Get(f.ctx, client.ObjectKeyFromObject(f.mc), f.mc); !apierrors.IsNotFound(err) {
		f.Errorf("got %v, want the Memcached to be deleted", err)
	}
}

// TestStateLastsUntilDeletion: an API server may answer NotFound by mistake, for example while it starts. The Memcached
// is still reconciled. Its state in memory is deleted when the Memcached is.
func TestStateLastsUntilDeletion(t *testing.T) {
	f := newFixture(t)
	f.mustReconcile()
	f.setServersReady(3)
	f.failures["patch status"] = apierrors.NewNotFound(schema.GroupResource{Resource: "memcacheds"}, "cache")
	f.mustReconcile()
	f.failures = map[string]error{}
	if got := f.eventDelays(get[appsv1.Deployment](f), false); len(got) != 1 {
		t.Errorf("a change of the Deployment: got %d reconciles, want 1", len(got))
	}
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.cached[kindMemcached] = nil
	f.mustReconcile()
	if _, ok := f.r.states.m.Load(client.ObjectKeyFromObject(f.mc)); ok {
		t.Error("the state of a deleted Memcached still exists")
	}
}

// TestNeedsReconcile: a status that we wrote needs no reconcile. A status of another manager does, and so does a new
// Memcached that replaced a deleted one of the same name between two watch events.
func TestNeedsReconcile(t *testing.T) {
	f := newFixture(t)
	f.mustReconcile()
	before := f.mc.DeepCopy()
	f.setServersReady(3)
	f.mustReconcile()
	for name, tt := range map[string]struct {
		change func(*v1alpha1.Memcached)
		want   bool
	}{
		"our status":        {func(*v1alpha1.Memcached) {}, false},
		"status of another": {func(mc *v1alpha1.Memcached) { mc.Status.Nodes, mc.ResourceVersion = nil, "other" }, true},
		"labels":            {func(mc *v1alpha1.Memcached) { mc.Labels = map[string]string{"a": "b"} }, false},
		"successor":         {func(mc *v1alpha1.Memcached) { mc.UID = "other" }, true},
		"annotations":       {func(mc *v1alpha1.Memcached) { mc.Annotations = map[string]string{"a": "b"} }, true},
	} {
		after := f.mc.DeepCopy()
		tt.change(after)
		if got := f.r.needsReconcile(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != tt.want {
			t.Errorf("%s: got %t, want %t", name, got, tt.want)
		}
	}
}

// TestPodChanged: changes of the fields that the operator reads need a reconcile, such as the adoption of a pod.
func TestPodChanged(t *testing.T) {
	before := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{names.LabelInstance: "cache"}}}
	for name, tt := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"nothing":     {func(p *corev1.Pod) { p.ResourceVersion = "2" }, false},
		"terminating": {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, true},
		"adopted":     {func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{{UID: "rs"}} }, true},
		"labels":      {func(p *corev1.Pod) { p.Labels = nil }, true},
		"status":      {func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, true},
	} {
		after := before.DeepCopy()
		tt.change(after)
		if got := podChanged(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != tt.want {
			t.Errorf("%s: got %t, want %t", name, got, tt.want)
		}
	}
}

// TestSuccessorKeepsItsStatus: a status that was computed for a deleted Memcached is never written to a new one of the
// same name.
func TestSuccessorKeepsItsStatus(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	f.setServersReady(2)
	f.cached[kindMemcached] = f.mc.DeepCopy()
	f.cached["Deployment"] = get[appsv1.Deployment](f)
	successor := &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Name: f.mc.Name, Namespace: f.mc.Namespace},
		Spec: f.mc.Spec}
	f.patch(`{"metadata":{"finalizers":null}}`)
	f.must(f.api.Delete(f.ctx, f.mc))
	f.must(f.api.Create(f.ctx, successor))
	if result := f.mustReconcile(); result.RequeueAfter == 0 {
		t.Error("got no requeue, want one")
	}
	if f.mc.UID != successor.UID || f.mc.Status.ObservedGeneration != -1 || len(f.mc.Status.Nodes) > 0 {
		t.Errorf("got status %+v of the new Memcached, want an empty one", f.mc.Status)
	}
}

// TestChildReplacedDuringReconcile: a child that somebody deletes and creates again during a reconcile is not reported
// as Invalid.
func TestChildReplacedDuringReconcile(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	old := get[corev1.Service](f)
	f.must(f.api.Delete(f.ctx, old))
	other := old.DeepCopy()
	other.UID, other.ResourceVersion, other.Spec.ClusterIPs = "", "", nil
	other.OwnerReferences = controlledByOther("other")
	f.must(f.api.Create(f.ctx, other))
	old.Spec.Selector = nil // so that the operator applies the Service
	old.ManagedFields = nil
	f.cached["Service"] = old
	f.patch(`{"spec":{"containerPort":12345}}`)
	if result := f.mustReconcile(); result.RequeueAfter != conflictRetry {
		t.Errorf("got requeue after %s, want %s", result.RequeueAfter, conflictRetry)
	}
	f.wantNotStalled()
	delete(f.cached, "Service")
	f.now = f.now.Add(children.ExpectationTimeout)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonConflict)
}

// TestChildrenOfPredecessor: the operator deletes the children of a deleted Memcached of the same name, which the
// garbage collector can miss, and waits until those are deleted whose names it needs. They are no conflict.
func TestChildrenOfPredecessor(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, networkPolicy: {}}")
	f.becomeReady()
	successor := &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Name: f.mc.Name, Namespace: f.mc.Namespace},
		Spec: v1alpha1.MemcachedSpec{Size: f.mc.Spec.Size}}
	f.patch(`{"metadata":{"finalizers":null}}`)
	f.must(f.api.Delete(f.ctx, f.mc))
	f.deletePods()
	f.mc = successor
	f.must(f.api.Create(f.ctx, f.mc))
	if result := f.mustReconcile(); result.RequeueAfter != deletionRetry {
		t.Errorf("got requeue after %s, want %s", result.RequeueAfter, deletionRetry)
	}
	f.wantCondition(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonRollingOut)
	f.wantMessage(v1alpha1.ConditionReady, "to be deleted")
	err := f.api.Get(f.ctx, f.key(f.mc.Name), &networkingv1.NetworkPolicy{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("read the NetworkPolicy, which the new Memcached does not need: got %v, want NotFound", err)
	}
	f.becomeReady()
}

// TestStallErrorBesideAnother: an error that a retry may fix does not hide one that no retry fixes. Both are reported.
func TestStallErrorBesideAnother(t *testing.T) {
	f := newFixture(t)
	f.failures["apply PodDisruptionBudget"] = forbidden("exceeded quota")
	f.failures["apply Deployment"] = apierrors.NewInvalid(schema.GroupKind{Kind: "Deployment"}, "cache", nil)
	if result := f.mustReconcile(); result.RequeueAfter != stalledRetry {
		t.Errorf("got requeue after %s, want %s", result.RequeueAfter, stalledRetry)
	}
	f.wantCondition(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonInvalid)
	f.wantMessage(v1alpha1.ConditionStalled, "exceeded quota")
}

// TestRetryDelayIsBounded: after somebody removes the cause of an error, the retry follows within 30 seconds.
func TestRetryDelayIsBounded(t *testing.T) {
	limiter := newRateLimiter()
	var longest time.Duration
	for range 100 {
		longest = max(longest, limiter.When(request("ns", "cache")))
	}
	if longest > 30*time.Second {
		t.Errorf("got a retry after %s, want at most 30 s", longest)
	}
}

// TestImageSurvivesFailedWrites: a restart selects the default image of the operator. That image is preserved even if
// the writes after that of the Deployment fail.
func TestImageSurvivesFailedWrites(t *testing.T) {
	t.Parallel()
	for name, failWrites := range map[string]func(*fixture){
		"PodDisruptionBudget of another": func(f *fixture) {
			budget := get[policyv1.PodDisruptionBudget](f)
			f.must(f.api.Delete(f.ctx, budget))
			budget.ObjectMeta = metav1.ObjectMeta{Name: f.mc.Name, Namespace: f.mc.Namespace}
			f.must(f.api.Create(f.ctx, budget))
		},
		"status": func(f *fixture) { f.failures["patch status"] = errors.New("no") },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.becomeReady()
			failWrites(f)
			f.r.Options.DefaultImage = "memcached:2"
			f.mc.Annotations = map[string]string{v1alpha1.RestartedAtAnnotation: "now"}
			f.patch(`{"metadata":{"annotations":{"cache.example.com/restartedAt":"now"}}}`)
			for range 3 {
				_, _ = f.reconcile()
				f.restartOperator()
			}
			f.failures = map[string]error{}
			_, _ = f.reconcile()
			d := get[appsv1.Deployment](f)
			if got := d.Spec.Template.Spec.Containers[0].Image; got != "memcached:2" || d.Generation != 2 {
				t.Errorf("got image %s in generation %d, want memcached:2 in generation 2", got, d.Generation)
			}
			if f.mc.Status.Image != "memcached:2" {
				t.Errorf("got status.image %s, want memcached:2", f.mc.Status.Image)
			}
		})
	}
}

// TestChangeThatTouchesNoServer: a change that touches no server is reported in one write, and Ready stays True. If the
// controller of the Deployment must observe the change, Ready is False until then.
func TestChangeThatTouchesNoServer(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spec    string
		observe bool
	}{
		"budget":  {`{"disruptionBudget":{"maxUnavailable":2}}`, false},
		"rollout": {`{"rollout":{"maxUnavailable":2}}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.becomeReady()
			for len(f.events.Events) > 0 {
				<-f.events.Events
			}
			f.patch(`{"spec":` + tt.spec + `}`)
			f.mustReconcile()
			if tt.observe {
				f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRollingOut)
				f.observeDeployment()
				f.mustReconcile()
				f.wantRequests("patch status")
			} else {
				f.wantRequests("apply PodDisruptionBudget", "apply Deployment", "patch status")
				if n := len(f.events.Events); n > 0 {
					t.Errorf("got %d events, such as %s, want none", n, <-f.events.Events)
				}
			}
			f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
			f.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonAsExpected)
		})
	}
}

// observeDeployment acts as the Deployment controller after a change that touches no server.
func (f *fixture) observeDeployment() {
	f.Helper()
	d := get[appsv1.Deployment](f)
	d.Status.ObservedGeneration = d.Generation
	f.must(f.api.Status().Update(f.ctx, d))
}

// TestForeignChange: somebody changes a field of the Deployment, and the operator changes it back. Until the controller
// of the Deployment has observed that, Ready is False.
func TestForeignChange(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{"that touches no server": `{"spec":{"revisionHistoryLimit":7}}`,
		"of the template": `{"spec":{"template":{"metadata":{"annotations":{"restart":"now"}}}}}`} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.becomeReady()
			f.must(f.api.Patch(f.ctx, get[appsv1.Deployment](f), mergePatch(change), client.FieldOwner("somebody")))
			f.mustReconcile()
			f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRollingOut)
			f.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonAsExpected)
			f.observeDeployment()
			f.mustReconcile()
			f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
		})
	}
}

// TestLostTemplateRecord: if somebody overwrites the template record of the Deployment, it is restored, and no server
// is replaced.
func TestLostTemplateRecord(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	d := get[appsv1.Deployment](f)
	f.must(f.api.Patch(f.ctx, d.DeepCopy(), client.RawPatch(types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"cache.example.com/template-record":"{"}}}`)), client.FieldOwner("somebody")))
	f.mustReconcile()
	f.wantTemplate(d.Spec.Template)
	const key = v1alpha1.TemplateRecordAnnotation
	got, want := get[appsv1.Deployment](f).Annotations[key], d.Annotations[key]
	if got != want {
		t.Errorf("got record %s, want %s", got, want)
	}
}

// TestAddressesFollowTheService: status.servers has the port of the Service, even while spec.paused keeps the Service
// from following the spec.
func TestAddressesFollowTheService(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	before := f.mc.Status.Servers
	f.patch(`{"spec":{"paused":true,"containerPort":11999}}`)
	f.mustReconcile()
	if !slices.Equal(f.mc.Status.Servers, before) {
		t.Errorf("paused: got status.servers %v, want %v", f.mc.Status.Servers, before)
	}
	f.patch(`{"spec":{"paused":false}}`)
	f.mustReconcile()
	if want := "cache." + f.mc.Namespace + ".svc:11999"; f.mc.Status.Servers[0] != want {
		t.Errorf("got status.servers %v, want %s", f.mc.Status.Servers, want)
	}
}

// TestCopyOfChildIsLeftAlone: the operator does not delete a user's copy of a child, even one with its labels and
// owner.
func TestCopyOfChildIsLeftAlone(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	service := get[corev1.Service](f)
	userCopy := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "cache-metrics", Namespace: service.Namespace,
		Labels: service.Labels, OwnerReferences: service.OwnerReferences},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 9150}}}}
	f.must(f.api.Create(f.ctx, userCopy))
	f.mustReconcile()
	f.wantRequests()
	f.must(f.api.Get(f.ctx, client.ObjectKeyFromObject(userCopy), userCopy))
}

// TestNoFinalizerAfterDeletion: no finalizer is added to a Memcached whose deletion the informer cache does not show
// yet.
func TestNoFinalizerAfterDeletion(t *testing.T) {
	f := newFixture(t)
	f.mc.Finalizers = []string{"example.com/other"}
	f.must(f.api.Update(f.ctx, f.mc))
	f.cached[kindMemcached] = f.mc.DeepCopy()
	f.must(f.api.Delete(f.ctx, f.mc))
	f.mustReconcile()
	f.wantRequests("patch Memcached")
	f.mc.Finalizers = nil
	f.must(f.api.Update(f.ctx, f.mc))
}

// TestOnlyConsecutiveConflictsCount: a successful reconcile resets the number of conflicts.
func TestOnlyConsecutiveConflictsCount(t *testing.T) {
	f := newFixture(t)
	f.becomeReady()
	for range 2 * maxConflicts {
		f.setServersReady(2)
		f.failures["patch status"] = apierrors.NewConflict(corev1.Resource("memcacheds"), "cache", errors.New("changed"))
		f.mustReconcile()
		f.failures = map[string]error{}
		f.setServersReady(3)
		f.mustReconcile()
		f.wantRequests()
	}
}
