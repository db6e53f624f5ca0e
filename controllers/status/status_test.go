package status

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/tests/manifest"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// world is the input of one status: an object of size 3, generation 2, and its servers.
type world struct {
	mc         *v1alpha1.Memcached
	deployment *appsv1.Deployment // nil for none of ours
	proxy      *appsv1.Deployment
	obs        Observed
	clock      Clock
	now        time.Time
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{now: start, mc: manifest.Parse(t,
		manifest.Named("cache", "{size: 3}"))}
	w.mc.Generation = 2
	return w
}

// runs adds a workload of the current generation, of which some servers are updated and ready.
func runs(replicas, updated, ready int32) func(*world) {
	return func(w *world) {
		w.deployment = &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{
				Name: "cache", Generation: 7, Labels: map[string]string{v1alpha1.GenerationLabel: "2"},
			},
			Spec: appsv1.DeploymentSpec{Replicas: ptr.To(names.Size(w.mc))},
			Status: appsv1.DeploymentStatus{
				ObservedGeneration: 7, Replicas: replicas, UpdatedReplicas: updated, ReadyReplicas: ready, AvailableReplicas: ready,
			},
		}
		w.obs.Pods = nil
		for i := range replicas {
			p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("cache-%d", i)}}
			if i < ready {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			}
			w.obs.Pods = append(w.obs.Pods, p)
		}
	}
}

// proxies adds two proxies, of which some are updated and ready.
func proxies(updated, ready int32) func(*world) {
	return func(w *world) {
		servers, pods := w.deployment, w.obs.Pods
		w.mc.Spec.Proxy = &v1alpha1.ProxySpec{Size: 2}
		runs(2, updated, ready)(w)
		w.proxy, w.obs.ProxyPods = w.deployment, w.obs.Pods
		w.proxy.Spec.Replicas = ptr.To[int32](2)
		w.deployment, w.obs.Pods = servers, pods
	}
}

func workload(f func(*appsv1.Deployment)) func(*world) {
	return func(w *world) { f(w.deployment) }
}

func spec(f func(*v1alpha1.MemcachedSpec)) func(*world) {
	return func(w *world) { f(&w.mc.Spec) }
}

func fails(p *Problem) func(*world) { return func(w *world) { w.obs.Problem = p } }

// changing says that the reconcile changes servers.
func changing(w *world) { w.obs.Changing = true }

func resizing(w *world) { w.obs.Changing, w.obs.Resizing = true, true }

func later(d time.Duration) func(*world) { return func(w *world) { w.now = w.now.Add(d) } }

func nextGeneration(w *world) {
	w.mc.Generation++
	w.deployment.Labels[v1alpha1.GenerationLabel] = strconv.FormatInt(w.mc.Generation, 10)
}

// then stores the current status as the previous one, and resets what this reconcile did.
func then(w *world) {
	w.mc.Status = w.status()
	w.obs = Observed{Pods: w.obs.Pods, ProxyPods: w.obs.ProxyPods}
	w.now = w.now.Add(time.Second)
}

func (w *world) status() v1alpha1.MemcachedStatus {
	if w.deployment != nil {
		w.obs.Workload = Read(w.deployment)
	}
	if w.proxy != nil {
		w.obs.Proxy = Read(w.proxy)
	}
	w.clock = w.clock.Next(w.mc, w.obs, w.now)
	w.obs.Clock = w.clock
	return Compute(w.mc, w.obs, w.now)
}

var (
	invalid  = &Problem{v1alpha1.ReasonInvalid, "apply Deployment cache: invalid", true}
	refused  = &Problem{v1alpha1.ReasonProgressingWithRetry, "apply Service cache: exceeded quota", false}
	conflict = &Problem{v1alpha1.ReasonConflict, "Service cache exists", true}
)

// TestStatus reaches every row of docs/status.md that the operator writes.
func TestStatus(t *testing.T) {
	t.Parallel()
	const (
		fine  = " Degraded=False/AsExpected"
		fresh = " Degraded=False/Installing"

		late = " Degraded=True/Installing Ready=False/ProgressDeadlineExceeded" +
			" Stalled=True/ProgressDeadlineExceeded; Degraded; Failed"
		broken = " Degraded=True/ProgressingWithRetry Ready=False/ProgressingWithRetry" +
			" Reconciling=True/ProgressingWithRetry; Degraded; InProgress"
		missing = " Degraded=True/ServersLost Ready=False/ProgressingWithRetry" +
			" Reconciling=True/ProgressingWithRetry; Degraded; InProgress"
		rolling = " Degraded=False/AsExpected Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"

		up   = "Available=True/ServersAvailable"
		down = "Available=False/NoServersAvailable"
	)
	tests := map[string]struct {
		steps []func(*world)
		want  string // conditions; phase; what kstatus reads
	}{
		"created": {[]func(*world){changing},
			down + fresh + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"rolling out": {[]func(*world){runs(3, 2, 2)},
			up + fresh + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"resizing": {[]func(*world){runs(2, 2, 2), resizing},
			up + fresh + " Ready=False/Resizing Reconciling=True/Resizing; Progressing; InProgress"},
		"resizing goes on": {[]func(*world){runs(2, 2, 2), resizing, then, runs(3, 3, 2)},
			up + fresh + " Ready=False/Resizing Reconciling=True/Resizing; Progressing; InProgress"},
		"resizing, not looked at by its controller": {[]func(*world){runs(2, 2, 2), resizing, then,
			workload(func(d *appsv1.Deployment) { d.Generation++ })},
			up + fresh + " Ready=False/Resizing Reconciling=True/Resizing; Progressing; InProgress"},
		"ready": {[]func(*world){runs(3, 3, 3)},
			up + fine + " Ready=True/Ready; Ready; Current"},
		"ready, made by a release before v0.0.3": {[]func(*world){runs(3, 3, 3), workload(func(d *appsv1.Deployment) {
			d.Labels, d.Annotations = nil, map[string]string{v1alpha1.GenerationLabel: "2"}
		})},
			up + fine + " Ready=True/Ready; Ready; Current"},
		"ready at size 0": {[]func(*world){spec(func(s *v1alpha1.MemcachedSpec) { s.Size = ptr.To[int32](0) }),
			runs(0, 0, 0)},
			"Available=False/ScaledToZero" + fine + " Ready=True/Ready; Ready; Current"},
		"all servers, but one not available for long enough": {[]func(*world){runs(3, 3, 3),
			workload(func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 2 })},
			up + fresh + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"workload of an older generation of the object": {[]func(*world){runs(3, 3, 3),
			workload(func(d *appsv1.Deployment) { d.Labels[v1alpha1.GenerationLabel] = "1" })},
			up + fresh + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"workload not looked at by its controller": {[]func(*world){runs(3, 3, 3),
			workload(func(d *appsv1.Deployment) { d.Generation++ })},
			up + fresh + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"workload just written": {[]func(*world){runs(3, 3, 3), changing},
			up + fresh + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"workload being deleted": {[]func(*world){runs(3, 3, 3),
			workload(func(d *appsv1.Deployment) { d.DeletionTimestamp = &metav1.Time{Time: start} })},
			up + fresh + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"pods not seen yet": {[]func(*world){runs(3, 3, 3), func(w *world) { w.obs.Pods = w.obs.Pods[1:] }},
			up + fresh + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"servers replaced that the workload still counts": {[]func(*world){runs(3, 3, 3), then, runs(3, 3, 1),
			workload(func(d *appsv1.Deployment) {
				d.Status.ReadyReplicas, d.Status.AvailableReplicas = 3, 3
			})}, up + " Degraded=True/ServersLost Ready=False/ServersLost Reconciling=True/ServersLost; Degraded; InProgress"},
		"server lost": {[]func(*world){runs(3, 3, 3), then, runs(3, 3, 2)},
			up + " Degraded=True/ServersLost Ready=False/ServersLost Reconciling=True/ServersLost; Degraded; InProgress"},
		"server stays lost": {[]func(*world){runs(3, 3, 3), then, runs(3, 3, 2), then, runs(3, 3, 1)},
			up + " Degraded=True/ServersLost Ready=False/ServersLost Reconciling=True/ServersLost; Degraded; InProgress"},
		"lost server came back": {[]func(*world){runs(3, 3, 3), then, runs(3, 3, 2), then, runs(3, 3, 3)},
			up + fine + " Ready=True/Ready; Ready; Current"},
		"announced restart": {[]func(*world){runs(3, 3, 3), then, changing},
			up + fine + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"rollout that somebody else started": {[]func(*world){runs(3, 3, 3), then, runs(3, 1, 2)},
			up + fine + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"error that a retry may fix": {[]func(*world){changing, fails(refused)},
			down + fresh + " Ready=False/ProgressingWithRetry Reconciling=True/ProgressingWithRetry; Progressing; InProgress"},
		"the same after it was ready": {[]func(*world){runs(3, 3, 3), then, fails(refused), then, fails(refused)},
			up + broken},
		"image not pulled": {[]func(*world){runs(3, 1, 2), func(w *world) {
			w.obs.Pods[2].Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "not found"}}}}
		}}, up + fresh + " Ready=False/ProgressingWithRetry Reconciling=True/ProgressingWithRetry; Progressing; InProgress"},
		"pods refused by quota": {[]func(*world){runs(1, 1, 1), workload(func(d *appsv1.Deployment) {
			d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure,
				Status: corev1.ConditionTrue, Message: "exceeded quota"}}
		})}, up + fresh + " Ready=False/ProgressingWithRetry Reconciling=True/ProgressingWithRetry; Progressing; InProgress"},
		"refused by the API server": {[]func(*world){changing, fails(invalid)},
			down + " Degraded=True/Installing Ready=False/Invalid Stalled=True/Invalid; Degraded; Failed"},
		"foreign child": {[]func(*world){changing, fails(conflict)},
			down + " Degraded=True/Installing Ready=False/Conflict Stalled=True/Conflict; Degraded; Failed"},
		"a server lost after what was ready was invalid": {[]func(*world){runs(3, 3, 3), then, fails(invalid), then,
			runs(3, 3, 2), ended(2, true), then},
			up + " Degraded=True/ServersLost Ready=False/ProgressingWithRetry" +
				" Reconciling=True/ProgressingWithRetry; Degraded; InProgress"},
		"foreign child removed": {[]func(*world){changing, fails(conflict), then, runs(3, 3, 3)},
			up + fine + " Ready=True/Ready; Ready; Current"},
		"no progress, before the deadline": {[]func(*world){runs(3, 1, 1), then, later(598 * time.Second)},
			up + fresh + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"no progress": {[]func(*world){runs(3, 1, 1), then, later(599 * time.Second)},
			up + late},
		"still no progress": {[]func(*world){runs(3, 1, 1), then, later(599 * time.Second), then},
			up + late},
		"an error that lasts past the deadline": {[]func(*world){runs(3, 1, 1), fails(refused), then, changing,
			fails(refused), later(599 * time.Second)},
			up + late},
		"slow rollout": {[]func(*world){runs(3, 3, 3), then, nextGeneration, changing, unobserved, then,
			later(400 * time.Second), runs(3, 1, 2), then, later(400 * time.Second), runs(3, 2, 2), then,
			later(400 * time.Second), runs(3, 3, 2)},
			up + fine + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"slow rollout of two": {[]func(*world){spec(func(s *v1alpha1.MemcachedSpec) { s.Size = ptr.To[int32](2) }),
			runs(2, 2, 2), then, nextGeneration, changing, unobserved, then, later(400 * time.Second), runs(2, 1, 2), then,
			later(400 * time.Second), runs(2, 2, 1)},
			up + fine + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"slow recovery": {[]func(*world){runs(3, 3, 3), then, runs(3, 3, 2), then, runs(3, 3, 0), then,
			later(400 * time.Second), runs(3, 3, 1), then, later(400 * time.Second), runs(3, 3, 2), then,
			later(400 * time.Second)},
			up + " Degraded=True/ServersLost Ready=False/ServersLost Reconciling=True/ServersLost; Degraded; InProgress"},
		"slow progress": {[]func(*world){runs(3, 1, 1), then, later(500 * time.Second), runs(3, 2, 1), then,
			later(500 * time.Second)},
			up + fresh + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"progress after the deadline": {[]func(*world){runs(3, 1, 1), then, later(700 * time.Second), then, runs(3, 2, 1)},
			up + fresh + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"a server that comes and goes": {[]func(*world){runs(3, 3, 1), then, later(300 * time.Second), runs(3, 3, 2), then,
			runs(3, 3, 1), then, later(300 * time.Second), runs(3, 3, 2), then, runs(3, 3, 1), then,
			later(300 * time.Second), runs(3, 3, 2)},
			up + late},
		"no progress while no operator was there": {[]func(*world){runs(3, 1, 1), then, later(700 * time.Second), restarted},
			up + fresh + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"no progress that another operator found": {[]func(*world){runs(3, 1, 1), then, later(700 * time.Second), then,
			restarted}, up + late},
		"ready after the deadline": {[]func(*world){runs(3, 1, 1), then, later(700 * time.Second), then, runs(3, 3, 3)},
			up + fine + " Ready=True/Ready; Ready; Current"},
		"new generation after the deadline": {[]func(*world){runs(3, 1, 1), then, later(700 * time.Second), then,
			nextGeneration},
			up + fresh + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"new generation restarts the clock": {[]func(*world){runs(3, 1, 1), then, later(500 * time.Second), nextGeneration,
			then, later(500 * time.Second)},
			up + fresh + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"container ended after it was ready": {[]func(*world){runs(3, 3, 3), then, runs(3, 3, 2), ended(2, true)},
			up + missing},
		"it runs again, not ready": {[]func(*world){runs(3, 3, 3), then, runs(3, 3, 2), ended(2, true), then,
			ended(2, false)},
			up + missing},
		"rollout blocked by a policy": {[]func(*world){runs(3, 3, 3), then, nextGeneration, runs(2, 0, 2), blocked},
			up + missing},
		"rollout that stays blocked": {[]func(*world){runs(3, 3, 3), then, nextGeneration, changing, then,
			runs(2, 0, 2), blocked, then},
			up + missing},
		"growth that a quota blocks": {[]func(*world){runs(2, 2, 2), then, runs(2, 2, 2), blocked},
			up + fresh + " Ready=False/ProgressingWithRetry Reconciling=True/ProgressingWithRetry; Progressing; InProgress"},
		"rollout after an error that passed": {[]func(*world){runs(3, 3, 3), then, nextGeneration, changing,
			fails(refused), then, changing},
			up + fine + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"rollout beside a pod that was evicted long ago": {[]func(*world){runs(3, 3, 3), evicted, then, nextGeneration,
			changing, then, runs(3, 1, 2), evicted},
			up + rolling},
		"rollout on a full node": {[]func(*world){runs(3, 3, 3), then, nextGeneration, changing, then, runs(3, 1, 2),
			noRoom, ends},
			up + rolling},
		"rollout for which there is no room": {[]func(*world){runs(3, 3, 3), then, nextGeneration, changing, then,
			runs(3, 1, 2), noRoom},
			up + missing},
		"rollout that found room": {[]func(*world){runs(3, 3, 3), then, nextGeneration, changing, then, runs(3, 1, 2),
			noRoom, then, runs(3, 2, 2)},
			up + rolling},
		"rollout after an error of another child": {[]func(*world){runs(3, 3, 3), then, nextGeneration, changing,
			fails(refused), then, runs(3, 1, 2)},
			up + rolling},
		"growth after an error of another child": {[]func(*world){runs(3, 3, 3), then, nextGeneration,
			spec(func(s *v1alpha1.MemcachedSpec) { s.Size = ptr.To[int32](5) }), resizing, fails(refused), then,
			runs(4, 4, 3)},
			up + rolling},
		"an error while a server is lost": {[]func(*world){runs(3, 3, 3), then, runs(3, 3, 2), then, fails(refused)},
			up + missing},
		"it passes, and the server stays lost": {[]func(*world){runs(3, 3, 3), then, runs(3, 3, 2), then,
			fails(refused), then},
			up + " Degraded=True/ServersLost Ready=False/ServersLost Reconciling=True/ServersLost; Degraded; InProgress"},
		"created after a long wait": {[]func(*world){fails(refused), then, later(700 * time.Second), changing, then},
			down + fresh + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"budget changed while a server is lost": {[]func(*world){runs(3, 3, 3), then, runs(3, 3, 2), then,
			nextGeneration},
			up + " Degraded=True/ServersLost Ready=False/ServersLost Reconciling=True/ServersLost; Degraded; InProgress"},
		"resized while a server is lost": {[]func(*world){runs(3, 3, 3), then, runs(3, 3, 2), then, nextGeneration,
			resizing},
			up + " Degraded=True/ServersLost Ready=False/Resizing Reconciling=True/Resizing; Degraded; InProgress"},
		"lost servers that come back after the deadline": {[]func(*world){runs(3, 3, 3), then, runs(3, 3, 0), then,
			later(700 * time.Second), then, runs(3, 3, 1)},
			up + " Degraded=True/ServersLost Ready=False/ServersLost Reconciling=True/ServersLost; Degraded; InProgress"},
		"slow growth": {[]func(*world){runs(3, 3, 1), resizing, then, later(500 * time.Second), runs(3, 3, 2), then,
			later(500 * time.Second)},
			up + fresh + " Ready=False/Resizing Reconciling=True/Resizing; Progressing; InProgress"},
		"children of a predecessor": {[]func(*world){func(w *world) { w.obs.Waiting = "waiting for Service cache" }},
			down + fresh + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"namespace being deleted": {[]func(*world){runs(3, 3, 3), then, runs(3, 3, 1),
			func(w *world) { w.obs.NamespaceTerminating = true }},
			up + fine + " Ready=False/Deleting; Progressing; InProgress"},
		"paused with changes held back, all servers lost": {[]func(*world){runs(3, 3, 3), paused, heldBack, then,
			runs(0, 0, 0), heldBack},
			down + " Degraded=True/ServersLost Ready=False/Paused; Paused; InProgress"},
		"they stay lost": {[]func(*world){runs(3, 3, 3), paused, heldBack, then, runs(0, 0, 0), heldBack, then,
			heldBack},
			down + " Degraded=True/ServersLost Ready=False/Paused; Paused; InProgress"},
		"they come back": {[]func(*world){runs(3, 3, 3), paused, heldBack, then, runs(0, 0, 0), heldBack, then,
			runs(3, 3, 3), heldBack},
			up + fine + " Ready=False/Paused; Paused; InProgress"},
		"paused, somebody deletes the workload": {[]func(*world){runs(3, 3, 3), paused, then,
			func(w *world) {
				w.deployment, w.obs = nil, Observed{Effect: Effect{HeldBack: "spec.paused keeps the operator from applying the spec"}}
			}},
			down + " Degraded=True/ServersLost Ready=False/Paused; Paused; InProgress"},
		"paused": {[]func(*world){runs(3, 3, 3), paused,
			workload(func(d *appsv1.Deployment) { d.Labels[v1alpha1.GenerationLabel] = "1" })},
			up + fine + " Ready=True/Ready; Paused; Current"},
		"paused, a server lost": {[]func(*world){runs(3, 3, 3), paused, then, runs(3, 3, 2), paused},
			up + " Degraded=True/ServersLost Ready=False/ServersLost; Paused; InProgress"},
		"paused, children differ": {[]func(*world){runs(3, 3, 3), paused, heldBack},
			up + fresh + " Ready=False/Paused; Paused; InProgress"},
		"proxies start": {[]func(*world){runs(3, 3, 3), proxies(2, 1)},
			up + fresh + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"no proxy answers": {[]func(*world){runs(3, 3, 3), proxies(2, 0)},
			down + fresh + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"proxies ready": {[]func(*world){runs(3, 3, 3), proxies(2, 2)},
			up + fine + " Ready=True/Ready; Ready; Current"},
		"proxies ready, of an older generation": {[]func(*world){runs(3, 3, 3), proxies(2, 2),
			func(w *world) { w.proxy.Labels[v1alpha1.GenerationLabel] = "1" }},
			up + fresh + " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"},
		"a proxy lost": {[]func(*world){runs(3, 3, 3), proxies(2, 2), then, proxies(2, 1)},
			up + " Degraded=True/ServersLost Ready=False/ServersLost Reconciling=True/ServersLost; Degraded; InProgress"},
		"proxies replaced": {[]func(*world){runs(3, 3, 3), proxies(2, 2), then,
			func(w *world) { w.obs.ProxyChanging = true }, then, proxies(1, 2)},
			up + rolling},
		"a proxy that ended": {[]func(*world){runs(3, 3, 3), proxies(2, 2), then, proxies(2, 1), func(w *world) {
			w.obs.ProxyPods[1].Status.ContainerStatuses = []corev1.ContainerStatus{{Name: names.Container,
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}}}
		}}, up + missing},
		"proxies that nobody wants any more": {[]func(*world){runs(3, 3, 3), proxies(0, 0),
			spec(func(s *v1alpha1.MemcachedSpec) { s.Proxy = nil })},
			up + fine + " Ready=True/Ready; Ready; Current"},
		"deleting": {[]func(*world){runs(3, 3, 3), deleted},
			up + " Degraded=True/Finalizing Ready=False/Deleting; Deleting; Terminating"},
		"deleting a workload that somebody else owns": {[]func(*world){runs(3, 3, 3), deleted,
			func(w *world) { w.deployment = nil }},
			up + " Degraded=True/Finalizing Ready=False/Deleting; Deleting; Terminating"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
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

// unobserved says that the controller has not seen the newest spec of the workload.
func unobserved(w *world) { w.deployment.Generation++ }

// restarted says that another operator process reconciles.
func restarted(w *world) { w.clock = Clock{} }

func paused(w *world) { w.mc.Spec.Paused = true }

func heldBack(w *world) { w.obs.HeldBack = "spec.paused keeps the operator from applying the spec" }

// ended says that the container of a server has just terminated, or that it has been restarted since.
func ended(server int, justNow bool) func(*world) {
	return func(w *world) {
		end := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 71, Reason: "Error",
			Message: "failed to set rlimit\nfor open files\n"}}
		s := corev1.ContainerStatus{Name: names.Container, LastTerminationState: end}
		if justNow {
			s.State, s.LastTerminationState = end, corev1.ContainerState{}
		}
		w.obs.Pods[server].Status.ContainerStatuses = []corev1.ContainerStatus{s}
	}
}

// evicted adds a pod that the kubelet evicted.
func evicted(w *world) {
	w.obs.Pods = append(w.obs.Pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "evicted"},
		Status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{
			Name:  names.Container,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Error"}}}}}})
}

// noRoom says that the scheduler finds no node for the last server.
func noRoom(w *world) {
	w.obs.Pods[2].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Reason: "Unschedulable", Message: "Insufficient memory"}}
}

// ends adds a server that is terminating.
func ends(w *world) {
	w.obs.Pods = append(w.obs.Pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "old",
		DeletionTimestamp: &metav1.Time{Time: start}}})
}

// blocked says that the controller of the workload cannot create pods.
func blocked(w *world) {
	w.deployment.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure,
		Status:  corev1.ConditionTrue,
		Message: "violates PodSecurity"}}
}

func deleted(w *world) {
	w.mc.DeletionTimestamp = &metav1.Time{Time: start}
	w.mc.Finalizers = []string{v1alpha1.Finalizer}
}

// TestMessages: the message of Ready names the cause, as the component that reports it words it.
func TestMessages(t *testing.T) {
	t.Parallel()
	pod := func(change func(*corev1.Pod)) func(*world) {
		return func(w *world) { change(&w.obs.Pods[2]) }
	}
	for name, tt := range map[string]struct {
		steps []func(*world)
		want  string
	}{
		"rolling out":  {[]func(*world){runs(3, 1, 2)}, "1 of 3 servers updated, 2 ready"},
		"starting":     {[]func(*world){runs(3, 3, 2)}, "2 of 3 servers ready"},
		"one too many": {[]func(*world){runs(4, 4, 4)}, "3 of 3 servers ready, 1 more to remove"},
		"settling": {[]func(*world){runs(3, 3, 3),
			spec(func(s *v1alpha1.MemcachedSpec) { s.Rollout.MinReadySeconds = 30 }),
			workload(func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 1 })},
			"3 of 3 servers ready, waiting until each has been ready for 30 s"},
		"crash": {[]func(*world){runs(3, 3, 2), ended(2, true)},
			"2 of 3 servers ready; cache-2: memcached last exited with code 71 (Error): failed to set rlimit for open" +
				" files"},
		"crash loop": {[]func(*world){runs(3, 3, 2), ended(2, false), pod(func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
		})}, "2 of 3 servers ready; cache-2: memcached last exited with code 71 (Error): failed to set rlimit for open" +
			" files"},
		"out of memory": {[]func(*world){runs(3, 3, 2), ended(2, true), pod(func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State.Terminated = &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}
		})}, "2 of 3 servers ready; cache-2: memcached last exited with code 137 (OOMKilled):" +
			" the container needed more memory than its limit"},
		"an agent that ended once": {[]func(*world){runs(3, 3, 2), ended(2, true), pod(func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "agent", Ready: true,
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 2}}}}
		})}, "2 of 3 servers ready; cache-2: memcached last exited with code 71 (Error): failed to set rlimit for open" +
			" files"},
		"an agent that cannot start": {[]func(*world){runs(3, 3, 2), pod(func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "agent", State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "not found"}}}}
		})}, "2 of 3 servers ready; cache-2: ErrImagePull: not found"},
		"lost node": {[]func(*world){runs(3, 3, 2), pod(func(p *corev1.Pod) {
			p.Spec.NodeName = "worker-1"
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse},
				{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}}
		})}, "2 of 3 servers ready; cache-2: node worker-1 is unreachable"},
		"paused by somebody": {[]func(*world){runs(3, 1, 3),
			workload(func(d *appsv1.Deployment) { d.Spec.Paused = true })},
			"1 of 3 servers updated, 3 ready; " +
				"rollouts of the workload are paused; resume them with kubectl rollout resume"},
		"refused pods": {[]func(*world){runs(2, 0, 2), blocked}, "0 of 3 servers updated, 2 ready; violates PodSecurity"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			for _, step := range tt.steps {
				step(w)
			}
			// What the cache strips is not needed for the message.
			for i := range w.obs.Pods {
				w.obs.Pods[i] = *StripPod(&w.obs.Pods[i])
			}
			if got := meta.FindStatusCondition(w.status().Conditions, v1alpha1.ConditionReady).Message; got != tt.want {
				t.Errorf("\n got %s\nwant %s", got, tt.want)
			}
		})
	}
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

// TestTransitionTimes: an unchanged condition keeps its time, so that an unchanged status is not written.
func TestTransitionTimes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	runs(3, 3, 3)(w)
	then(w)
	later(time.Hour)(w)
	if c := meta.FindStatusCondition(w.status().Conditions,
		v1alpha1.ConditionReady); !c.LastTransitionTime.Equal(&metav1.Time{Time: start}) {
		t.Errorf("Ready changed at %s, want %s", c.LastTransitionTime, start)
	}
	runs(3, 3, 2)(w)
	if c := meta.FindStatusCondition(w.status().Conditions,
		v1alpha1.ConditionReady); !c.LastTransitionTime.Equal(&metav1.Time{Time: w.now}) {
		t.Errorf("Ready changed at %s, want %s", c.LastTransitionTime, w.now)
	}
}

func TestServers(t *testing.T) {
	t.Parallel()
	pod := func(name string, phase corev1.PodPhase, terminating bool) corev1.Pod {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{Phase: phase}}
		if terminating {
			p.DeletionTimestamp = &metav1.Time{Time: start}
		}
		return p
	}
	got, _ := activePods([]corev1.Pod{pod("c", corev1.PodRunning, false), pod("a", corev1.PodPending, false),
		pod("b", corev1.PodRunning, true),
		pod("d", corev1.PodFailed, false), pod("e", corev1.PodSucceeded, false)})
	if fmt.Sprint(got) != "[a c]" {
		t.Errorf("nodes are %v, want [a c]", got)
	}
	if got, _ := activePods(nil); got == nil || len(got) != 0 {
		t.Errorf("no nodes are %#v, want an empty list, not null", got)
	}
}
