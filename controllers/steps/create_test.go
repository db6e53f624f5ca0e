package steps

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// TestCreate covers the rules in the comment of create.
func TestCreate(t *testing.T) {
	t.Parallel()
	type list = []*server
	retried := func(ago time.Duration) func(*View) {
		return func(v *View) {
			v.Workload.SetAnnotations(map[string]string{v1alpha1.RetriedAnnotation: now.Add(-ago).Format(time.RFC3339)})
		}
	}
	deployment := func(failure corev1.ConditionStatus) *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "cache-proxy"}}
		d.Spec.Template.Labels = map[string]string{"of": "template"}
		d.Spec.Replicas = ptr.To(int32(3))
		d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure, Status: failure,
			Message: "quota"}}
		return d
	}
	const notYet = "; its events say why"
	for name, tt := range map[string]struct {
		servers list // by ordinal
		change  func(*View)
		creates string
		retry   bool
		wait    time.Duration
		says    string
	}{
		"all exist":      {list{updated(), outdated().notReady()}, nil, "", false, 0, ""},
		"one terminates": {list{updated(), updated().terminating()}, nil, "", false, 0, ""},
		"some are missing": {list{updated(), missing, missing}, nil, "cache-1", true, Later,
			"StatefulSet cache has yet"},
		"retried just now":      {list{missing}, retried(29 * time.Second), "cache-0", false, Later, "StatefulSet"},
		"retried some time ago": {list{missing}, retried(30 * time.Second), "cache-0", true, Later, "StatefulSet"},
		"retried in the future": {list{missing}, retried(-time.Hour), "cache-0", true, Later, "StatefulSet"},
		"something has progressed": {list{missing}, func(v *View) { v.LastProgress = now.Add(-3 * time.Second) }, "", false,
			2 * time.Second, ""},
		"not observed": {list{missing}, func(v *View) { v.statefulSet().Generation++ }, "", false, 0, ""},
		"paused":       {list{missing}, func(v *View) { v.Memcached.Spec.Paused = true }, "", false, 0, ""},
		"being deleted": {list{missing}, func(v *View) {
			v.statefulSet().DeletionTimestamp = &metav1.Time{Time: now}
		}, "", false, 0, ""},
		"no workload":             {list{missing}, func(v *View) { v.Workload = nil }, "", false, 0, ""},
		"proxies of a Deployment": {nil, func(v *View) { v.Proxy = deployment(corev1.ConditionFalse) }, "", false, 0, ""},
		"their ReplicaSet is refused": {nil, func(v *View) {
			d := deployment(corev1.ConditionFalse)
			d.Generation, d.Status.Conditions[0].Reason = 1, "ReplicaSetCreateError"
			v.Proxy = d
		}, "cache-proxy-0", true, Later, "Deployment cache-proxy has yet"},
		"proxies are refused": {nil, func(v *View) { v.Proxy = deployment(corev1.ConditionTrue) }, "cache-proxy-0", true,
			Later, "Deployment cache-proxy has yet"},
	} {
		v := viewOf(tt.servers...)
		v.statefulSet().Namespace, v.LastProgress = "ns", now.Add(-createDelay)
		v.statefulSet().Spec.Template.Labels = map[string]string{"of": "template"}
		if tt.change != nil {
			tt.change(&v)
		}
		s, busy := create(v)
		creates, retry := "", false
		if pod := s.Create; pod != nil {
			creates, retry = pod.Name, s.Retry
			if owner := pod.OwnerReferences[0]; pod.Name != owner.Name+creates[len(creates)-2:] || !*owner.Controller ||
				owner.BlockOwnerDeletion != nil || pod.Namespace != "ns" ||
				pod.Labels["of"] != "template" {
				t.Errorf("%s: got the pod %+v", name, pod.ObjectMeta)
			}
		}
		if creates != tt.creates || retry != tt.retry || s.Wait != tt.wait || busy || s.IsIrreversible() ||
			!strings.HasPrefix(s.Progress.Text, tt.says) || strings.HasSuffix(s.Progress.Text, notYet) != (tt.says != "") {
			t.Errorf("%s: creates %q, retries %t, waits %s, says %q, want %+v", name, creates, retry, s.Wait,
				s.Progress.Text, tt)
		}
	}
}
