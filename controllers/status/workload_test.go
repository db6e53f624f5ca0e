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
	"github.com/example/memcached-operator/controllers/names"
)

// TestLossIsNotARollout: the status of a StatefulSet does not count a terminating server as updated. Unless the server
// has an older template, it is lost, and not a part of a rollout.
func TestLossIsNotARollout(t *testing.T) {
	set := &appsv1.StatefulSet{}
	set.Status = appsv1.StatefulSetStatus{Replicas: 2, ReadyReplicas: 1}
	set.Spec.Template.Annotations = map[string]string{v1alpha1.TemplateAnnotation: "new"}
	pod := func(template string, terminating bool) *corev1.Pod {
		p := &corev1.Pod{}
		p.Annotations = map[string]string{v1alpha1.TemplateAnnotation: template}
		if terminating {
			p.DeletionTimestamp = &metav1.Time{Time: start}
		}
		return p
	}
	for name, c := range map[string]struct {
		pods []*corev1.Pod
		want bool
	}{
		"a loss":                        {[]*corev1.Pod{pod("new", false), pod("new", true)}, false},
		"a rollout":                     {[]*corev1.Pod{pod("new", false), pod("old", false)}, true},
		"the last server to be updated": {[]*corev1.Pod{pod("new", false), pod("old", true)}, true},
	} {
		servers := ReadComponent(set, c.pods)
		if got := servers.hasOutdatedPods(); got != c.want || servers.State.Updated != 1 {
			t.Errorf("%s: got %t and %d updated, want %t and 1", name, got, servers.State.Updated, c.want)
		}
	}
}

// TestIsOutdated: a server is outdated if another template was applied since, or somebody ran kubectl rollout restart.
func TestIsOutdated(t *testing.T) {
	t.Parallel()
	set, pod := &appsv1.StatefulSet{}, &corev1.Pod{}
	set.Spec.Template.Annotations = map[string]string{v1alpha1.TemplateAnnotation: "new", "of the user": "new"}
	for _, tt := range []struct {
		key, value string
		want       bool
	}{{"of the user", "old", true}, {v1alpha1.TemplateAnnotation, "new", false}, {kubectlRestartedAt, "now", true}} {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, tt.key, tt.value)
		if got := IsOutdated(set, pod); got != tt.want {
			t.Errorf("with %v: got %t, want %t", pod.Annotations, got, tt.want)
		}
	}
}

// TestIsOutdatedByRevision: a server that was created from a template that somebody else changed is outdated. One that
// gets or got another memory in place is not.
func TestIsOutdatedByRevision(t *testing.T) {
	t.Parallel()
	set := &appsv1.StatefulSet{}
	set.Status.UpdateRevision = "new"
	memcached := func(memory string) []corev1.Container {
		return []corev1.Container{{Name: names.Container, Args: []string{"-m", memory}}}
	}
	set.Spec.Template.Spec.Containers = memcached("64")
	for name, tt := range map[string]struct {
		revision, memory, requested string
		want                        bool
	}{
		"of this revision":             {"new", "64", "", false},
		"of another one":               {"tampered", "64", "", true},
		"with another memory":          {"old", "32", "", false},
		"which got the memory":         {"old", "32", "64 2 done", false},
		"which got the memory it had":  {"old", "64", "64 3 done", false},
		"of this revision, and larger": {"new", "128", "", false},
	} {
		pod := &corev1.Pod{}
		pod.Labels = map[string]string{appsv1.StatefulSetRevisionLabel: tt.revision}
		pod.Annotations = map[string]string{v1alpha1.MemoryAnnotation: tt.requested}
		pod.Spec.Containers = memcached(tt.memory)
		if got := IsOutdated(set, pod); got != tt.want {
			t.Errorf("%s: got %t, want %t", name, got, tt.want)
		}
	}
}

// TestMinReadySecondsDoNotStall: a rollout that waits for minReadySeconds between two servers is not stalled.
func TestMinReadySecondsDoNotStall(t *testing.T) {
	s := newScenario(t)
	s.mc.Spec.Rollout.MinReadySeconds, s.mc.Spec.Rollout.ProgressDeadlineSeconds = 590, 600
	servers(3, 1, 3)(s)
	nextReconcile(s)    // the first new server became ready
	servers(3, 1, 2)(s) // the next one is replaced after 590 s
	for _, at := range []int{591, 620, 1188} {
		s.now = start.Add(time.Duration(at) * time.Second)
		s.mc.Status = s.status()
		if c := meta.FindStatusCondition(s.mc.Status.Conditions, v1alpha1.ConditionStalled); c != nil {
			t.Errorf("after %d s: got Stalled with %q, want no such condition", at, c.Message)
		}
	}
	s.now = start.Add(1191 * time.Second)
	if !meta.IsStatusConditionTrue(s.status().Conditions, v1alpha1.ConditionStalled) {
		t.Error("after 1191 s: got no Stalled, want it True: the server did not become ready")
	}
}

// TestUnreachableNode: a terminating server of a StatefulSet on an unreachable node is the cause, because it is not
// replaced. A server of a Deployment is replaced.
func TestUnreachableNode(t *testing.T) {
	p := &corev1.Pod{}
	p.Name, p.Spec.NodeName, p.DeletionTimestamp = "cache-1", "n1", &metav1.Time{Time: start}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse},
		{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}}
	if got := ReadComponent(nil, []*corev1.Pod{p}).cause(); got != "" {
		t.Errorf("Deployment: got cause %q, want none", got)
	}
	p.Labels = map[string]string{appsv1.StatefulSetRevisionLabel: "new"}
	const want = "cache-1: node n1 is unreachable"
	if got := ReadComponent(nil, []*corev1.Pod{p}).cause(); got != want {
		t.Errorf("StatefulSet: got cause %q, want %q", got, want)
	}
}

// TestTerminationMessage: the informer cache keeps the termination message of a container. If the pod mounts a Secret,
// a command replaces the message.
func TestTerminationMessage(t *testing.T) {
	const message = "failed to set rlimit"
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "cache-1", Namespace: "shop"}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "memcached", LastTerminationState: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: 71, Message: message}}}}
	if got := podCause(StripPod(p)); !strings.Contains(got, message) {
		t.Errorf("got cause %q, want %q in it", got, message)
	}
	p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}}}
	const want = "memcached last exited with code 71 (): " +
		"kubectl logs --previous --namespace shop cache-1 -c memcached says why"
	if got := podCause(StripPod(p)); got != want {
		t.Errorf("with a Secret: got cause %q, want %q", got, want)
	}
}
