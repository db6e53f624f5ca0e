package status

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// TestLossIsNoRollout: a StatefulSet counts a terminating server among its servers, but not among the updated ones.
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
		if got := Read(set, c.pods...).hasOutdatedPods(); got != c.want {
			t.Errorf("%s: rolls out is %t, want %t", name, got, c.want)
		}
	}
}

// TestPaceIsProgress: a rollout that waits for minReadySeconds between two servers is not stalled.
func TestPaceIsProgress(t *testing.T) {
	w := newWorld(t)
	w.mc.Spec.Rollout.MinReadySeconds, w.mc.Spec.Rollout.ProgressDeadlineSeconds = 590, 600
	runs(3, 1, 3)(w)
	then(w)          // the first new server became ready
	runs(3, 1, 2)(w) // the next one is replaced after 590 s
	for _, at := range []int{591, 620, 1188} {
		w.now = start.Add(time.Duration(at) * time.Second)
		w.mc.Status = w.status()
		if c := meta.FindStatusCondition(w.mc.Status.Conditions, v1alpha1.ConditionStalled); c != nil {
			t.Errorf("after %d s: a rollout at its pace is stalled: %s", at, c.Message)
		}
	}
	w.now = start.Add(1191 * time.Second)
	if !meta.IsStatusConditionTrue(w.status().Conditions, v1alpha1.ConditionStalled) {
		t.Error("a server that does not come back stalls no rollout")
	}
}

// TestLostServerIsNamed: a StatefulSet's server on a lost node is evicted, but neither deleted nor replaced. A
// Deployment's server is replaced.
func TestLostServerIsNamed(t *testing.T) {
	p := corev1.Pod{}
	p.Name, p.Spec.NodeName, p.DeletionTimestamp = "cache-1", "n1", &metav1.Time{Time: start}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse},
		{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}}
	if got := causeOf(nil, []corev1.Pod{p}); got != "" {
		t.Errorf("what keeps a Deployment from being ready is %q", got)
	}
	p.Labels = map[string]string{appsv1.StatefulSetRevisionLabel: "new"}
	if got := causeOf(nil, []corev1.Pod{p}); got != "cache-1: node n1 is unreachable" {
		t.Errorf("what keeps a StatefulSet from being ready is %q", got)
	}
}

// TestWordsOfSecrets: the last words of a container are kept where it cannot read a Secret, and only there.
func TestWordsOfSecrets(t *testing.T) {
	const words = "failed to set rlimit"
	p := &corev1.Pod{}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "memcached", LastTerminationState: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: 71, Message: words}}}}
	if got := podCause(StripPod(p)); !strings.Contains(got, words) {
		t.Errorf("the cause is %q", got)
	}
	p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}}}
	if got := podCause(StripPod(p)); strings.Contains(got, words) || got == "" {
		t.Errorf("beside a Secret, the cause is %q", got)
	}
}
