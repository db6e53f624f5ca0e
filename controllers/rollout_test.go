package controllers

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// setOf is a StatefulSet with its pods, in the order of their numbers: "old" or "new" by the template, "-" for none,
// with ! for one that is not ready, ~ for one that is being deleted, and a number for the seconds of being ready.
func setOf(size int32, now time.Time, servers ...string) (*appsv1.StatefulSet, []corev1.Pod) {
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "cache", UID: "set", Generation: 4}}
	set.Spec.Replicas = ptr.To(size)
	set.Status = appsv1.StatefulSetStatus{ObservedGeneration: 4, UpdateRevision: "new"}
	var pods []corev1.Pod
	for i, s := range servers {
		if s == "-" {
			continue
		}
		seconds := 3600
		if _, text, ok := strings.Cut(s, " "); ok {
			_, _ = fmt.Sscan(text, &seconds)
		}
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("cache-%d", i),
			Labels:          map[string]string{appsv1.StatefulSetRevisionLabel: strings.Trim(s, "!~ 0123456789")},
			OwnerReferences: []metav1.OwnerReference{{UID: "set", Controller: ptr.To(true)}}}}
		if strings.Contains(s, "~") {
			p.DeletionTimestamp = &metav1.Time{Time: now}
		}
		if !strings.Contains(s, "!") {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(now.Add(-time.Duration(seconds) * time.Second))}}
		}
		pods = append(pods, p)
	}
	return set, pods
}

// TestStatefulSet: the operator replaces the servers of a StatefulSet one at a time, and reports each step.
func TestStatefulSet(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, workload: StatefulSet}")
	f.mustReconcile()
	if !get[corev1.Service](f).Spec.PublishNotReadyAddresses {
		t.Error("the name of a server that restarts does not resolve")
	}
	f.servers("old", "old", "old")
	f.mustReconcile()
	f.wantRequests("patch status")
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	host := ".cache." + f.mc.Namespace + ".svc:11211"
	addresses := []string{"cache-0" + host, "cache-1" + host, "cache-2" + host}

	f.patch(`{"spec":{"memory":"128Mi"}}`)
	f.mustReconcile()
	f.wantRequests("apply StatefulSet", "patch status")
	for _, step := range []struct {
		servers  []string
		requests []string
	}{
		{[]string{"old", "old", "old"}, []string{"get StatefulSet", "delete Pod"}},
		{[]string{"old", "old", "-"}, nil},
		{[]string{"old", "old", "!new"}, nil},
		{[]string{"old", "old", "new"}, []string{"get StatefulSet", "delete Pod", "patch status"}},
		{[]string{"!old", "new", "new"}, []string{"get StatefulSet", "delete Pod", "patch status"}},
		{[]string{"!new", "new", "new"}, []string{"patch status"}},
	} {
		f.servers(step.servers...)
		f.now = f.now.Add(progressInterval)
		f.mustReconcile()
		if step.requests != nil {
			f.wantRequests(step.requests...)
		} else if slices.Contains(f.requests, "delete Pod") {
			t.Errorf("%q: replaces too many servers", step.servers)
		}
		f.want(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRollingOut)
		if !slices.Equal(f.mc.Status.Servers, addresses) {
			t.Errorf("%q: status.servers are %q", step.servers, f.mc.Status.Servers)
		}
	}
	f.servers("new", "new", "new")
	f.mustReconcile()
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)

	// The informer cache shows the old servers, but the StatefulSet already has another template.
	f.servers("old", "old", "old")
	f.cached["StatefulSet"] = get[appsv1.StatefulSet](f)
	f.must(f.api.Patch(f.ctx, get[appsv1.StatefulSet](f), mergePatch(`{"spec":{"template":{"metadata":{"annotations":{"a":"b"}}}}}`)))
	f.mustReconcile()
	if slices.Contains(f.requests, "delete Pod") {
		t.Errorf("replaces servers by a template that is not the newest one: %q", f.requests)
	}
}

// TestRefusedReplacement: why a server is not replaced is in the status, and one refused pod does not keep the others
// from being annotated.
func TestRefusedReplacement(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, workload: StatefulSet, auth: {secretName: passwords}}")
	f.secret("app:first\n")
	f.mustReconcile()
	f.servers("old", "old", "old")
	refused := apierrors.NewForbidden(corev1.Resource("pods"), "cache-0", errors.New("denied by a policy"))
	f.fail["patch cache-0"] = refused
	f.wantError("annotate pod cache-0")
	for _, pod := range f.pods() {
		if annotated := pod.Annotations[v1alpha1.SecretsAnnotation] != ""; annotated != (pod.Name != "cache-0") {
			t.Errorf("pod %s is annotated: %t", pod.Name, annotated)
		}
	}
	f.fail = map[string]error{"delete": refused}
	f.patch(`{"spec":{"memory":"128Mi"}}`)
	f.mustReconcile()
	f.servers("old", "old", "old")
	f.wantError("replace a server")
	if got := f.message(v1alpha1.ConditionReady); !strings.Contains(got, "denied by a policy") {
		t.Errorf("Ready says %q", got)
	}
}

// TestPausedRollout: a pause stops a rollout, and servers that are lost during the pause are reported.
func TestPausedRollout(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, workload: StatefulSet}")
	f.mustReconcile()
	f.servers("old", "old", "old")
	f.mustReconcile()
	f.patch(`{"spec":{"memory":"128Mi"}}`)
	f.mustReconcile()
	f.patch(`{"spec":{"paused":true}}`)
	for _, step := range []struct {
		servers  []string
		degraded metav1.ConditionStatus
		reason   string
	}{
		{[]string{"old", "old", "new"}, metav1.ConditionFalse, v1alpha1.ReasonAsExpected},
		{[]string{"!old", "old", "new"}, metav1.ConditionTrue, v1alpha1.ReasonServersLost},
		{[]string{"old", "old", "new"}, metav1.ConditionFalse, v1alpha1.ReasonAsExpected},
	} {
		f.servers(step.servers...)
		f.mustReconcile()
		if slices.Contains(f.requests, "delete Pod") {
			t.Errorf("%q: the rollout continues", step.servers)
		}
		f.want(v1alpha1.ConditionDegraded, step.degraded, step.reason)
	}
}

// TestServerServices: each server has a Service with an address, which is deleted when the server is removed.
func TestServerServices(t *testing.T) {
	f := newFixtureOf(t, "{size: 2, workload: StatefulSet, serverAddresses: ClusterIP}")
	f.mustReconcile()
	f.servers("new", "new")
	f.mustReconcile()
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	var want []string
	for i := range 2 {
		s := &corev1.Service{}
		f.must(f.api.Get(f.ctx, f.key(fmt.Sprintf("cache-%d", i)), s))
		want = append(want, s.Spec.ClusterIP+":11211")
	}
	if !slices.Equal(f.mc.Status.Servers, want) {
		t.Errorf("status.servers are %q, want %q", f.mc.Status.Servers, want)
	}
	f.patch(`{"spec":{"size":1}}`)
	f.mustReconcile()
	f.wantRequests("apply StatefulSet", "delete Service", "patch status")
	if !slices.Equal(f.mc.Status.Servers, want[:1]) {
		t.Errorf("status.servers are %q, want %q", f.mc.Status.Servers, want[:1])
	}
}
