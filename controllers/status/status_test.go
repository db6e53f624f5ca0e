package status

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	kstatus "sigs.k8s.io/cli-utils/pkg/kstatus/status"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/internal/testing/manifest"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// scenario is the input of a status: a Memcached of size 3 and generation 2, its servers, and the time.
type scenario struct {
	mc                *v1alpha1.Memcached
	deployment, proxy *appsv1.Deployment // nil if we control none
	pods, proxyPods   []*corev1.Pod
	in                Input // besides these
	clock             Clock
	now               time.Time
}

// step changes a scenario.
type step func(*scenario)

func newScenario(t testing.TB) *scenario {
	t.Helper()
	s := &scenario{now: start, mc: manifest.Parse(t, manifest.Named("cache", "{size: 3}"))}
	s.mc.Generation = 2
	return s
}

// servers sets the Deployment, which is of the current generation, and its pods: some are updated, and some are ready.
func servers(replicas, updated, ready int32) step {
	return func(s *scenario) {
		s.deployment = &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{
				Name: "cache", Generation: 7, Labels: map[string]string{v1alpha1.GenerationLabel: "2"},
			},
			Spec: appsv1.DeploymentSpec{Replicas: ptr.To(names.Size(s.mc))},
			Status: appsv1.DeploymentStatus{
				ObservedGeneration: 7, Replicas: replicas, UpdatedReplicas: updated, ReadyReplicas: ready, AvailableReplicas: ready,
			},
		}
		s.pods = nil
		for i := range replicas {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("cache-%d", i)}}
			if i < ready {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			}
			s.pods = append(s.pods, p)
		}
	}
}

// proxies adds two proxies: some are updated, and some are ready.
func proxies(updated, ready int32) step {
	return func(s *scenario) {
		deployment, pods := s.deployment, s.pods
		s.mc.Spec.Proxy = &v1alpha1.ProxySpec{Size: 2}
		servers(2, updated, ready)(s)
		s.proxy, s.proxyPods = s.deployment, s.pods
		s.proxy.Spec.Replicas = ptr.To[int32](2)
		s.deployment, s.pods = deployment, pods
	}
}

func changeWorkload(f func(*appsv1.Deployment)) step {
	return func(s *scenario) { f(s.deployment) }
}

func changeSpec(f func(*v1alpha1.MemcachedSpec)) step {
	return func(s *scenario) { f(&s.mc.Spec) }
}

// problem says that a child could not be applied.
func problem(p *Problem) step { return func(s *scenario) { s.in.Problem = p } }

// changing says that this reconcile replaces, adds or removes servers.
func changing(s *scenario) { s.in.Changing = true }

// resizing says that this reconcile only adds or removes servers.
func resizing(s *scenario) { s.in.Changing, s.in.Resizing = true, true }

// loading says that a proxy may not use the current list of servers yet.
func loading(s *scenario) { s.in.Work.NotLoaded = "cache-proxy-a" }

// unreached says that a proxy does not reach a server.
func unreached(s *scenario) {
	metav1.SetMetaDataAnnotation(&s.proxyPods[1].ObjectMeta, v1alpha1.UnreachableAnnotation, "cache-2")
}

func later(d time.Duration) step { return func(s *scenario) { s.now = s.now.Add(d) } }

func nextGeneration(s *scenario) {
	s.mc.Generation++
	s.deployment.Labels[v1alpha1.GenerationLabel] = strconv.FormatInt(s.mc.Generation, 10)
}

// nextReconcile stores the status as the previous one, and starts another reconcile one second later.
func nextReconcile(s *scenario) {
	s.mc.Status = s.status()
	s.in = Input{}
	s.now = s.now.Add(time.Second)
}

func (s *scenario) status() v1alpha1.MemcachedStatus {
	s.in.Servers = ReadComponent(workload(s.deployment), s.pods)
	if s.mc.Spec.Proxy != nil {
		s.in.Proxies = ReadComponent(workload(s.proxy), s.proxyPods)
	}
	s.clock = s.clock.Next(s.mc, s.in, s.now)
	return Compute(s.mc, s.in, s.clock, s.now)
}

// workload returns nil for no Deployment, as an interface.
func workload(d *appsv1.Deployment) metav1.Object {
	if d == nil {
		return nil
	}
	return d
}

var (
	invalid  = &Problem{v1alpha1.ReasonInvalid, "apply Deployment cache: invalid", true}
	refused  = &Problem{v1alpha1.ReasonProgressingWithRetry, "apply Service cache: exceeded quota", false}
	conflict = &Problem{v1alpha1.ReasonConflict, "Service cache exists", true}
)

// TestStatus covers every row of docs/reference/status.md that the operator writes.
func TestStatus(t *testing.T) {
	t.Parallel()
	// Parts of what describe returns: conditions, and after the last one the phase and the status that kstatus computes.
	const (
		available    = "Available=True/ServersAvailable"
		unavailable  = "Available=False/NoServersAvailable"
		scaledToZero = "Available=False/ScaledToZero"

		notDegraded = " Degraded=False/AsExpected"
		installing  = " Degraded=False/Installing"
		serversLost = " Degraded=True/ServersLost"

		ready              = " Ready=True/Ready; Ready; Current"
		notReadyRollingOut = " Ready=False/RollingOut Reconciling=True/RollingOut; Progressing; InProgress"
		notReadyResizing   = " Ready=False/Resizing Reconciling=True/Resizing; Progressing; InProgress"
		notReadyRetrying   = " Ready=False/ProgressingWithRetry Reconciling=True/ProgressingWithRetry;" +
			" Progressing; InProgress"
		notReadyDeleting = " Degraded=True/Finalizing Ready=False/Deleting; Deleting; Terminating"

		degradedServersLost = serversLost + " Ready=False/ServersLost Reconciling=True/ServersLost; Degraded; InProgress"
		degradedRetrying    = " Ready=False/ProgressingWithRetry Reconciling=True/ProgressingWithRetry; Degraded; InProgress"
		deadlineExceeded    = " Degraded=True/Installing Ready=False/ProgressDeadlineExceeded" +
			" Stalled=True/ProgressDeadlineExceeded; Degraded; Failed"
	)
	tests := map[string]struct {
		steps []step
		want  string
	}{
		"created": {[]step{changing},
			unavailable + installing + notReadyRollingOut},
		"rolling out": {[]step{servers(3, 2, 2)},
			available + installing + notReadyRollingOut},
		"resizing": {[]step{servers(2, 2, 2), resizing},
			available + installing + notReadyResizing},
		"resizing, in the next reconcile": {[]step{servers(2, 2, 2), resizing, nextReconcile, servers(3, 3, 2)},
			available + installing + notReadyResizing},
		"resizing, and then rolling out": {[]step{servers(2, 2, 2), resizing, nextReconcile, servers(3, 2, 2)},
			available + installing + notReadyRollingOut},
		"resizing, not observed by the controller": {[]step{servers(2, 2, 2), resizing, nextReconcile,
			changeWorkload(func(d *appsv1.Deployment) { d.Generation++ })},
			available + installing + notReadyResizing},
		"ready": {[]step{servers(3, 3, 3)},
			available + notDegraded + ready},
		"ready at size 0": {[]step{changeSpec(func(s *v1alpha1.MemcachedSpec) { s.Size = ptr.To[int32](0) }),
			servers(0, 0, 0)},
			scaledToZero + notDegraded + ready},
		"all servers ready, one not for minReadySeconds": {[]step{servers(3, 3, 3),
			changeWorkload(func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 2 })},
			available + installing + notReadyRollingOut},
		"workload built from an older generation": {[]step{servers(3, 3, 3),
			changeWorkload(func(d *appsv1.Deployment) { d.Labels[v1alpha1.GenerationLabel] = "1" })},
			available + installing + notReadyRollingOut},
		"workload not observed by its controller": {[]step{servers(3, 3, 3),
			changeWorkload(func(d *appsv1.Deployment) { d.Generation++ })},
			available + installing + notReadyRollingOut},
		"workload just written": {[]step{servers(3, 3, 3), changing},
			available + installing + notReadyRollingOut},
		"workload being deleted": {[]step{servers(3, 3, 3),
			changeWorkload(func(d *appsv1.Deployment) { d.DeletionTimestamp = &metav1.Time{Time: start} })},
			available + installing + notReadyRollingOut},
		"a pod is not in the informer cache yet": {[]step{servers(3, 3, 3),
			func(s *scenario) { s.pods = s.pods[1:] }},
			available + installing + notReadyRollingOut},
		"lost servers that the workload still counts": {[]step{servers(3, 3, 3), nextReconcile, servers(3, 3, 1),
			changeWorkload(func(d *appsv1.Deployment) {
				d.Status.ReadyReplicas, d.Status.AvailableReplicas = 3, 3
			})}, available + degradedServersLost},
		"server lost": {[]step{servers(3, 3, 3), nextReconcile, servers(3, 3, 2)},
			available + degradedServersLost},
		"another server lost": {[]step{servers(3, 3, 3), nextReconcile, servers(3, 3, 2), nextReconcile, servers(3, 3, 1)},
			available + degradedServersLost},
		"lost server is ready again": {[]step{servers(3, 3, 3), nextReconcile, servers(3, 3, 2), nextReconcile,
			servers(3, 3, 3)},
			available + notDegraded + ready},
		"announced restart": {[]step{servers(3, 3, 3), nextReconcile, changing},
			available + notDegraded + notReadyRollingOut},
		"rollout that somebody else started": {[]step{servers(3, 3, 3), nextReconcile, servers(3, 1, 2)},
			available + notDegraded + notReadyRollingOut},
		"error that a retry may fix": {[]step{changing, problem(refused)},
			unavailable + installing + notReadyRetrying},
		"error that a retry may fix, after Ready": {[]step{servers(3, 3, 3), nextReconcile, problem(refused), nextReconcile,
			problem(refused)},
			available + " Degraded=True/ProgressingWithRetry" + degradedRetrying},
		"image not pulled": {[]step{servers(3, 1, 2), func(s *scenario) {
			s.pods[2].Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "not found"}}}}
		}}, available + installing + notReadyRetrying},
		"pods refused by quota": {[]step{servers(1, 1, 1), changeWorkload(func(d *appsv1.Deployment) {
			d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure,
				Status: corev1.ConditionTrue, Message: "exceeded quota"}}
		})}, available + installing + notReadyRetrying},
		"ReplicaSet refused by quota": {[]step{servers(0, 0, 0), changeWorkload(func(d *appsv1.Deployment) {
			d.Status.ObservedGeneration--
			d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing,
				Status: corev1.ConditionFalse, Reason: "ReplicaSetCreateError", Message: "exceeded quota"}}
		})}, unavailable + installing + notReadyRetrying},
		"child invalid": {[]step{changing, problem(invalid)},
			unavailable + " Degraded=True/Installing Ready=False/Invalid Stalled=True/Invalid; Degraded; Failed"},
		"foreign child": {[]step{changing, problem(conflict)},
			unavailable + " Degraded=True/Installing Ready=False/Conflict Stalled=True/Conflict; Degraded; Failed"},
		"a server lost after a child was invalid": {[]step{servers(3, 3, 3), nextReconcile, problem(invalid), nextReconcile,
			servers(3, 3, 2), exited(2), nextReconcile},
			available + serversLost + degradedRetrying},
		"foreign child removed": {[]step{changing, problem(conflict), nextReconcile, servers(3, 3, 3)},
			available + notDegraded + ready},
		"no progress, just before the deadline": {[]step{servers(3, 1, 1), nextReconcile, later(598 * time.Second)},
			available + installing + notReadyRollingOut},
		"no progress": {[]step{servers(3, 1, 1), nextReconcile, later(599 * time.Second)},
			available + deadlineExceeded},
		"no progress, in the next reconcile": {[]step{servers(3, 1, 1), nextReconcile, later(599 * time.Second),
			nextReconcile},
			available + deadlineExceeded},
		"an error that lasts past the deadline": {[]step{servers(3, 1, 1), problem(refused), nextReconcile, changing,
			problem(refused), later(599 * time.Second)},
			available + deadlineExceeded},
		"slow rollout": {[]step{servers(3, 3, 3), nextReconcile, nextGeneration, changing, unobserved, nextReconcile,
			later(400 * time.Second), servers(3, 1, 2), nextReconcile, later(400 * time.Second), servers(3, 2, 2),
			nextReconcile, later(400 * time.Second), servers(3, 3, 2)},
			available + notDegraded + notReadyRollingOut},
		"slow rollout that removes all outdated servers first": {[]step{servers(3, 3, 3), nextReconcile, nextGeneration,
			changing, unobserved, nextReconcile, later(400 * time.Second), servers(3, 0, 3), nextReconcile,
			later(400 * time.Second), servers(1, 0, 1), nextReconcile, later(400 * time.Second), servers(0, 0, 0)},
			unavailable + notDegraded + notReadyRollingOut},
		"slow rollout of two": {[]step{changeSpec(func(s *v1alpha1.MemcachedSpec) { s.Size = ptr.To[int32](2) }),
			servers(2, 2, 2), nextReconcile, nextGeneration, changing, unobserved, nextReconcile,
			later(400 * time.Second), servers(2, 1, 2), nextReconcile, later(400 * time.Second), servers(2, 2, 1)},
			available + notDegraded + notReadyRollingOut},
		"slow recovery": {[]step{servers(3, 3, 3), nextReconcile, servers(3, 3, 2), nextReconcile, servers(3, 3, 0),
			nextReconcile, later(400 * time.Second), servers(3, 3, 1), nextReconcile, later(400 * time.Second),
			servers(3, 3, 2), nextReconcile, later(400 * time.Second)},
			available + degradedServersLost},
		"slow progress": {[]step{servers(3, 1, 1), nextReconcile, later(500 * time.Second), servers(3, 2, 1), nextReconcile,
			later(500 * time.Second)},
			available + installing + notReadyRollingOut},
		"progress after the deadline": {[]step{servers(3, 1, 1), nextReconcile, later(700 * time.Second), nextReconcile,
			servers(3, 2, 1)},
			available + installing + notReadyRollingOut},
		"a server that becomes ready again and again": {[]step{servers(3, 3, 1), nextReconcile, later(300 * time.Second),
			servers(3, 3, 2), nextReconcile, servers(3, 3, 1), nextReconcile, later(300 * time.Second), servers(3, 3, 2),
			nextReconcile, servers(3, 3, 1), nextReconcile, later(300 * time.Second), servers(3, 3, 2)},
			available + deadlineExceeded},
		"no progress while no operator ran": {[]step{servers(3, 1, 1), nextReconcile, later(700 * time.Second),
			operatorRestarted},
			available + installing + notReadyRollingOut},
		"no progress that another operator process reported": {[]step{servers(3, 1, 1), nextReconcile,
			later(700 * time.Second), nextReconcile, operatorRestarted},
			available + deadlineExceeded},
		"ready after the deadline": {[]step{servers(3, 1, 1), nextReconcile, later(700 * time.Second), nextReconcile,
			servers(3, 3, 3)},
			available + notDegraded + ready},
		"new generation after the deadline": {[]step{servers(3, 1, 1), nextReconcile, later(700 * time.Second),
			nextReconcile, nextGeneration},
			available + installing + notReadyRollingOut},
		"new generation restarts the clock": {[]step{servers(3, 1, 1), nextReconcile, later(500 * time.Second),
			nextGeneration, nextReconcile, later(500 * time.Second)},
			available + installing + notReadyRollingOut},
		"container exited after Ready": {[]step{servers(3, 3, 3), nextReconcile, servers(3, 3, 2), exited(2)},
			available + serversLost + degradedRetrying},
		"exited container runs again, not ready": {[]step{servers(3, 3, 3), nextReconcile, servers(3, 3, 2), exited(2),
			nextReconcile, restartedAfterExit(2)},
			available + serversLost + degradedRetrying},
		"rollout whose pods a policy refuses": {[]step{servers(3, 3, 3), nextReconcile, nextGeneration, servers(2, 0, 2),
			podsRefused},
			available + serversLost + degradedRetrying},
		"rollout whose pods a policy still refuses": {[]step{servers(3, 3, 3), nextReconcile, nextGeneration, changing,
			nextReconcile, servers(2, 0, 2), podsRefused, nextReconcile},
			available + serversLost + degradedRetrying},
		"growth whose pods a quota refuses": {[]step{servers(2, 2, 2), nextReconcile, servers(2, 2, 2), podsRefused},
			available + installing + notReadyRetrying},
		"rollout after a temporary error": {[]step{servers(3, 3, 3), nextReconcile, nextGeneration, changing,
			problem(refused), nextReconcile, changing},
			available + notDegraded + notReadyRollingOut},
		"rollout beside a pod that was evicted long ago": {[]step{servers(3, 3, 3), evictedPod, nextReconcile,
			nextGeneration, changing, nextReconcile, servers(3, 1, 2), evictedPod},
			available + notDegraded + notReadyRollingOut},
		"rollout that waits for a terminating pod": {[]step{servers(3, 3, 3), nextReconcile, nextGeneration, changing,
			nextReconcile, servers(3, 1, 2), unschedulable, terminatingServer},
			available + notDegraded + notReadyRollingOut},
		"rollout with an unschedulable pod": {[]step{servers(3, 3, 3), nextReconcile, nextGeneration, changing,
			nextReconcile, servers(3, 1, 2), unschedulable},
			available + serversLost + degradedRetrying},
		"rollout whose pod is schedulable again": {[]step{servers(3, 3, 3), nextReconcile, nextGeneration, changing,
			nextReconcile, servers(3, 1, 2), unschedulable, nextReconcile, servers(3, 2, 2)},
			available + notDegraded + notReadyRollingOut},
		"rollout after an error of another child": {[]step{servers(3, 3, 3), nextReconcile, nextGeneration, changing,
			problem(refused), nextReconcile, servers(3, 1, 2)},
			available + notDegraded + notReadyRollingOut},
		"growth after an error of another child": {[]step{servers(3, 3, 3), nextReconcile, nextGeneration,
			changeSpec(func(s *v1alpha1.MemcachedSpec) { s.Size = ptr.To[int32](5) }), resizing, problem(refused), nextReconcile,
			servers(4, 4, 3)},
			available + notDegraded + notReadyRollingOut},
		"an error while a server is lost": {[]step{servers(3, 3, 3), nextReconcile, servers(3, 3, 2), nextReconcile,
			problem(refused)},
			available + serversLost + degradedRetrying},
		"a server still lost after a temporary error": {[]step{servers(3, 3, 3), nextReconcile, servers(3, 3, 2),
			nextReconcile, problem(refused), nextReconcile},
			available + degradedServersLost},
		"created later than the deadline": {[]step{problem(refused), nextReconcile, later(700 * time.Second), changing,
			nextReconcile},
			unavailable + installing + notReadyRollingOut},
		"budget changed while a server is lost": {[]step{servers(3, 3, 3), nextReconcile, servers(3, 3, 2), nextReconcile,
			nextGeneration},
			available + degradedServersLost},
		"resized while a server is lost": {[]step{servers(3, 3, 3), nextReconcile, servers(3, 3, 2), nextReconcile,
			nextGeneration, resizing},
			available + serversLost + " Ready=False/Resizing Reconciling=True/Resizing; Degraded; InProgress"},
		"one of the lost servers ready again after the deadline": {[]step{servers(3, 3, 3), nextReconcile, servers(3, 3, 0),
			nextReconcile, later(700 * time.Second), nextReconcile, servers(3, 3, 1)},
			available + degradedServersLost},
		"slow growth": {[]step{servers(3, 3, 1), resizing, nextReconcile, later(500 * time.Second), servers(3, 3, 2),
			nextReconcile, later(500 * time.Second)},
			available + installing + notReadyResizing},
		"waiting for the children of a deleted Memcached": {[]step{
			func(s *scenario) { s.in.Waiting = "waiting for Service cache" }},
			unavailable + installing + notReadyRollingOut},
		"paused with changes held back, all servers lost": {[]step{servers(3, 3, 3), paused, heldBack, nextReconcile,
			servers(0, 0, 0), heldBack},
			unavailable + serversLost + " Ready=False/Paused; Paused; InProgress"},
		"paused with changes held back, all servers still lost": {[]step{servers(3, 3, 3), paused, heldBack, nextReconcile,
			servers(0, 0, 0), heldBack, nextReconcile, heldBack},
			unavailable + serversLost + " Ready=False/Paused; Paused; InProgress"},
		"paused with changes held back, lost servers ready again": {[]step{servers(3, 3, 3), paused, heldBack,
			nextReconcile, servers(0, 0, 0), heldBack, nextReconcile, servers(3, 3, 3), heldBack},
			available + notDegraded + " Ready=False/Paused; Paused; InProgress"},
		"paused, somebody deletes the workload": {[]step{servers(3, 3, 3), paused, nextReconcile,
			func(s *scenario) {
				s.deployment, s.pods = nil, nil
				s.in.HeldBack = "spec.paused keeps the operator from applying the spec"
			}},
			unavailable + serversLost + " Ready=False/Paused; Paused; InProgress"},
		"paused": {[]step{servers(3, 3, 3), paused,
			changeWorkload(func(d *appsv1.Deployment) { d.Labels[v1alpha1.GenerationLabel] = "1" })},
			available + notDegraded + " Ready=True/Ready; Paused; Current"},
		"paused, a server lost": {[]step{servers(3, 3, 3), paused, nextReconcile, servers(3, 3, 2), paused},
			available + serversLost + " Ready=False/ServersLost; Paused; InProgress"},
		"paused, children differ": {[]step{servers(3, 3, 3), paused, heldBack},
			available + installing + " Ready=False/Paused; Paused; InProgress"},
		"proxies start": {[]step{servers(3, 3, 3), proxies(2, 1)},
			available + installing + notReadyRollingOut},
		"no proxy ready": {[]step{servers(3, 3, 3), proxies(2, 0)},
			unavailable + installing + notReadyRollingOut},
		"proxies ready": {[]step{servers(3, 3, 3), proxies(2, 2)},
			available + notDegraded + ready},
		"proxies ready, built from an older generation": {[]step{servers(3, 3, 3), proxies(2, 2),
			func(s *scenario) { s.proxy.Labels[v1alpha1.GenerationLabel] = "1" }},
			available + installing + notReadyRollingOut},
		"a proxy lost": {[]step{servers(3, 3, 3), proxies(2, 2), nextReconcile, proxies(2, 1)},
			available + degradedServersLost},
		"proxies load the list of servers": {[]step{servers(3, 3, 3), proxies(2, 2), loading},
			available + installing + notReadyRollingOut},
		"items move": {[]step{servers(3, 3, 3), proxies(2, 2), nextReconcile,
			func(s *scenario) { s.in.Work.Moving = true }},
			available + notDegraded + notReadyRollingOut},
		"a server drops its items": {[]step{servers(3, 3, 3), nextReconcile,
			func(s *scenario) { s.in.Work.ToFlush = 1 }},
			available + notDegraded + notReadyRollingOut},
		"a proxy does not reach a server": {[]step{servers(3, 3, 3), proxies(2, 2), nextReconcile, unreached},
			available + notDegraded + notReadyRetrying},
		"proxies load another list of servers": {[]step{servers(3, 3, 3), proxies(2, 2), nextReconcile, loading},
			available + notDegraded + notReadyRollingOut},
		"a server lost while proxies load the list": {[]step{servers(3, 3, 3), proxies(2, 2), nextReconcile,
			servers(3, 3, 2), loading}, available + degradedServersLost},
		"proxies replaced": {[]step{servers(3, 3, 3), proxies(2, 2), nextReconcile,
			func(s *scenario) { s.in.ProxyChanging = true }, nextReconcile, proxies(1, 2)},
			available + notDegraded + notReadyRollingOut},
		"a proxy that exited": {[]step{servers(3, 3, 3), proxies(2, 2), nextReconcile, proxies(2, 1), func(s *scenario) {
			s.proxyPods[1].Status.ContainerStatuses = []corev1.ContainerStatus{{Name: names.Container,
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}}}
		}}, available + serversLost + degradedRetrying},
		"proxies no longer wanted": {[]step{servers(3, 3, 3), proxies(0, 0),
			changeSpec(func(s *v1alpha1.MemcachedSpec) { s.Proxy = nil })},
			available + notDegraded + ready},
		"deleting": {[]step{servers(3, 3, 3), deleted},
			available + notReadyDeleting},
		"deleting a workload that somebody else owns": {[]step{servers(3, 3, 3), deleted,
			func(s *scenario) { s.deployment = nil }},
			available + notReadyDeleting},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScenario(t)
			for _, step := range tt.steps {
				step(s)
			}
			status := s.status()
			if got := describe(t, s.mc, status); got != tt.want {
				t.Errorf("\n got %s\nwant %s", got, tt.want)
			}
			for _, c := range status.Conditions {
				if c.ObservedGeneration != s.mc.Generation || c.Message == "" {
					t.Errorf("got %s of generation %d with message %q, want generation %d and a message", c.Type,
						c.ObservedGeneration, c.Message, s.mc.Generation)
				}
			}
		})
	}
}

// unobserved says that the controller of the workload has not observed its newest spec.
func unobserved(s *scenario) { s.deployment.Generation++ }

// operatorRestarted says that another operator process reconciles from now on.
func operatorRestarted(s *scenario) { s.clock = Clock{} }

func paused(s *scenario) { s.mc.Spec.Paused = true }

func heldBack(s *scenario) { s.in.HeldBack = "spec.paused keeps the operator from applying the spec" }

// exited says that the container of a server has just exited.
func exited(server int) step {
	return containerStatus(server, corev1.ContainerStatus{State: exitState})
}

// restartedAfterExit says that the container of a server exited and was started again.
func restartedAfterExit(server int) step {
	return containerStatus(server, corev1.ContainerStatus{LastTerminationState: exitState})
}

var exitState = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 71, Reason: "Error",
	Message: "failed to set rlimit\nfor open files\n"}}

func containerStatus(server int, status corev1.ContainerStatus) step {
	status.Name = names.Container
	return func(s *scenario) { s.pods[server].Status.ContainerStatuses = []corev1.ContainerStatus{status} }
}

// evictedPod adds a pod that the kubelet evicted.
func evictedPod(s *scenario) {
	s.pods = append(s.pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "evicted"},
		Status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{
			Name:  names.Container,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Error"}}}}}})
}

// unschedulable says that the scheduler finds no node for the last server.
func unschedulable(s *scenario) {
	s.pods[2].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Reason: "Unschedulable", Message: "Insufficient memory"}}
}

// terminatingServer adds a server that is terminating.
func terminatingServer(s *scenario) {
	s.pods = append(s.pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "old",
		DeletionTimestamp: &metav1.Time{Time: start}}})
}

// podsRefused says that the controller of the workload cannot create pods.
func podsRefused(s *scenario) {
	s.deployment.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure,
		Status:  corev1.ConditionTrue,
		Message: "violates PodSecurity"}}
}

func deleted(s *scenario) {
	s.mc.DeletionTimestamp = &metav1.Time{Time: start}
	s.mc.Finalizers = []string{v1alpha1.Finalizer}
}

// TestMessages: the message of Ready names the cause in the words of the component that reports it.
func TestMessages(t *testing.T) {
	t.Parallel()
	pod := func(change func(*corev1.Pod)) step {
		return func(s *scenario) { change(s.pods[2]) }
	}
	for name, tt := range map[string]struct {
		steps []step
		want  string
	}{
		"rolling out":         {[]step{servers(3, 1, 2)}, "1 of 3 servers updated, 2 ready"},
		"starting":            {[]step{servers(3, 3, 2)}, "2 of 3 servers ready"},
		"one server too many": {[]step{servers(4, 4, 4)}, "3 of 3 servers ready, 1 more to remove"},
		"waiting for minReadySeconds": {[]step{servers(3, 3, 3),
			changeSpec(func(s *v1alpha1.MemcachedSpec) { s.Rollout.MinReadySeconds = 30 }),
			changeWorkload(func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 1 })},
			"3 of 3 servers ready, waiting until each has been ready for 30 s"},
		"crash": {[]step{servers(3, 3, 2), exited(2)},
			"2 of 3 servers ready; cache-2: memcached last exited with code 71 (Error): failed to set rlimit for open" +
				" files"},
		"crash loop": {[]step{servers(3, 3, 2), restartedAfterExit(2), pod(func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
		})}, "2 of 3 servers ready; cache-2: memcached last exited with code 71 (Error): failed to set rlimit for open" +
			" files"},
		"out of memory": {[]step{servers(3, 3, 2), exited(2), pod(func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State.Terminated = &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}
		})}, "2 of 3 servers ready; cache-2: memcached last exited with code 137 (OOMKilled):" +
			" the container needed more memory than its limit"},
		"agent that exited once": {[]step{servers(3, 3, 2), exited(2), pod(func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "agent", Ready: true,
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 2}}}}
		})}, "2 of 3 servers ready; cache-2: memcached last exited with code 71 (Error): failed to set rlimit for open" +
			" files"},
		"agent that cannot start": {[]step{servers(3, 3, 2), pod(func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "agent", State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "not found"}}}}
		})}, "2 of 3 servers ready; cache-2: ErrImagePull: not found"},
		"unreachable node": {[]step{servers(3, 3, 2), pod(func(p *corev1.Pod) {
			p.Spec.NodeName = "worker-1"
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse},
				{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}}
		})}, "2 of 3 servers ready; cache-2: node worker-1 is unreachable"},
		"agent that has become an init container": {[]step{servers(3, 3, 2), pod(func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "agent",
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "memcached", State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}}}
		})}, "2 of 3 servers ready; cache-2: memcached waits for the end of the agent, because the cluster or a webhook " +
			"has removed the agent's restartPolicy"},
		"readiness gate of another controller": {[]step{servers(3, 3, 2), pod(func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionTrue},
				{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "ReadinessGatesNotReady",
					Message: `corresponding condition of pod readiness gate "example.com/lb" does not exist.`}}
		}), nextReconcile, later(time.Hour)}, "No progress for 600 s: 2 of 3 servers ready; cache-2: " +
			`corresponding condition of pod readiness gate "example.com/lb" does not exist.`},
		"pod without an address": {[]step{servers(3, 3, 2), pod(func(p *corev1.Pod) {
			p.Spec.NodeName = "worker-1"
			p.Status.Conditions = []corev1.PodCondition{{Type: "PodReadyToStartContainers", Status: corev1.ConditionFalse},
				{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "ContainersNotReady"}}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "memcached", State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}}
		}), nextReconcile, later(time.Hour)}, "No progress for 600 s: 2 of 3 servers ready; " +
			"the events of pod cache-2 say why it is not ready"},
		"pod that a finalizer holds": {[]step{servers(3, 3, 2), pod(func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: start}, []string{"example.com/hold"}
		}), nextReconcile, later(time.Hour)}, "No progress for 600 s: 2 of 3 servers ready; " +
			"pod cache-2 is being deleted; its metadata.finalizers and its events say what holds it"},
		"Deployment paused by somebody": {[]step{servers(3, 1, 3),
			changeWorkload(func(d *appsv1.Deployment) { d.Spec.Paused = true })},
			"1 of 3 servers updated, 3 ready; " +
				"rollouts of the workload are paused; resume them with kubectl rollout resume"},
		"refused pods": {[]step{servers(2, 0, 2), podsRefused}, "0 of 3 servers updated, 2 ready; violates PodSecurity"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScenario(t)
			for _, step := range tt.steps {
				step(s)
			}
			// The message needs none of the fields that the informer cache strips.
			for i := range s.pods {
				s.pods[i] = StripPod(s.pods[i])
			}
			if got := meta.FindStatusCondition(s.status().Conditions, v1alpha1.ConditionReady).Message; got != tt.want {
				t.Errorf("\n got %s\nwant %s", got, tt.want)
			}
		})
	}
}

// describe returns the conditions, the phase, and the status that kstatus computes.
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
	s := newScenario(t)
	servers(3, 3, 3)(s)
	nextReconcile(s)
	later(time.Hour)(s)
	if c := meta.FindStatusCondition(s.status().Conditions,
		v1alpha1.ConditionReady); !c.LastTransitionTime.Equal(&metav1.Time{Time: start}) {
		t.Errorf("got transition of Ready at %s, want %s", c.LastTransitionTime, start)
	}
	servers(3, 3, 2)(s)
	if c := meta.FindStatusCondition(s.status().Conditions,
		v1alpha1.ConditionReady); !c.LastTransitionTime.Equal(&metav1.Time{Time: s.now}) {
		t.Errorf("got transition of Ready at %s, want %s", c.LastTransitionTime, s.now)
	}
}

// FuzzStatus: whatever somebody writes into the status, the next one has each condition once, with a time that has
// passed, and the one after that is the same.
func FuzzStatus(f *testing.F) {
	mc := newScenario(f).mc
	for _, steps := range [][]step{{servers(3, 3, 3)}, {servers(3, 1, 2)}, {servers(3, 3, 3), nextReconcile, servers(3, 3,
		2)},
		{servers(3, 1, 1), nextReconcile, later(time.Hour)}, {servers(2, 2, 2), resizing}, {problem(conflict)}} {
		s := newScenario(f)
		for _, step := range steps {
			step(s)
		}
		text, err := json.Marshal(s.status())
		if err != nil {
			f.Fatal(err)
		}
		for ready := range 4 {
			f.Add(text, ready)
		}
	}
	for _, text := range []string{"{}", "null", `{"nodes": ["b", "a", "b"], "readyReplicas": -1, "observedGeneration": 3}`,
		`{"conditions": [{}, {"type": "Ready", "status": "True"}, {"type": "Degraded", "status": "?"}]}`,
		`{"observedGeneration": 2, "conditions": [{"type": "Ready", "status": "True", "reason": "Deleting",
			"lastTransitionTime": "9999-12-31T23:59:59Z"}]}`} {
		f.Add([]byte(text), 2)
	}
	f.Fuzz(func(t *testing.T, text []byte, ready int) {
		s := &scenario{mc: mc.DeepCopy(), now: start}
		if json.Unmarshal(text, &s.mc.Status) != nil || ready < 0 || ready > 3 {
			t.Skip("the API server refuses it")
		}
		reversed := s.mc.Status.DeepCopy()
		slices.Reverse(reversed.Conditions)
		slices.Reverse(reversed.Nodes)
		Normalize(&s.mc.Status)
		Normalize(reversed)
		types := map[string]bool{}
		for _, c := range s.mc.Status.Conditions {
			types[c.Type] = true
		}
		if len(types) == len(s.mc.Status.Conditions) && !equality.Semantic.DeepEqual(*reversed, s.mc.Status) {
			t.Errorf("%+v in another order is %+v", s.mc.Status, reversed)
		}
		servers(3, 3, int32(ready))(s)
		first := s.status()
		for i, c := range first.Conditions {
			if c.LastTransitionTime.After(start) || c.Reason == "" || i > 0 && first.Conditions[i-1].Type >= c.Type {
				t.Errorf("got %+v", first.Conditions)
			}
		}
		nextReconcile(s)
		if second := s.status(); !equality.Semantic.DeepEqual(first, second) || WasReady(s.mc) != (ready == 3) {
			t.Errorf("%+v becomes %+v", first, second)
		}
	})
}

// FuzzMessage: whatever memcached logs before it exits, the condition that quotes the end of that is one line of UTF-8,
// not too long for the API server.
func FuzzMessage(f *testing.F) {
	for _, text := range []string{"", "failed to listen on TCP port 11211: Address in use\n", strings.Repeat("ä",
		200) + "x", "\xff\x00",
		strings.Repeat(" x\n", 300)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s := &v1alpha1.MemcachedStatus{}
		message := strings.Repeat("x", len(text)) + terminationMessage(names.Container,
			&corev1.ContainerStateTerminated{ExitCode: 1, Message: text})
		setCondition(s, &v1alpha1.Memcached{}, v1alpha1.ConditionReady, conditionState{message: message}, start)
		if got := s.Conditions[0].Message; !utf8.ValidString(got) || len(got) > maxMessage || strings.Contains(got, "\n") {
			t.Errorf("got %q", got)
		}
	})
}

// TestActivePods: terminating and finished pods are not counted, and no pods are an empty list.
func TestActivePods(t *testing.T) {
	t.Parallel()
	pod := func(name string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{Phase: phase}}
	}
	terminating := pod("b", corev1.PodRunning)
	terminating.DeletionTimestamp = &metav1.Time{Time: start}
	got := ReadComponent(nil, []*corev1.Pod{pod("c", corev1.PodRunning), pod("a", corev1.PodPending), terminating,
		pod("d", corev1.PodFailed), pod("e", corev1.PodSucceeded)}).Active
	if fmt.Sprint(got) != "[a c]" {
		t.Errorf("got %v, want [a c]", got)
	}
	if got := ReadComponent(nil, nil).Active; got == nil || len(got) != 0 {
		t.Errorf("got %#v, want an empty list", got)
	}
}
