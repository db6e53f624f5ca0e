package controllers

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"

	"github.com/example/memcached-operator/api/v1alpha1"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// world is the input of one status: an object of size 3, generation 2, and its servers.
type world struct {
	mc  *v1alpha1.Memcached
	obs observed
	out outcome
	now time.Time
}

// servers gives the world a workload made from the current generation, of which some servers are updated and ready.
func servers(replicas, updated, ready int32) func(*world) {
	return func(w *world) {
		w.obs.deployment = &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{
				Name: "cache", Generation: 7, Labels: childLabels(w.mc),
				Annotations:     map[string]string{v1alpha1.GenerationAnnotation: "2"},
				OwnerReferences: []metav1.OwnerReference{{UID: w.mc.UID, Controller: ptr.To(true)}},
			},
			Spec: appsv1.DeploymentSpec{Replicas: ptr.To(size(w.mc))},
			Status: appsv1.DeploymentStatus{
				ObservedGeneration: 7, Replicas: replicas, UpdatedReplicas: updated, ReadyReplicas: ready, AvailableReplicas: ready,
			},
		}
		w.obs.pods = nil
		for i := range replicas {
			p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("cache-%d", i)}}
			if i < ready {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			}
			w.obs.pods = append(w.obs.pods, p)
		}
	}
}

func workload(f func(*appsv1.Deployment)) func(*world) {
	return func(w *world) { f(w.obs.deployment) }
}

func spec(f func(*v1alpha1.MemcachedSpec)) func(*world) {
	return func(w *world) { f(&w.mc.Spec) }
}

func fails(err error) func(*world) { return func(w *world) { w.out.err = err } }

// pending says that the reconcile wrote the workload.
func pending(w *world) { w.out.pending = true }

func later(d time.Duration) func(*world) { return func(w *world) { w.now = w.now.Add(d) } }

func nextGeneration(w *world) {
	w.mc.Generation++
	w.obs.deployment.Annotations[v1alpha1.GenerationAnnotation] = generation(w.mc)
}

// then makes what the world is so far the previous status, and ends what was done to reach it.
func then(w *world) {
	w.mc.Status = w.status()
	w.out = outcome{}
	w.now = w.now.Add(time.Second)
}

func (w *world) status() v1alpha1.MemcachedStatus { return status(w.mc, w.obs, w.out, w.now) }

var (
	invalid  = apierrors.NewInvalid(schema.GroupKind{Kind: "Deployment"}, "cache", nil)
	refused  = apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "cache", errors.New("exceeded quota"))
	conflict = &conflictError{"Service", "cache"}
)

// TestStatus reaches every row of docs/status.md that the operator writes.
func TestStatus(t *testing.T) {
	t.Parallel()
	const (
		fine = " Degraded=False/AsExpected"
		up   = "Available=True/ServersAvailable"
		down = "Available=False/NoServersAvailable"
	)
	tests := map[string]struct {
		steps []func(*world)
		want  string // conditions; phase; what kstatus reads
	}{
		"created": {[]func(*world){pending},
			down + fine + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"rolling out": {[]func(*world){servers(3, 2, 2)},
			up + fine + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"resizing": {[]func(*world){servers(2, 2, 2), pending, func(w *world) { w.out.resizing = true }},
			up + fine + " Ready=False/Resizing Reconciling=True/Resizing; Progressing; InProgress"},
		"resizing goes on": {[]func(*world){servers(2, 2, 2), pending, func(w *world) { w.out.resizing = true }, then, servers(3, 3, 2)},
			up + fine + " Ready=False/Resizing Reconciling=True/Resizing; Progressing; InProgress"},
		"resizing, not looked at by its controller": {[]func(*world){servers(2, 2, 2), pending, func(w *world) { w.out.resizing = true }, then,
			workload(func(d *appsv1.Deployment) { d.Generation++ })},
			up + fine + " Ready=False/Resizing Reconciling=True/Resizing; Progressing; InProgress"},
		"ready": {[]func(*world){servers(3, 3, 3)},
			up + fine + " Ready=True/Ready; Ready; Current"},
		"ready at size 0": {[]func(*world){spec(func(s *v1alpha1.MemcachedSpec) { s.Size = ptr.To[int32](0) }), servers(0, 0, 0)},
			"Available=False/ScaledToZero" + fine + " Ready=True/Ready; Ready; Current"},
		"all servers, but one not available for long enough": {[]func(*world){servers(3, 3, 3), workload(func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 2 })},
			up + fine + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"workload of an older generation of the object": {[]func(*world){servers(3, 3, 3), workload(func(d *appsv1.Deployment) { d.Annotations[v1alpha1.GenerationAnnotation] = "1" })},
			up + fine + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"workload not looked at by its controller": {[]func(*world){servers(3, 3, 3), workload(func(d *appsv1.Deployment) { d.Generation++ })},
			up + fine + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"workload just written": {[]func(*world){servers(3, 3, 3), pending},
			up + fine + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"workload being deleted": {[]func(*world){servers(3, 3, 3), workload(func(d *appsv1.Deployment) { d.DeletionTimestamp = &metav1.Time{Time: start} })},
			up + fine + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"pods not seen yet": {[]func(*world){servers(3, 3, 3), func(w *world) { w.obs.pods = w.obs.pods[1:] }},
			up + fine + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"servers replaced that the workload still counts": {[]func(*world){servers(3, 3, 3), then, servers(3, 3, 1), workload(func(d *appsv1.Deployment) {
			d.Status.ReadyReplicas, d.Status.AvailableReplicas = 3, 3
		})}, up + " Degraded=True/ServersLost Ready=False/ServersLost Reconciling=True/ServersLost; Degraded; InProgress"},
		"server lost": {[]func(*world){servers(3, 3, 3), then, servers(3, 3, 2)},
			up + " Degraded=True/ServersLost Ready=False/ServersLost Reconciling=True/ServersLost; Degraded; InProgress"},
		"server stays lost": {[]func(*world){servers(3, 3, 3), then, servers(3, 3, 2), then, servers(3, 3, 1)},
			up + " Degraded=True/ServersLost Ready=False/ServersLost Reconciling=True/ServersLost; Degraded; InProgress"},
		"lost server came back": {[]func(*world){servers(3, 3, 3), then, servers(3, 3, 2), then, servers(3, 3, 3)},
			up + fine + " Ready=True/Ready; Ready; Current"},
		"announced restart": {[]func(*world){servers(3, 3, 3), then, pending},
			up + fine + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"rollout that somebody else started": {[]func(*world){servers(3, 3, 3), then, servers(3, 1, 2)},
			up + fine + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"error that a retry may fix": {[]func(*world){pending, fails(refused)},
			down + fine + " Ready=False/ProgressingWithRetry Reconciling=True/ProgressingWithRetry; Progressing; InProgress"},
		"the same after it was ready": {[]func(*world){servers(3, 3, 3), then, fails(refused), then, fails(refused)},
			up + " Degraded=True/ProgressingWithRetry Ready=False/ProgressingWithRetry Reconciling=True/ProgressingWithRetry; Degraded; InProgress"},
		"image not pulled": {[]func(*world){servers(3, 1, 2), func(w *world) {
			w.obs.pods[2].Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "not found"}}}}
		}}, up + fine + " Ready=False/ProgressingWithRetry Reconciling=True/ProgressingWithRetry; Progressing; InProgress"},
		"pods refused by quota": {[]func(*world){servers(1, 1, 1), workload(func(d *appsv1.Deployment) {
			d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "exceeded quota"}}
		})}, up + fine + " Ready=False/ProgressingWithRetry Reconciling=True/ProgressingWithRetry; Progressing; InProgress"},
		"refused by the API server": {[]func(*world){pending, fails(invalid)},
			down + " Degraded=True/Invalid Ready=False/Invalid Stalled=True/Invalid; Degraded; Failed"},
		"foreign child": {[]func(*world){pending, fails(errors.Join(refused, conflict))},
			down + " Degraded=True/Conflict Ready=False/Conflict Stalled=True/Conflict; Degraded; Failed"},
		"foreign child removed": {[]func(*world){pending, fails(conflict), then, servers(3, 3, 3)},
			up + fine + " Ready=True/Ready; Ready; Current"},
		"no progress, before the deadline": {[]func(*world){servers(3, 1, 1), then, later(598 * time.Second)},
			up + fine + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"no progress": {[]func(*world){servers(3, 1, 1), then, later(599 * time.Second)},
			up + " Degraded=True/ProgressDeadlineExceeded Ready=False/ProgressDeadlineExceeded Stalled=True/ProgressDeadlineExceeded; Degraded; Failed"},
		"still no progress": {[]func(*world){servers(3, 1, 1), then, later(599 * time.Second), then},
			up + " Degraded=True/ProgressDeadlineExceeded Ready=False/ProgressDeadlineExceeded Stalled=True/ProgressDeadlineExceeded; Degraded; Failed"},
		"an error that lasts past the deadline": {[]func(*world){servers(3, 1, 1), fails(refused), then, pending, fails(refused), later(599 * time.Second)},
			up + " Degraded=True/ProgressDeadlineExceeded Ready=False/ProgressDeadlineExceeded Stalled=True/ProgressDeadlineExceeded; Degraded; Failed"},
		"slow progress": {[]func(*world){servers(3, 1, 1), then, progressedAt(500 * time.Second), later(800 * time.Second)},
			up + fine + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"progress after the deadline": {[]func(*world){servers(3, 1, 1), then, later(700 * time.Second), then, progressedAt(705 * time.Second), later(5 * time.Second)},
			up + fine + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"ready after the deadline": {[]func(*world){servers(3, 1, 1), then, later(700 * time.Second), then, servers(3, 3, 3)},
			up + fine + " Ready=True/Ready; Ready; Current"},
		"new generation after the deadline": {[]func(*world){servers(3, 1, 1), then, later(700 * time.Second), then, nextGeneration},
			up + fine + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"new generation restarts the clock": {[]func(*world){servers(3, 1, 1), then, later(500 * time.Second), nextGeneration, then, later(500 * time.Second)},
			up + fine + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"paused": {[]func(*world){servers(3, 3, 3), paused, workload(func(d *appsv1.Deployment) { d.Annotations[v1alpha1.GenerationAnnotation] = "1" })},
			up + fine + " Ready=True/Ready; Paused; Current"},
		"paused, a server lost": {[]func(*world){servers(3, 3, 3), paused, then, servers(3, 3, 2), paused},
			up + " Degraded=True/ServersLost Ready=False/ServersLost; Paused; InProgress"},
		"paused, children differ": {[]func(*world){servers(3, 3, 3), paused, func(w *world) { w.out.drifted = true }},
			up + fine + " Ready=False/Paused; Paused; InProgress"},
		"deleting": {[]func(*world){servers(3, 3, 3), deleted},
			up + " Degraded=True/Finalizing Ready=False/Deleting; Deleting; Terminating"},
		"deleting a workload that somebody else owns": {[]func(*world){servers(3, 3, 3), deleted, workload(func(d *appsv1.Deployment) { d.OwnerReferences[0].UID = "other" })},
			down + " Degraded=True/Finalizing Ready=False/Deleting; Deleting; Terminating"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{now: start, mc: parse(t, "{apiVersion: cache.example.com/v1alpha1, kind: Memcached, metadata: {name: cache}, spec: {size: 3}}")}
			w.mc.Generation = 2
			for _, step := range tt.steps {
				step(w)
			}
			s := w.status()
			if got := describe(t, w.mc, s); got != tt.want {
				t.Errorf("\n got %s\nwant %s", got, tt.want)
			}
			for _, c := range s.Conditions {
				if c.ObservedGeneration != w.mc.Generation || c.Message == "" {
					t.Errorf("condition %s speaks of generation %d, message %q", c.Type, c.ObservedGeneration, c.Message)
				}
			}
		})
	}
}

func paused(w *world) { w.mc.Spec.Paused = true }

func deleted(w *world) {
	w.mc.DeletionTimestamp = &metav1.Time{Time: start}
	w.mc.Finalizers = []string{v1alpha1.Finalizer}
}

// progressedAt says that the Deployment controller saw progress some time after the start.
func progressedAt(d time.Duration) func(*world) {
	return workload(func(dep *appsv1.Deployment) {
		dep.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, LastUpdateTime: metav1.NewTime(start.Add(d))}}
	})
}

func describe(t *testing.T, mc *v1alpha1.Memcached, s v1alpha1.MemcachedStatus) string {
	t.Helper()
	var parts []string
	for _, c := range s.Conditions {
		parts = append(parts, fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason))
	}
	mc = mc.DeepCopy()
	mc.Status = s
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(mc)
	if err != nil {
		t.Fatal(err)
	}
	read, err := kstatus.Compute(&unstructured.Unstructured{Object: content})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s; %s; %s", strings.Join(parts, " "), s.Phase, read.Status)
}

// TestTransitionTimes: a condition that stays keeps its time, so that an unchanged status is equal and is not written.
func TestTransitionTimes(t *testing.T) {
	t.Parallel()
	w := &world{now: start, mc: parse(t, "{metadata: {name: cache}, spec: {size: 3}}")}
	w.mc.Generation = 2
	servers(3, 3, 3)(w)
	then(w)
	later(time.Hour)(w)
	if c := meta.FindStatusCondition(w.status().Conditions, v1alpha1.ConditionReady); !c.LastTransitionTime.Equal(&metav1.Time{Time: start}) {
		t.Errorf("Ready changed at %s, want %s", c.LastTransitionTime, start)
	}
	servers(3, 3, 2)(w)
	if c := meta.FindStatusCondition(w.status().Conditions, v1alpha1.ConditionReady); !c.LastTransitionTime.Equal(&metav1.Time{Time: w.now}) {
		t.Errorf("Ready changed at %s, want %s", c.LastTransitionTime, w.now)
	}
}

func TestNodes(t *testing.T) {
	t.Parallel()
	pod := func(name string, phase corev1.PodPhase, terminating bool) corev1.Pod {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{Phase: phase}}
		if terminating {
			p.DeletionTimestamp = &metav1.Time{Time: start}
		}
		return p
	}
	got, _ := nodes([]corev1.Pod{pod("c", corev1.PodRunning, false), pod("a", corev1.PodPending, false), pod("b", corev1.PodRunning, true),
		pod("d", corev1.PodFailed, false), pod("e", corev1.PodSucceeded, false)})
	if fmt.Sprint(got) != "[a c]" {
		t.Errorf("nodes are %v, want [a c]", got)
	}
	if got, _ := nodes(nil); got == nil || len(got) != 0 {
		t.Errorf("no nodes are %#v, want an empty list, not null", got)
	}
}
