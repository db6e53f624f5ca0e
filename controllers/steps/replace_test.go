package steps

import (
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// server is a pod of the StatefulSet "cache". Its methods change it.
type server struct{ corev1.Pod }

// missing is a server without a pod.
var missing *server

func newServer(template string) *server {
	s := &server{corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Annotations:     map[string]string{v1alpha1.TemplateAnnotation: template},
		OwnerReferences: []metav1.OwnerReference{{UID: "set", Controller: ptr.To(true)}}}}}
	s.Spec.NodeName = "node"
	s.Spec.Containers = []corev1.Container{{Name: names.Container}}
	return s.readyFor(time.Hour)
}

func outdated() *server { return newServer("old") }
func updated() *server  { return newServer("new") }

func (s *server) readyFor(d time.Duration) *server {
	s.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.ContainersReady, Status: corev1.ConditionTrue},
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-d))}}
	s.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: names.Container, Ready: true}}
	return s
}

func (s *server) notReady() *server {
	for i := range s.Status.Conditions {
		s.Status.Conditions[i].Status = corev1.ConditionFalse
	}
	return s
}

// down says that the kubelet reports memcached as not ready.
func (s *server) down() *server {
	s.Status.ContainerStatuses[0].Ready = false
	return s.notReady()
}

// probeFails says that memcached runs, and did so while the pod was ready for the last time.
func (s *server) probeFails() *server { return s.down().runningSince(now.Add(-time.Hour), now) }

// restarted says that memcached started again, and is not ready yet.
func (s *server) restarted() *server { return s.down().runningSince(now, now) }

func (s *server) runningSince(started, notReady time.Time) *server {
	s.Status.ContainerStatuses[0].State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(started)}
	s.Status.Conditions[0].LastTransitionTime = metav1.NewTime(notReady)
	return s
}

// agentDown says that only the agent is not ready.
func (s *server) agentDown() *server {
	s.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "agent", State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}
	return s.notReady()
}

// unreachable says that the node is unreachable: the control plane sets Ready to False, and the last report of the
// kubelet on the containers remains.
func (s *server) unreachable() *server {
	s.Status.Conditions[1].Status = corev1.ConditionFalse
	return s
}

// unreachableWhileStarting says that memcached was starting when the node became unreachable.
func (s *server) unreachableWhileStarting() *server {
	s.Status.ContainerStatuses[0].Ready = false
	return s.unreachable()
}

func (s *server) unscheduled() *server {
	s.Spec.NodeName, s.Status = "", corev1.PodStatus{}
	return s
}

func (s *server) terminating() *server {
	s.DeletionTimestamp = &metav1.Time{Time: now}
	return s
}

// rolloutOf returns a StatefulSet whose newest template is "new", and its pods as in the informer cache.
func rolloutOf(size, minReady int32, servers []*server) (*appsv1.StatefulSet, []corev1.Pod) {
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "cache", UID: "set", Generation: 4}}
	set.Spec.Replicas, set.Spec.MinReadySeconds = ptr.To(size), minReady
	set.Status.ObservedGeneration = 4
	set.Spec.Template.Annotations = map[string]string{v1alpha1.TemplateAnnotation: "new"}
	var pods []corev1.Pod
	for i, s := range servers {
		if s != missing {
			s.Name = fmt.Sprintf("cache-%d", i)
			pods = append(pods, *status.StripPod(&s.Pod))
		}
	}
	return set, pods
}

func podNames(pods []*corev1.Pod) (list []string) {
	for _, pod := range pods {
		list = append(list, pod.Name)
	}
	return list
}

// TestNextRollout covers the rules in the comment of NextStep, except warmUp.
func TestNextRollout(t *testing.T) {
	t.Parallel()
	sixOutdated := func(change func(*server) *server) (list []*server) {
		for range 6 {
			list = append(list, change(outdated()))
		}
		return list
	}
	for name, tt := range map[string]struct {
		size                     int32
		servers                  []*server // by ordinal
		maxUnavailable, minReady int32
		want                     []string
		wait                     time.Duration
		change                   func(*appsv1.StatefulSet, []corev1.Pod)
	}{
		"all updated":           {size: 3, servers: []*server{updated(), updated(), updated()}},
		"highest ordinal first": {size: 3, servers: []*server{outdated(), outdated(), outdated()}, want: []string{"cache-2"}},
		"one after the other":   {size: 3, servers: []*server{outdated(), outdated(), updated()}, want: []string{"cache-1"}},
		"two may be unavailable": {size: 3, servers: []*server{outdated(), outdated(), outdated()}, maxUnavailable: 2,
			want: []string{"cache-2", "cache-1"}},
		"more may be unavailable than exist": {size: 2, servers: []*server{outdated(), outdated()}, maxUnavailable: 1000,
			want: []string{"cache-1", "cache-0"}},
		"an updated one is not ready": {size: 3, servers: []*server{outdated(), outdated(), updated().notReady()}},
		"one is missing":              {size: 3, servers: []*server{outdated(), outdated(), missing}},
		"one is terminating":          {size: 3, servers: []*server{outdated(), outdated(), outdated().terminating()}},
		"one is down, which uses the budget": {size: 3,
			servers: []*server{outdated().down(), outdated(), outdated()}, want: []string{"cache-0"}},
		"two are down, three may be unavailable": {size: 4, maxUnavailable: 3,
			servers: []*server{outdated().down(), outdated(), outdated().down(), outdated()},
			want:    []string{"cache-2", "cache-0", "cache-3"}},
		"all are down": {size: 3, servers: []*server{outdated().down(), outdated().down(), outdated().down()},
			want: []string{"cache-2", "cache-1", "cache-0"}},
		"none is scheduled": {size: 2, servers: []*server{outdated().unscheduled(), outdated().unscheduled()},
			want: []string{"cache-1", "cache-0"}},
		"all agents are down":       {size: 6, servers: sixOutdated((*server).agentDown), want: []string{"cache-5"}},
		"all nodes are unreachable": {size: 6, servers: sixOutdated((*server).unreachable), want: []string{"cache-5"}},
		"all nodes are unreachable, memcached was starting": {size: 6,
			servers: sixOutdated((*server).unreachableWhileStarting), want: []string{"cache-5"}},
		"one node is unreachable": {size: 3, servers: []*server{outdated().unreachable(), outdated(), outdated()},
			want: []string{"cache-0"}},
		"one node is unreachable, two may be unavailable": {size: 3, maxUnavailable: 2,
			servers: []*server{outdated().unreachable(), outdated(), outdated()}, want: []string{"cache-0", "cache-2"}},
		"all probes fail": {size: 6, servers: sixOutdated((*server).probeFails), want: []string{"cache-5"}},
		"two were restarted": {size: 3, servers: []*server{outdated().restarted(), outdated().restarted(), updated()},
			want: []string{"cache-1", "cache-0"}},
		"all agents are down, one server is terminating": {size: 3,
			servers: []*server{outdated().agentDown(), outdated().agentDown(), outdated().agentDown().terminating()}},
		"updated one not ready for minReadySeconds": {size: 3, minReady: 30, wait: 20 * time.Second,
			servers: []*server{outdated(), outdated(), updated().readyFor(10 * time.Second)}},
		"updated one ready for minReadySeconds": {size: 3, minReady: 30, want: []string{"cache-1"},
			servers: []*server{outdated(), outdated(), updated().readyFor(30 * time.Second)}},
		"outdated ones not ready for minReadySeconds": {size: 2, minReady: 30, want: []string{"cache-1"},
			servers: []*server{outdated().readyFor(time.Second), outdated().readyFor(time.Second)}},
		"all updated, one not ready for minReadySeconds": {size: 2, minReady: 30,
			servers: []*server{updated(), updated().readyFor(time.Second)}},
		"outdated one beyond the size": {size: 2, servers: []*server{outdated(), updated(), outdated()},
			want: []string{"cache-0"}},
		"pod of another workload": {size: 2, servers: []*server{updated(), outdated()},
			change: func(_ *appsv1.StatefulSet, pods []corev1.Pod) { pods[1].OwnerReferences[0].UID = "other" }},
		"template not observed by the controller": {size: 2, servers: []*server{outdated(), outdated()},
			change: func(s *appsv1.StatefulSet, _ []corev1.Pod) { s.Generation++ }},
		"StatefulSet being deleted": {size: 2, servers: []*server{outdated(), outdated()},
			change: func(s *appsv1.StatefulSet, _ []corev1.Pod) { s.DeletionTimestamp = &metav1.Time{Time: now} }},
	} {
		set, pods := rolloutOf(tt.size, tt.minReady, tt.servers)
		if tt.change != nil {
			tt.change(set, pods)
		}
		s := nextRollout(set, pods, v1alpha1.RolloutSpec{MaxUnavailable: max(tt.maxUnavailable, 1)}, now)
		if got := podNames(s.Replace); !slices.Equal(got, tt.want) || s.Wait != tt.wait {
			t.Errorf("%s: got %v and a wait of %s, want %v and %s", name, got, s.Wait, tt.want, tt.wait)
		}
	}
}

// withDrain says that the kubelet asks the agent before it stops the server.
func (s *server) withDrain() *server {
	metav1.SetMetaDataAnnotation(&s.ObjectMeta, v1alpha1.DrainAnnotation, "token")
	return s
}

// kubeletWaits says that the kubelet stops the memcached that started at some time, and waits.
func (s *server) kubeletWaits(started time.Time) *server {
	metav1.SetMetaDataAnnotation(&s.ObjectMeta, v1alpha1.DrainingAnnotation, started.UTC().Format(time.RFC3339))
	return s
}

// running says since when memcached runs.
func (s *server) running(since time.Time) *server {
	s.Status.ContainerStatuses[0].State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(since)}
	return s
}

// TestToStop: a server that is about to stop has items to move while proxies use it, and may then stop. A server whose
// container was restarted in the same pod is used again.
func TestToStop(t *testing.T) {
	t.Parallel()
	before := now.Add(-time.Minute)
	servers := []*server{updated().withDrain(), updated().withDrain().terminating(),
		updated().withDrain().terminating(), updated().terminating(), updated().withDrain().down().terminating(),
		updated().withDrain().running(before).kubeletWaits(before),
		updated().withDrain().running(now).kubeletWaits(before),
		updated().withDrain().running(before).kubeletWaits(before).unreachable(),
		updated().running(before).kubeletWaits(before), updated().withDrain().kubeletWaits(before)}
	set, pods := rolloutOf(int32(len(servers)), 0, servers)
	got := podNames(MayStop(pods, func(name string) bool { return name == "cache-1" }))
	if !slices.Equal(got, []string{"cache-2", "cache-5", "cache-7"}) {
		t.Errorf("lets %v stop, want those that are about to stop, except cache-1", got)
	}
	outdated := mustBeEmptied(set, pods)
	for i := range pods {
		if want := slices.Contains([]int{1, 2, 5, 7}, i); outdated[i] != want {
			t.Errorf("server %d: got outdated %t, want %t", i, outdated[i], want)
		}
	}
}

// TestUnusedToReplace: where items move before a server is replaced, only an outdated server that no proxy uses, or
// that is down, is deleted.
func TestUnusedToReplace(t *testing.T) {
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "cache", UID: "set"}}
	set.Spec.Template.Annotations = map[string]string{v1alpha1.TemplateAnnotation: "new"}
	var pods []corev1.Pod
	for i, s := range []*server{outdated(), outdated(), outdated().down(), outdated().terminating(), updated(),
		outdated().agentDown()} {
		s.Name = fmt.Sprintf("cache-%d", i)
		pods = append(pods, *status.StripPod(&s.Pod))
	}
	got := podNames(unusedToReplace(set, pods, func(name string) bool { return name != "cache-1" }))
	if want := []string{"cache-1", "cache-2"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	outdated := mustBeEmptied(set, pods)
	for i, want := range []bool{true, true, false, true, false, true} {
		if outdated[i] != want {
			t.Errorf("server %d: got outdated %t, want %t", i, outdated[i], want)
		}
	}
	set.Generation++
	if got := unusedToReplace(set, pods, func(string) bool { return false }); len(got) > 0 {
		t.Errorf("got %d servers to delete before the controller has observed the template", len(got))
	}
}
