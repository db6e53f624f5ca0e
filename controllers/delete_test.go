package controllers

import (
	"reflect"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// delete deletes the Memcached.
func (f *fixture) delete(how metav1.DeletionPropagation) {
	f.Helper()
	f.Must(f.API.Delete(f.Ctx, f.mc, client.PropagationPolicy(how)))
	f.exists("cache", f.mc) // reads it
}

func (f *fixture) deleteNamespace() {
	f.Helper()
	f.Must(f.API.Delete(f.Ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: f.Key.Namespace}}))
}

// hasFinalizer reports whether the Memcached exists and has our finalizer.
func (f *fixture) hasFinalizer() bool {
	f.Helper()
	return f.exists("cache", f.mc) && controllerutil.ContainsFinalizer(f.mc, v1alpha1.Finalizer)
}

// collectGarbage acts as the garbage collector: it deletes the pods of a Deployment that is being deleted in the
// foreground, and then the Deployment.
func (f *fixture) collectGarbage() {
	f.Helper()
	d := get[appsv1.Deployment](f)
	if d.DeletionTimestamp.IsZero() || !controllerutil.ContainsFinalizer(d, metav1.FinalizerDeleteDependents) {
		f.Errorf("got Deployment %+v, want it being deleted in the foreground", d.ObjectMeta)
	}
	f.collectPods()
	f.Patch(d, `{"metadata":{"finalizers":null}}`)
}

// finishDeletion acts as the garbage collector, reconciles, and fails unless the Memcached is deleted.
func (f *fixture) finishDeletion() {
	f.Helper()
	f.collectGarbage()
	f.mustReconcile()
	if f.exists("cache", f.mc) {
		f.Error("the Memcached still exists")
	}
}

// TestDeletion: the operator deletes the workload, and removes the finalizer when the servers are deleted.
func TestDeletion(t *testing.T) {
	t.Parallel()
	t.Run("waits for servers", func(t *testing.T) {
		f := ready(t, onDeployment)
		f.delete(metav1.DeletePropagationBackground)
		f.mustReconcile()
		f.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonFinalizing)
		f.wantEvent("Normal Finalizing")
		f.mustReconcile()
		f.wantRequests()
		if !f.hasFinalizer() {
			t.Error("got the finalizer removed while pods exist")
		}
		f.finishDeletion()
	})
	t.Run("lets servers stop that wait for it", func(t *testing.T) {
		f := ready(t, withProxy)
		f.delete(metav1.DeletePropagationBackground)
		f.Must(f.API.Delete(f.Ctx, f.pod("cache-0"))) // as the garbage collector does
		f.mustReconcile()
		if !f.Agents.Stopped[f.pod("cache-0").Status.PodIP] {
			t.Error("the server was not stopped")
		}
	})
	t.Run("does not fail with the status", func(t *testing.T) {
		f := ready(t, onDeployment)
		f.failures["patch status"] = forbidden("no")
		f.delete(metav1.DeletePropagationBackground)
		f.mustReconcile()
		f.finishDeletion()
	})
	t.Run("waits for finalizeTimeout at most, by the clock of each operator process", func(t *testing.T) {
		f := ready(t, onDeployment)
		f.delete(metav1.DeletePropagationBackground)
		f.now = f.now.Add(time.Hour) // during which no operator runs
		wantWait := func(want time.Duration) {
			t.Helper()
			if wait := f.mustReconcile().RequeueAfter; wait != want {
				t.Errorf("got a reconcile after %s, want %s", wait, want)
			}
		}
		wantWait(finalizeTimeout)
		f.now = f.now.Add(time.Minute)
		wantWait(finalizeTimeout - time.Minute)
		f.skew = 2 * time.Hour
		f.restartOperator()
		wantWait(finalizeTimeout)
		f.now = f.now.Add(finalizeTimeout)
		f.mustReconcile()
		if f.hasFinalizer() {
			t.Error("got the finalizer kept after finalizeTimeout")
		}
		f.wantEvent("Warning FinalizeTimeout")
	})
	t.Run("waits for a workload that cannot be deleted", func(t *testing.T) {
		f := ready(t, onDeployment)
		f.failures["delete Deployment"] = forbidden("denied by a policy")
		f.delete(metav1.DeletePropagationBackground)
		for range 3 {
			f.now = f.now.Add(finalizeTimeout + time.Minute)
			f.reconcileError("denied by a policy")
			f.wantMessage(v1alpha1.ConditionReady, "denied by a policy")
		}
		clear(f.failures)
		f.mustReconcile()
		if !f.hasFinalizer() {
			t.Error("got the finalizer removed, want it kept")
		}
	})
	t.Run("does not wait in a namespace that is being deleted", func(t *testing.T) {
		f := ready(t, onDeployment)
		f.deleteNamespace()
		f.delete(metav1.DeletePropagationBackground)
		f.mustReconcile()
		if f.hasFinalizer() || f.has("delete Deployment") {
			t.Errorf("got requests %q, want only the finalizer removed", f.requests)
		}
	})
	t.Run("does not wait in a namespace that is deleted later", func(t *testing.T) {
		f := ready(t, onDeployment)
		f.failures["delete Deployment"] = forbidden("no RoleBinding")
		f.delete(metav1.DeletePropagationBackground)
		f.reconcileError("no RoleBinding")
		f.deleteNamespace()
		f.mustReconcile()
		if f.hasFinalizer() {
			t.Error("got the finalizer kept")
		}
	})
	t.Run("waits for the deletion of a namespace, and creates nothing there", func(t *testing.T) {
		f := ready(t, onDeployment)
		f.deleteNamespace()
		f.Must(f.API.Delete(f.Ctx, get[appsv1.Deployment](f)))
		if wait := f.mustReconcile().RequeueAfter; wait != deletionRetry {
			t.Errorf("got a reconcile after %s, want %s", wait, deletionRetry)
		}
		f.wantNotReady(v1alpha1.ReasonRollingOut, "")
	})
	t.Run("removes the finalizer even if others own it too, and keeps those of others", func(t *testing.T) {
		f := newFixture(t, onDeployment)
		f.user(`{"metadata":{"finalizers":["cache.example.com/finalizer","example.com/other"]}}`)
		f.settle()
		f.delete(metav1.DeletePropagationOrphan)
		f.mustReconcile()
		if len(f.mc.Finalizers) != 2 || f.hasFinalizer() {
			t.Errorf("got finalizers %q, want those of others", f.mc.Finalizers)
		}
	})
}

// TestOrphans: whatever the informer cache shows, a deletion that orphans the children deletes none, and nothing is
// created or adopted for a Memcached that is deleted.
func TestOrphans(t *testing.T) {
	t.Parallel()
	orphan := func(f *fixture) { f.Patch(get[appsv1.Deployment](f), `{"metadata":{"ownerReferences":null}}`) }
	show := func(f *fixture, objects ...client.Object) {
		for _, obj := range objects {
			kind := reflect.TypeOf(obj).Elem().Name()
			f.cached[kind] = obj.DeepCopyObject().(client.Object)
		}
	}
	for name, lets := range map[string]func(*fixture){
		"by the deletion": func(f *fixture) { f.delete(metav1.DeletePropagationOrphan) },
		"just before the deletion": func(f *fixture) {
			show(f, get[appsv1.Deployment](f))
			orphan(f)
			f.delete(metav1.DeletePropagationBackground)
		},
		"by somebody": func(f *fixture) {
			orphan(f)
			f.delete(metav1.DeletePropagationBackground)
		},
		"after a deletion that the cache does not show": func(f *fixture) {
			show(f, f.mc)
			f.delete(metav1.DeletePropagationOrphan)
			orphan(f)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := ready(t, onDeployment)
			lets(f)
			f.mustReconcile()
			d := get[appsv1.Deployment](f)
			if owned := metav1.IsControlledBy(d, f.mc); !d.DeletionTimestamp.IsZero() ||
				owned && name != "by the deletion" {
				t.Errorf("got the Deployment %+v with requests %q, want it left", d.ObjectMeta, f.requests)
			}
		})
	}
	t.Run("child deleted after a deletion that the cache does not show", func(t *testing.T) {
		f := newFixture(t, onDeployment)
		f.mustReconcile()
		f.act() // if it were ready, the status would be written first, and show the deletion
		f.mustReconcile()
		show(f, f.mc)
		f.delete(metav1.DeletePropagationForeground)
		f.Must(f.API.Delete(f.Ctx, get[appsv1.Deployment](f)))
		f.mustReconcile()
		if f.exists("cache", &appsv1.Deployment{}) {
			t.Error("a Deployment was created for a Memcached that is being deleted")
		}
	})
	t.Run("finalizer after a deletion that the cache does not show", func(t *testing.T) {
		f := newFixture(t, onDeployment)
		f.user(`{"metadata":{"finalizers":["example.com/other"]}}`)
		show(f, f.mc)
		f.delete(metav1.DeletePropagationBackground)
		f.mustReconcile()
		if f.hasFinalizer() || f.exists("cache", &appsv1.Deployment{}) {
			t.Error("a Memcached that is being deleted got a finalizer, or children")
		}
		f.user(`{"metadata":{"finalizers":null}}`)
	})
}
