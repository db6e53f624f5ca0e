package controllers

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// TestRefusedPods: the status says within seconds why the API server refuses pods, and once it accepts them, their
// controller tries again, whatever its back-off.
func TestRefusedPods(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ spec, workload string }{
		"servers of a StatefulSet": {onStatefulSet, "StatefulSet"},
		"servers of a Deployment":  {onDeployment, "Deployment"},
		"proxies":                  {withProxy, "Deployment"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, tt.spec)
			begin := f.now
			pods := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("2")}
			quota := &corev1.ResourceQuota{ObjectMeta: f.Object("quota"), Spec: corev1.ResourceQuotaSpec{Hard: pods}}
			f.Must(f.API.Create(f.Ctx, quota))
			quota.Status = corev1.ResourceQuotaStatus{Hard: pods,
				Used: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}}
			f.Must(f.API.Status().Update(f.Ctx, quota))
			const cause = "is forbidden: exceeded quota: quota, requested: pods=1, used: pods=2, limited: pods=2"
			f.until("refused", func() bool {
				return strings.Contains(f.readyMessage(), cause)
			})
			if took := f.now.Sub(begin); took > 20*time.Second {
				t.Errorf("the status has the cause after %s", took)
			}
			f.wantNotReady(v1alpha1.ReasonProgressingWithRetry, cause)
			for range 6 { // the Deployment says it too, and proxies load their list
				f.round()
			}
			for range 20 { // it stays, and nothing is written
				f.round()
				f.wantNotReady(v1alpha1.ReasonProgressingWithRetry, cause)
				if f.has("patch "+tt.workload) || f.has("patch status") {
					t.Fatalf("got requests %q", f.requests)
				}
			}
			f.Must(f.API.Delete(f.Ctx, quota))
			accepted := f.now
			f.until("Ready", f.isReady)
			if took := f.now.Sub(accepted); took > time.Minute {
				t.Errorf("Ready %s after the quota was deleted", took)
			}
			f.wantReady()
		})
	}
}

// TestRetry: while pods are missing that the API server accepts, the workload is changed at most every 30 s. An apply
// leaves that annotation alone.
func TestRetry(t *testing.T) {
	f := ready(t, onStatefulSet)
	f.lose("cache-1")
	f.mustReconcile()
	f.Must(f.API.Delete(f.Ctx, f.pod("cache-2"), client.GracePeriodSeconds(0)))
	patched := 0
	for range 16 { // 64 s in which no controller acts
		f.now = f.now.Add(4 * time.Second)
		f.mustReconcile()
		if f.has("patch StatefulSet") {
			patched++
		}
		if f.has("apply") {
			t.Errorf("got requests %q", f.requests)
		}
	}
	f.wantMessage(v1alpha1.ConditionReady, "1 of 3 servers ready; StatefulSet cache has yet to create a pod")
	retried := get[appsv1.StatefulSet](f).Annotations[v1alpha1.RetriedAnnotation]
	if patched != 2 || retried == "" {
		t.Errorf("the StatefulSet was changed %d times, the last time at %q, want 2 times", patched, retried)
	}
	f.set(`{"threads":2}`)
	f.mustReconcile()
	if got := get[appsv1.StatefulSet](f).Annotations[v1alpha1.RetriedAnnotation]; !f.has("apply StatefulSet") ||
		got != retried {
		t.Errorf("after an apply: got %q, want %q", got, retried)
	}
	f.settle()
	f.wantReady()
}

// TestFullRange: if no address is left for a Service, the operator asks for no other in the same reconcile, and goes on
// once there are addresses.
func TestFullRange(t *testing.T) {
	f := newFixture(t, "{size: 5, workload: StatefulSet, serverAddresses: ClusterIP}")
	f.failures["apply Service cache-1"] = apierrors.NewInternalError(errors.New("range is full"))
	f.reconcileError("range is full")
	f.wantNotReady(v1alpha1.ReasonProgressingWithRetry, "apply Service cache-1: Internal error occurred: range is full")
	applied := slices.DeleteFunc(f.requests, func(r string) bool { return r != "apply Service" })
	if want := 3; len(applied) != want { // the headless Service, and those of two servers
		t.Errorf("got %d requests for Services, want %d", len(applied), want)
	}
	clear(f.failures)
	f.settle()
	f.wantReady()
}
