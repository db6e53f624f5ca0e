package status

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// TestLossIsNoRollout: a StatefulSet counts a server that ends among its servers, and not among the updated ones.
func TestLossIsNoRollout(t *testing.T) {
	set := &appsv1.StatefulSet{}
	set.Status = appsv1.StatefulSetStatus{Replicas: 2, UpdatedReplicas: 1, ReadyReplicas: 1, UpdateRevision: "new"}
	pod := func(revision string, ends bool) corev1.Pod {
		p := corev1.Pod{}
		p.Labels = map[string]string{appsv1.StatefulSetRevisionLabel: revision}
		if ends {
			p.DeletionTimestamp = &metav1.Time{}
		}
		return p
	}
	for name, c := range map[string]struct {
		pods []corev1.Pod
		want bool
	}{
		"a loss":                        {[]corev1.Pod{pod("new", false), pod("new", true)}, false},
		"a rollout":                     {[]corev1.Pod{pod("new", false), pod("old", false)}, true},
		"the last server to be updated": {[]corev1.Pod{pod("new", false), pod("old", true)}, true},
	} {
		if got := Read(set, c.pods...).mixed(); got != c.want {
			t.Errorf("%s: rolls out is %t, want %t", name, got, c.want)
		}
	}
}

// TestPaceIsProgress: a rollout that waits for minReadySeconds between two servers gets on.
func TestPaceIsProgress(t *testing.T) {
	w := newWorld(t)
	w.mc.Spec.Workload = v1alpha1.WorkloadStatefulSet
	w.mc.Spec.Rollout.MinReadySeconds, w.mc.Spec.Rollout.ProgressDeadlineSeconds = 590, 600
	set := &appsv1.StatefulSet{}
	set.Generation, set.Spec.Replicas, set.Spec.MinReadySeconds = 1, ptr.To[int32](3), 590
	set.Status = appsv1.StatefulSetStatus{ObservedGeneration: 1, UpdateRevision: "new"}
	pods := []corev1.Pod{{}, {}, {}}
	for i, revision := range []string{"old", "old", "new"} {
		pods[i].Labels = map[string]string{appsv1.StatefulSetRevisionLabel: revision}
		pods[i].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(start)}}
	}
	status := func(after time.Duration) v1alpha1.MemcachedStatus {
		w.now = start.Add(after)
		return Compute(w.mc, Observed{Workload: Read(set, pods...), Pods: pods}, w.now)
	}
	w.mc.Status = status(0)                                     // the last server became ready
	pods[1].Status.Conditions[0].Status = corev1.ConditionFalse // the next one goes after 590 s
	w.mc.Status = status(591 * time.Second)
	w.mc.Status = status(620 * time.Second)
	if c := meta.FindStatusCondition(w.mc.Status.Conditions, v1alpha1.ConditionStalled); c != nil {
		t.Errorf("a rollout at its pace is stalled: %s", c.Message)
	}
	w.mc.Status = status(1191 * time.Second)
	if !meta.IsStatusConditionTrue(w.mc.Status.Conditions, v1alpha1.ConditionStalled) {
		t.Error("a server that does not come back stalls no rollout")
	}
}

// TestLostServerIsNamed: the server of a StatefulSet on a lost node is evicted and never gone, and no other takes its
// place. That of a Deployment is replaced.
func TestLostServerIsNamed(t *testing.T) {
	p := corev1.Pod{}
	p.Name, p.Spec.NodeName, p.DeletionTimestamp = "cache-1", "n1", &metav1.Time{Time: start}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse},
		{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}}
	if got := causeOf(nil, []corev1.Pod{p}); got != "" {
		t.Errorf("what keeps a Deployment from being ready is %q", got)
	}
	p.Labels = map[string]string{appsv1.StatefulSetRevisionLabel: "new"}
	if got := causeOf(nil, []corev1.Pod{p}); got != "cache-1: node n1 does not answer" {
		t.Errorf("what keeps a StatefulSet from being ready is %q", got)
	}
}
