package rollout

import (
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// server is a pod of the StatefulSet cache; its methods change it.
type server struct{ corev1.Pod }

func newServer(revision string) *server {
	s := &server{corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Labels:          map[string]string{appsv1.StatefulSetRevisionLabel: revision},
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

// down is a server whose memcached the kubelet reports as not ready.
func (s *server) down() *server {
	s.Status.ContainerStatuses[0].Ready = false
	return s.notReady()
}

// agentDown is a server of which the agent alone is not ready.
func (s *server) agentDown() *server {
	s.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "agent", State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}
	return s.notReady()
}

// outOfContact is a server on a node that the control plane has not heard of: the kubelet's last report stands.
func (s *server) outOfContact() *server {
	s.Status.Conditions[1].Status = corev1.ConditionFalse
	return s
}

// restartedOutOfContact is such a server whose memcached had just started when contact was lost.
func (s *server) restartedOutOfContact() *server {
	s.Status.ContainerStatuses[0].Ready = false
	return s.outOfContact()
}

func (s *server) unscheduled() *server {
	s.Spec.NodeName, s.Status = "", corev1.PodStatus{}
	return s
}

func (s *server) deleted() *server {
	s.DeletionTimestamp = &metav1.Time{Time: now}
	return s
}

func TestReplace(t *testing.T) {
	t.Parallel()
	six := func(s func(*server) *server) (list []*server) {
		for range 6 {
			list = append(list, s(outdated()))
		}
		return list
	}
	for name, tt := range map[string]struct {
		size                     int32
		servers                  []*server // by number; nil for none
		maxUnavailable, minReady int32
		want                     []string
		wait                     time.Duration
		change                   func(*appsv1.StatefulSet, []corev1.Pod)
	}{
		"nothing to do":        {size: 3, servers: []*server{updated(), updated(), updated()}},
		"highest number first": {size: 3, servers: []*server{outdated(), outdated(), outdated()}, want: []string{"cache-2"}},
		"one after the other":  {size: 3, servers: []*server{outdated(), outdated(), updated()}, want: []string{"cache-1"}},
		"as many as allowed": {size: 3, servers: []*server{outdated(), outdated(), outdated()}, maxUnavailable: 2,
			want: []string{"cache-2", "cache-1"}},
		"more than there are": {size: 2, servers: []*server{outdated(), outdated()}, maxUnavailable: 1000,
			want: []string{"cache-1", "cache-0"}},
		"a new one is not ready": {size: 3, servers: []*server{outdated(), outdated(), updated().notReady()}},
		"one is missing":         {size: 3, servers: []*server{outdated(), outdated(), nil}},
		"one is being deleted":   {size: 3, servers: []*server{outdated(), outdated(), outdated().deleted()}},
		"one that is down goes first, and takes the budget": {size: 3,
			servers: []*server{outdated().down(), outdated(), outdated()}, want: []string{"cache-0"}},
		"some down beside the budget": {size: 4, maxUnavailable: 3,
			servers: []*server{outdated().down(), outdated(), outdated().down(), outdated()},
			want:    []string{"cache-2", "cache-0", "cache-3"}},
		"all down": {size: 3, servers: []*server{outdated().down(), outdated().down(), outdated().down()},
			want: []string{"cache-2", "cache-1", "cache-0"}},
		"never scheduled": {size: 2, servers: []*server{outdated().unscheduled(), outdated().unscheduled()},
			want: []string{"cache-1", "cache-0"}},
		"all agents down":       {size: 6, servers: six((*server).agentDown), want: []string{"cache-5"}},
		"a zone out of contact": {size: 6, servers: six((*server).outOfContact), want: []string{"cache-5"}},
		"out of contact, memcached starting": {size: 6, servers: six((*server).restartedOutOfContact),
			want: []string{"cache-5"}},
		"one of those goes at a time": {size: 3,
			servers: []*server{outdated().agentDown(), outdated().agentDown(), outdated().agentDown().deleted()}},
		"not ready for long enough": {size: 3, minReady: 30, wait: 20 * time.Second,
			servers: []*server{outdated(), outdated(), updated().readyFor(10 * time.Second)}},
		"ready for long enough": {size: 3, servers: []*server{outdated(), outdated(), updated().readyFor(30 * time.Second)},
			minReady: 30, want: []string{"cache-1"}},
		"outdated ones that have just become ready": {size: 2, minReady: 30, want: []string{"cache-1"},
			servers: []*server{outdated().readyFor(time.Second), outdated().readyFor(time.Second)}},
		"nothing waits when all are new": {size: 2, servers: []*server{updated(), updated().readyFor(time.Second)},
			minReady: 30},
		"a server to be removed": {size: 2, servers: []*server{outdated(), updated(), outdated()}, want: []string{"cache-0"}},
		"a pod of another workload": {size: 2, servers: []*server{updated(), outdated()},
			change: func(_ *appsv1.StatefulSet, pods []corev1.Pod) { pods[1].OwnerReferences[0].UID = "other" }},
		"a template that its controller has not seen": {size: 2, servers: []*server{outdated(), outdated()},
			change: func(s *appsv1.StatefulSet, _ []corev1.Pod) { s.Generation++ }},
		"a StatefulSet that is being deleted": {size: 2, servers: []*server{outdated(), outdated()},
			change: func(s *appsv1.StatefulSet, _ []corev1.Pod) { s.DeletionTimestamp = &metav1.Time{Time: now} }},
	} {
		set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "cache", UID: "set", Generation: 4}}
		set.Spec.Replicas, set.Spec.MinReadySeconds = ptr.To(tt.size), tt.minReady
		set.Status = appsv1.StatefulSetStatus{ObservedGeneration: 4, UpdateRevision: "new"}
		var pods []corev1.Pod
		for i, s := range tt.servers {
			if s != nil {
				s.Name = fmt.Sprintf("cache-%d", i)
				pods = append(pods, *status.StripPod(&s.Pod)) // as the cache has it
			}
		}
		if tt.change != nil {
			tt.change(set, pods)
		}
		replace, wait := Replace(set, pods, max(tt.maxUnavailable, 1), now)
		var got []string
		for _, pod := range replace {
			got = append(got, pod.Name)
		}
		if !slices.Equal(got, tt.want) || wait != tt.wait {
			t.Errorf("%s: replaces %v and waits %s, want %v and %s", name, got, wait, tt.want, tt.wait)
		}
	}
}
