package controllers

import (
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/children"
)

// The informer cache, or the operator itself, is late. Crash points let it be late at each time in tests/simulation.

// TestFormerLeaderRestoresNothing: an operator that hung, and is no longer the leader, does not restore an older
// template.
func TestFormerLeaderRestoresNothing(t *testing.T) {
	f := ready(t, onDeployment)
	before, old := get[appsv1.Deployment](f), f.mc.DeepCopy()
	f.set(`{"memory":"128Mi"}`)
	f.mustReconcile()
	template := get[appsv1.Deployment](f).Spec.Template
	f.now = f.now.Add(children.ExpectationTimeout)
	before.Spec.Replicas = ptr.To[int32](9) // a drift that the operator tries to revert
	// For a Memcached that is ready, the operator would write the status first, which would fail with a conflict.
	old.Status.Conditions = nil
	f.cached["Deployment"], f.cached[kindMemcached] = before, old
	_, _ = f.reconcile()
	f.wantTemplate(template)
	if !f.has("apply Deployment") {
		t.Errorf("got requests %q, want apply Deployment", f.requests)
	}
}

// TestWorkloadStatusChangesDuringApply: an apply that conflicts with a status update of the Deployment is repeated.
func TestWorkloadStatusChangesDuringApply(t *testing.T) {
	f := ready(t, onDeployment)
	f.cached["Deployment"] = get[appsv1.Deployment](f)
	f.lose(f.pods("")[0].Name)
	f.act()
	f.set(`{"size":2}`)
	f.mustReconcile()
	if got := *get[appsv1.Deployment](f).Spec.Replicas; got != 2 {
		t.Errorf("got %d replicas, want 2", got)
	}
}

// TestWorkloadThatTheCacheDoesNotShow: a workload that lost the label by which the informer cache selects it is deleted
// with the Memcached. Until then, it keeps its template: see TestDriftIsReverted.
func TestWorkloadThatTheCacheDoesNotShow(t *testing.T) {
	f := ready(t, onDeployment)
	f.Patch(get[appsv1.Deployment](f), `{"metadata":{"labels":{"app.kubernetes.io/managed-by":"Helm"}}}`)
	f.now = f.now.Add(children.ExpectationTimeout)
	f.delete(metav1.DeletePropagationBackground)
	f.mustReconcile()
	f.finishDeletion()
}

// TestReadyIgnoresStaleWorkload: Ready does not become True by a stale Deployment in the informer cache, even if its
// spec is as desired. That holds for the process that wrote the newer Deployment, and after a restart.
func TestReadyIgnoresStaleWorkload(t *testing.T) {
	t.Parallel()
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarted %t", restarted), func(t *testing.T) {
			f := ready(t, onDeployment)
			first := get[appsv1.Deployment](f)
			f.set(`{"memory":"128Mi"}`)
			f.mustReconcile()
			f.set(`{"memory":"64Mi"}`)
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
	f := newFixture(t, onDeployment)
	created := f.mc.DeepCopy()
	f.settle()
	older := f.mc.DeepCopy()
	f.set(`{"size":5}`)
	f.settle()
	want := func(what string, want int32) {
		t.Helper()
		if got := *get[appsv1.Deployment](f).Spec.Replicas; got != want {
			t.Errorf("%s: got %d servers, want %d", what, got, want)
		}
	}
	for _, older := range []*v1alpha1.Memcached{older, created} {
		f.restartOperator()
		f.cached[kindMemcached] = older
		f.mustReconcile()
		want("older Memcached", 5)
	}
	delete(f.cached, kindMemcached)
	f.Patch(get[appsv1.Deployment](f), `{"metadata":{"labels":{"`+v1alpha1.GenerationLabel+`":"1000"}}}`)
	f.set(`{"size":6}`)
	f.settle()
	want("wrong label", 6)
}

// TestChildDeletedBeforeTheCacheShowsIt: a child that the informer cache never shows is created again after
// ExpectationTimeout.
func TestChildDeletedBeforeTheCacheShowsIt(t *testing.T) {
	f := newFixture(t, onDeployment)
	f.mustReconcile()
	f.Must(f.API.Delete(f.Ctx, get[appsv1.Deployment](f)))
	if wait := f.mustReconcile().RequeueAfter; wait == 0 || len(f.requests) > 0 {
		t.Errorf("got another reconcile after %s and requests %q, want one and no requests", wait, f.requests)
	}
	f.settle()
	f.wantReady()
}

// TestChildReplacedDuringReconcile: a child that somebody deletes and creates again during a reconcile is not reported
// as Invalid.
func TestChildReplacedDuringReconcile(t *testing.T) {
	f := ready(t, onDeployment)
	old := get[corev1.Service](f)
	f.Must(f.API.Delete(f.Ctx, old))
	other := old.DeepCopy()
	other.UID, other.ResourceVersion, other.Spec.ClusterIPs = "", "", nil
	other.OwnerReferences = controlledByOther("other")
	f.Must(f.API.Create(f.Ctx, other))
	old.Spec.Selector, old.ManagedFields = nil, nil // so that the operator applies the Service
	f.cached["Service"] = old
	f.set(`{"containerPort":12345}`)
	if wait := f.mustReconcile().RequeueAfter; wait != conflictRetry {
		t.Errorf("got another reconcile after %s, want %s", wait, conflictRetry)
	}
	f.wantNotStalled()
	delete(f.cached, "Service")
	f.settle()
	f.wantStalled(v1alpha1.ReasonConflict, "")
}

// overwriteStatus writes the status as another field manager, like a tool that restores an old backup.
func (f *fixture) overwriteStatus() {
	f.Helper()
	f.Must(f.API.Get(f.Ctx, f.Key, f.mc))
	for _, conditionType := range []string{v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled, "Other"} {
		meta.SetStatusCondition(&f.mc.Status.Conditions, metav1.Condition{Type: conditionType, Status: metav1.ConditionTrue,
			Reason: "Restored", Message: "of a backup", ObservedGeneration: f.mc.Generation})
	}
	f.mc.Status.Nodes = append(f.mc.Status.Nodes, "restored")
	f.mc.Status.Image, f.mc.Status.Servers = "restored", []string{"restored"}
	f.Must(f.API.Status().Update(f.Ctx, f.mc, client.FieldOwner("backup")))
}

// TestForeignStatusIsOverwritten: a reconcile overwrites all that another manager wrote into the status. Such a status
// does not block a deletion.
func TestForeignStatusIsOverwritten(t *testing.T) {
	f := ready(t, onDeployment)
	before := f.mc.Status.DeepCopy()
	f.overwriteStatus()
	f.restartOperator()
	f.mustReconcile()
	f.wantReady()
	for _, c := range f.mc.Status.Conditions {
		if c.Reason == "Restored" {
			t.Errorf("got condition %s of another manager, want it removed or overwritten", c.Type)
		}
	}
	if is := f.mc.Status; !slices.Equal(is.Nodes, before.Nodes) || is.Image != before.Image ||
		!slices.Equal(is.Servers, before.Servers) {
		t.Errorf("got status %+v, want %+v", is, before)
	}
	f.overwriteStatus()
	f.delete(metav1.DeletePropagationBackground)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonFinalizing)
	f.finishDeletion()
}

// TestSuccessorKeepsItsStatus: a status that was computed for a deleted Memcached is never written to a new one of the
// same name.
func TestSuccessorKeepsItsStatus(t *testing.T) {
	f := ready(t, onDeployment)
	f.lose(f.pods("")[0].Name)
	f.cached[kindMemcached], f.cached["Deployment"] = f.mc.DeepCopy(), get[appsv1.Deployment](f)
	f.succeed(func(*v1alpha1.MemcachedSpec) {})
	uid := f.mc.UID
	if wait := f.mustReconcile().RequeueAfter; wait == 0 {
		t.Error("got no requeue, want one")
	}
	if f.mc.UID != uid || f.mc.Status.ObservedGeneration != -1 || len(f.mc.Status.Nodes) > 0 {
		t.Errorf("got status %+v of the new Memcached, want an empty one", f.mc.Status)
	}
}

// TestStateLastsUntilDeletion: an API server may answer NotFound by mistake, for example while it starts. The Memcached
// is still reconciled. Its state in memory is deleted when the Memcached is.
func TestStateLastsUntilDeletion(t *testing.T) {
	f := newFixture(t, onDeployment)
	f.mustReconcile()
	f.act()
	f.act()
	f.failures["patch status"] = apierrors.NewNotFound(schema.GroupResource{Resource: "memcacheds"}, "cache")
	f.mustReconcile()
	clear(f.failures)
	if got := f.eventDelays(get[appsv1.Deployment](f), false); len(got) != 1 {
		t.Errorf("a change of the Deployment: got %d reconciles, want 1", len(got))
	}
	f.settle()
	f.wantReady()
	f.cached[kindMemcached] = nil
	f.mustReconcile()
	if _, ok := f.r.states.m.Load(f.Key); ok {
		t.Error("the state of a deleted Memcached still exists")
	}
}
