package steps

import (
	"fmt"
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

// viewOf is a View of the StatefulSet "cache", whose newest template is "new", and of its servers, by ordinal, as in
// the informer cache. Each has a Service.
func viewOf(servers ...*server) View {
	v := View{Memcached: &v1alpha1.Memcached{}, TemplateApplied: true, Now: now,
		Reports: map[string]Report{}}
	v.Memcached.Name, v.Memcached.Generation = "cache", 1
	v.Memcached.Spec.Size = ptr.To(int32(len(servers)))
	v.Memcached.Spec.Rollout.MaxUnavailable = 1
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "cache", UID: "set", Generation: 4}}
	set.Spec.Replicas, set.Status.ObservedGeneration = v.Memcached.Spec.Size, 4
	set.Spec.Template.Annotations = map[string]string{v1alpha1.TemplateAnnotation: "new"}
	v.Workload = set
	for i, s := range servers {
		if s != missing {
			s.Name = fmt.Sprintf("cache-%d", i)
			v.Servers = append(v.Servers, status.StripPod(s.DeepCopy()))
		}
	}
	v.Service = func(string) (*corev1.Service, bool) {
		return &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1",
			Ports: []corev1.ServicePort{{Name: names.Port, Port: 11211}}}}, true
	}
	return v
}

func (v View) statefulSet() *appsv1.StatefulSet { return v.Workload.(*appsv1.StatefulSet) }

// counted returns the view with the status that the controller of the StatefulSet writes, unless it has one.
func counted(v View) View {
	is := &v.statefulSet().Status
	if is.Replicas > 0 {
		return v
	}
	for _, pod := range v.Servers {
		is.Replicas++
		if pod.DeletionTimestamp.IsZero() {
			is.UpdatedReplicas++ // no pod has a label with its revision
		}
		if status.IsTrue(pod, corev1.PodReady) {
			since := status.Since(pod, corev1.PodReady, corev1.ConditionTrue)
			is.ReadyReplicas++
			if now.Sub(since) >= time.Duration(v.statefulSet().Spec.MinReadySeconds)*time.Second {
				is.AvailableReplicas++
			}
		}
	}
	return v
}

func podNames(pods []*corev1.Pod) (list []string) {
	for _, pod := range pods {
		list = append(list, pod.Name)
	}
	return list
}

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
func (s *server) probeFails() *server {
	return s.down().running(now.Add(-time.Hour)).notReadySince(now)
}

// restarted says that memcached started again, and is not ready yet.
func (s *server) restarted() *server { return s.down().running(now).notReadySince(now) }

// running says since when memcached runs, and notReadySince since when its containers are not ready.
func (s *server) running(since time.Time) *server {
	s.Status.ContainerStatuses[0].State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(since)}
	return s
}

func (s *server) notReadySince(at time.Time) *server {
	s.Status.Conditions[0].LastTransitionTime = metav1.NewTime(at)
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

func (s *server) annotated(key, value string) *server {
	metav1.SetMetaDataAnnotation(&s.ObjectMeta, key, value)
	return s
}

// withDrain says that the kubelet asks the agent before it stops the server.
func (s *server) withDrain() *server { return s.annotated(v1alpha1.DrainAnnotation, "token") }

// kubeletWaits says that the kubelet stops the memcached that started at some time, and waits.
func (s *server) kubeletWaits(started time.Time) *server {
	return s.annotated(v1alpha1.DrainingAnnotation, started.UTC().Format(time.RFC3339))
}
