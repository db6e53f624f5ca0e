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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// TestRequests: a creation takes six requests, and a reconcile that changes nothing takes none. After a restart of the
// operator, each child is applied once, which changes nothing.
// tests/bench/results.md has what that costs.
func TestRequests(t *testing.T) {
	f := newFixture(t, onDeployment)
	f.mustReconcile()
	f.wantRequests("patch Memcached", "apply Service", "apply PodDisruptionBudget", "apply Deployment", "patch status")
	f.settle()
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

	f.set(`{"size":2}`)
	f.mustReconcile()
	f.wantRequests("dry-run Deployment", "apply Deployment", "patch status")
	f.wantNotReady(v1alpha1.ReasonResizing, "")
	f.settle()
	for len(f.events.Events) > 0 {
		<-f.events.Events
	}
	f.set(`{"disruptionBudget":{"maxUnavailable":2}}`) // touches no server
	f.mustReconcile()
	f.wantRequests("apply PodDisruptionBudget", "dry-run Deployment", "apply Deployment", "patch status")
	f.wantReady()
	if n := len(f.events.Events); n > 0 {
		t.Errorf("got %d events, such as %s, want none", n, <-f.events.Events)
	}
}

// TestProgressDeadline: a server that becomes ready again and again is no progress. Time during which no operator runs
// does not count.
func TestProgressDeadline(t *testing.T) {
	f := newFixture(t, "{size: 3, rollout: {progressDeadlineSeconds: 10}}")
	f.round()
	f.round()
	for n := range 8 {
		f.setReady(f.pods("")[n%3].Name, false)
		f.round()
	}
	f.wantStalled(v1alpha1.ReasonProgressDeadlineExceeded, "")
	f.restartOperator()
	f.mustReconcile()
	f.wantStalled(v1alpha1.ReasonProgressDeadlineExceeded, "")
	f.set(`{"memory":"128Mi"}`)
	f.mustReconcile()
	f.wantNotStalled()
	f.restartOperator()
	f.now = f.now.Add(time.Hour)
	if wait := f.mustReconcile().RequeueAfter; wait <= 0 || wait > 10*time.Second {
		t.Errorf("got a reconcile after %s, want one at the deadline", wait)
	}
	f.wantNotReady(v1alpha1.ReasonRollingOut, "")
	f.wantNotStalled()
	f.now = f.now.Add(10 * time.Second)
	f.mustReconcile()
	f.wantStalled(v1alpha1.ReasonProgressDeadlineExceeded, "")
}

// TestNodesAreNeverNull: status.nodes is an empty list if there are no servers, even if somebody removes the list.
func TestNodesAreNeverNull(t *testing.T) {
	f := ready(t, "{size: 0}")
	for range 2 {
		if f.mc.Status.Nodes == nil {
			t.Error("got no status.nodes, want an empty list")
		}
		f.Must(f.API.Status().Patch(f.Ctx, f.mc, client.RawPatch(types.MergePatchType, []byte(`{"status":{"nodes":null}}`))))
		f.settle()
	}
}

// TestRefusedImageIsNotKept: after spec.image is removed, the image that last ran is used, not one that was refused.
func TestRefusedImageIsNotKept(t *testing.T) {
	f := ready(t, onDeployment)
	before := get[appsv1.Deployment](f).Spec.Template
	f.failures["apply Deployment"] = forbidden("denied by a policy")
	f.set(`{"image":"refused"}`)
	f.reconcileError("denied by a policy")
	if f.mc.Status.Image != "memcached:1" {
		t.Errorf("got status.image %q, want memcached:1", f.mc.Status.Image)
	}
	clear(f.failures)
	f.set(`{"image":null}`)
	f.settle()
	f.wantTemplate(before)
}

// TestRestart: a restart sets Ready to False before servers are replaced, although it makes no new generation. It
// selects the images of the operator, which the status calls outdated before. Images that were refused stay outdated.
func TestRestart(t *testing.T) {
	f := ready(t, "{size: 3, metrics: {}}")
	want := func(version string, outdated ...string) {
		t.Helper()
		is, template := f.mc.Status, get[appsv1.Deployment](f).Spec.Template
		if image := template.Spec.Containers[0].Image; is.Image != "memcached:"+version || image != is.Image ||
			is.AgentImage != "operator:"+version || !slices.Equal(is.Outdated, outdated) {
			t.Errorf("got the images %s, %s, and %s in the template, outdated %q, want version %s, and %q", is.Image,
				is.AgentImage, image, is.Outdated, version, outdated)
		}
	}
	want("1")
	before := get[appsv1.Deployment](f).Spec.Template
	f.restartOperator()
	f.r.Options.DefaultImage, f.r.Options.AgentImage = "memcached:2", "operator:2"
	f.settle()
	f.wantReady()
	f.wantTemplate(before)
	want("1", "image", "agentImage")

	f.failures["apply Deployment"] = forbidden("a policy refuses the new images")
	f.annotate(v1alpha1.RestartedAtAnnotation, "now")
	f.reconcileError("a policy refuses the new images")
	want("1", "image", "agentImage")
	clear(f.failures)
	f.settle()
	f.wantReady()
	want("2")
	template := get[appsv1.Deployment](f).Spec.Template
	if got := template.Annotations[v1alpha1.RestartedAtAnnotation]; got != "now" {
		t.Errorf("got restartedAt %q in the template, want now", got)
	}
	f.annotate(v1alpha1.RestartedAtAnnotation, "")
	f.settle()
	f.wantTemplate(template)

	f.annotate(v1alpha1.RestartedAtAnnotation, "again")
	f.mustReconcile()
	f.wantBefore("patch status", "apply Deployment")
	f.wantNotReady(v1alpha1.ReasonRollingOut, "")

	f.r.Options.DefaultImage, f.r.Options.AgentImage = "memcached:3", "operator:3"
	f.set(`{"image":"memcached:2"}`) // the user's own choice, and no reason for new servers
	f.settle()
	want("2", "agentImage")
}

// TestReplaced: kubectl replace, and tools that work like it, remove finalizer and annotations. The finalizer returns,
// and no server is replaced.
func TestReplaced(t *testing.T) {
	f := ready(t, onStatefulSet)
	f.annotate(v1alpha1.RestartedAtAnnotation, "now")
	f.settle()
	before := f.pods("server")
	f.mc.Annotations, f.mc.Finalizers, f.mc.ManagedFields = nil, nil, nil
	f.Must(f.API.Update(f.Ctx, f.mc))
	f.settle()
	f.wantReady()
	if !controllerutil.ContainsFinalizer(f.mc, v1alpha1.Finalizer) {
		t.Errorf("got the finalizers %q, want ours", f.mc.Finalizers)
	}
	if after := f.pods("server"); !slices.EqualFunc(before, after,
		func(a, b *corev1.Pod) bool { return a.UID == b.UID }) {
		t.Error("servers were replaced")
	}
}

// TestImageSurvivesFailedWrites: a restart selects the default image of the operator. That image is preserved even if
// the writes after that of the Deployment fail.
func TestImageSurvivesFailedWrites(t *testing.T) {
	t.Parallel()
	for name, failWrites := range map[string]func(*fixture){
		"PodDisruptionBudget of another": func(f *fixture) {
			f.Must(f.API.Delete(f.Ctx, get[policyv1.PodDisruptionBudget](f)))
			f.Must(f.API.Create(f.Ctx, &policyv1.PodDisruptionBudget{ObjectMeta: f.Object("cache")}))
		},
		"status": func(f *fixture) { f.failures["patch status"] = errors.New("no") },
	} {
		t.Run(name, func(t *testing.T) {
			f := ready(t, onDeployment)
			failWrites(f)
			f.r.Options.DefaultImage = "memcached:2"
			f.annotate(v1alpha1.RestartedAtAnnotation, "now")
			for range 3 {
				_, _ = f.reconcile()
				f.restartOperator()
			}
			clear(f.failures)
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

// TestPaused: while spec.paused is set, changes are reported and not applied, also not to status.servers.
func TestPaused(t *testing.T) {
	f := ready(t, onDeployment)
	f.set(`{"paused":true}`)
	f.settle()
	f.wantReady()
	f.wantEvent("Normal Paused")
	before, servers := get[appsv1.Deployment](f), f.mc.Status.Servers
	f.set(`{"image":"memcached:2","containerPort":11999}`)
	f.settle()
	f.wantNotReady(v1alpha1.ReasonPaused, "")
	if is := f.mc.Status; is.Image != "memcached:1" || !slices.Equal(is.Servers, servers) {
		t.Errorf("got status.image %q and servers %q while paused, want memcached:1 and %q", is.Image, is.Servers, servers)
	}
	if got := get[appsv1.Deployment](f).ResourceVersion; got != before.ResourceVersion {
		t.Error("got another Deployment while paused")
	}
	f.set(`{"paused":false}`)
	f.settle()
	f.wantReady()
	f.wantEvent("Normal Resumed")
	if want := "cache." + f.Key.Namespace + ".svc:11999"; f.mc.Status.Servers[0] != want ||
		f.mc.Status.Image != "memcached:2" {
		t.Errorf("got status.servers %v and image %s, want %s and memcached:2", f.mc.Status.Servers, f.mc.Status.Image, want)
	}
}

// TestPausedAndDryRunFails: while a Memcached is paused and the dry run fails, the status says that changes may be
// pending. It does not wait for the dry run to say that servers were lost.
func TestPausedAndDryRunFails(t *testing.T) {
	f := ready(t, onDeployment)
	f.set(`{"paused":true}`)
	f.settle()
	f.restartOperator()
	f.lose(f.pods("")[0].Name)
	f.act()
	f.failures["dry-run Deployment"] = apierrors.NewInternalError(errors.New("webhook is down"))
	f.reconcileError("webhook is down")
	f.wantNotReady(v1alpha1.ReasonPaused, "may hold changes back, because")
	f.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonServersLost)
	f.failures["dry-run Deployment"] = forbidden("a policy")
	f.mustReconcile()
	f.wantNotReady(v1alpha1.ReasonPaused, "")
	clear(f.failures)
	f.settle()
	f.wantReady()
}

// TestErrors: the kind of an error decides the condition that reports it, and the time of the retry. An error that a
// retry may fix does not hide one that no retry fixes.
func TestErrors(t *testing.T) {
	t.Parallel()
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "Deployment"}, "cache", nil)
	conflict := apierrors.NewConflict(corev1.Resource("services"), "cache", errors.New("a policy says so"))
	for name, tt := range map[string]struct {
		failures  map[string]error
		conflicts int // which no status reports
		reason    string
		text      string
	}{
		"forbidden": {map[string]error{"apply Deployment": forbidden("exceeded quota")}, 0,
			v1alpha1.ReasonProgressingWithRetry, "apply Deployment cache"},
		"invalid": {map[string]error{"apply Deployment": invalid}, 0, v1alpha1.ReasonInvalid, "invalid"},
		"one of both": {map[string]error{"apply PodDisruptionBudget": forbidden("exceeded quota"),
			"apply Deployment": invalid}, 0, v1alpha1.ReasonInvalid, "exceeded quota"},
		"too long for a condition": {map[string]error{"apply Deployment": errors.New(strings.Repeat("ä", 40000))}, 0,
			v1alpha1.ReasonProgressingWithRetry, "ä"},
		"a policy answers with conflicts": {map[string]error{"apply Service": conflict}, maxConflicts,
			v1alpha1.ReasonProgressingWithRetry, "a policy says so"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, onDeployment)
			f.failures = tt.failures
			for range tt.conflicts {
				if wait := f.mustReconcile().RequeueAfter; wait != conflictRetry || f.mc.Status.ObservedGeneration > 0 {
					t.Errorf("got a retry after %s and status %+v, want one after %s, and none", wait, f.mc.Status, conflictRetry)
				}
				f.now = f.now.Add(time.Minute)
			}
			for range 2 {
				result, err := f.reconcile()
				if isStalled := tt.reason == v1alpha1.ReasonInvalid; isStalled != (err == nil) ||
					isStalled != (result.RequeueAfter == stalledRetry) {
					t.Errorf("got a retry after %s and error %v", result.RequeueAfter, err)
				}
				f.wantNotReady(tt.reason, tt.text)
				if err != nil && len(err.Error()) > maxError {
					t.Errorf("got an error of %d bytes for the log, want at most %d", len(err.Error()), maxError)
				}
			}
			f.wantEvent("Warning " + tt.reason)
			f.failures = nil
			f.settle()
			f.wantReady()
		})
	}
}

// TestOnlyConsecutiveConflictsCount: a successful reconcile resets the number of conflicts.
func TestOnlyConsecutiveConflictsCount(t *testing.T) {
	f := ready(t, onDeployment)
	for range 2 * maxConflicts {
		f.setReady(f.pods("")[0].Name, false)
		f.observe()
		f.failures["patch status"] = apierrors.NewConflict(corev1.Resource("memcacheds"), "cache", errors.New("changed"))
		f.mustReconcile()
		clear(f.failures)
		f.act()
		f.mustReconcile()
	}
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

// TestChangeThatTouchesNoServer: after a change that touches no server, by a user or by somebody else, Ready is False
// only until the controller of the Deployment has observed it.
func TestChangeThatTouchesNoServer(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*fixture){
		"of the rollout": func(f *fixture) { f.set(`{"rollout":{"maxUnavailable":2}}`) },
		"by somebody":    func(f *fixture) { f.Patch(get[appsv1.Deployment](f), `{"spec":{"revisionHistoryLimit":7}}`) },
		"of the template by somebody": func(f *fixture) {
			f.Patch(get[appsv1.Deployment](f), `{"spec":{"template":{"metadata":{"annotations":{"restart":"now"}}}}}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := ready(t, onDeployment)
			since := meta.FindStatusCondition(f.mc.Status.Conditions, v1alpha1.ConditionDegraded).LastTransitionTime
			change(f)
			f.mustReconcile()
			f.wantNotReady(v1alpha1.ReasonRollingOut, "")
			f.settle()
			f.wantReady()
			c := meta.FindStatusCondition(f.mc.Status.Conditions, v1alpha1.ConditionDegraded)
			if c.Status == metav1.ConditionTrue || !c.LastTransitionTime.Equal(&since) {
				t.Errorf("got %+v, want no loss reported meanwhile", c)
			}
		})
	}
}
