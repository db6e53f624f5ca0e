package controllers

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// TestProxy: the only address of a Memcached with a proxy is that of the proxy. It is ready when the proxies are, and a
// changed list of servers does not replace them.
func TestProxy(t *testing.T) {
	f := newFixtureOf(t, "{size: 2, workload: StatefulSet, proxy: {size: 1}}")
	proxy := func() *appsv1.Deployment {
		d := &appsv1.Deployment{}
		f.must(f.api.Get(f.ctx, f.key("cache-proxy"), d))
		return d
	}
	settle := func(size int) {
		f.servers(slices.Repeat([]string{"old"}, size)...)
		d := proxy()
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 1, UpdatedReplicas: 1,
			ReadyReplicas: 1, AvailableReplicas: 1}
		f.must(f.api.Status().Update(f.ctx, d))
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "cache-proxy-a", Namespace: f.mc.Namespace,
			Labels: podLabels(names.Proxies.Labels(f.mc)), OwnerReferences: byReplicaSet("cache-proxy")}}
		pod.Spec.Containers = []corev1.Container{{Name: names.Container, Image: "memcached"}}
		f.must(f.api.Create(f.ctx, pod))
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		f.must(f.api.Status().Update(f.ctx, pod))
	}
	f.mustReconcile()
	f.servers("old", "old")
	f.mustReconcile()
	f.want(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRollingOut)
	settle(2)
	f.mustReconcile()
	f.wantRequests("patch Pod", "patch status")
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	if want := "cache-proxy." + f.mc.Namespace + ".svc:11211"; !slices.Equal(f.mc.Status.Servers, []string{want}) {
		t.Errorf("status.servers are %q, want %q", f.mc.Status.Servers, want)
	}
	if len(f.mc.Status.Nodes) != 2 || f.mc.Status.Replicas != 2 {
		t.Errorf("the proxies are counted as servers: %q", f.mc.Status.Nodes)
	}
	f.mustReconcile()
	f.wantRequests()

	f.patch(`{"spec":{"paused":true}}`)
	f.mustReconcile()
	f.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)

	before := proxy().Spec.Template
	f.patch(`{"spec":{"size":3,"paused":false}}`)
	f.mustReconcile()
	f.wantRequests("get Service", "get Memcached", "apply Service", "apply StatefulSet", "apply Deployment",
		"patch status")
	servers := func() int {
		config := &corev1.ConfigMap{}
		f.must(f.api.Get(f.ctx, f.key("cache-proxy"), config))
		return strings.Count(config.Data["servers"], "\n")
	}
	f.servers("old", "old", "!old")
	f.mustReconcile()
	if got := servers(); got != 2 {
		t.Errorf("the proxies read of %d servers, before the third one is ready", got)
	}
	f.servers("old", "!old", "old")
	f.mustReconcile()
	if got := servers(); got != 3 {
		t.Errorf("the proxies read of %d servers, with two that were ready before and a new one", got)
	}
	if !equality.Semantic.DeepEqual(proxy().Spec.Template, before) {
		t.Error("another number of servers replaces the proxies")
	}
	f.patch(`{"spec":{"proxy":null}}`)
	settle(3)
	f.mustReconcile()
	f.want(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRollingOut)
	for _, kind := range []string{"Deployment", "ConfigMap", "PodDisruptionBudget", "Service"} {
		if !slices.Contains(f.requests, "delete "+kind) {
			t.Errorf("the proxy's %s stays: %q", kind, f.requests)
		}
	}
	if len(f.mc.Status.Servers) != 3 {
		t.Errorf("status.servers are %q, want each server", f.mc.Status.Servers)
	}
}

// TestFirstProxy: if the servers were ready first, Available still becomes True soon after the first proxy is ready.
func TestFirstProxy(t *testing.T) {
	f := newFixtureOf(t, "{size: 1, workload: StatefulSet, proxy: {size: 2}}")
	f.mustReconcile()
	f.servers("old")
	f.now = f.now.Add(progressInterval)
	f.mustReconcile()
	f.want(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.ReasonUnavailable)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "cache-proxy-a", Namespace: f.mc.Namespace,
		Labels: podLabels(names.Proxies.Labels(f.mc)), OwnerReferences: byReplicaSet("cache-proxy")}}
	pod.Spec.Containers = []corev1.Container{{Name: names.Container, Image: "memcached"}}
	f.must(f.api.Create(f.ctx, pod))
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	f.must(f.api.Status().Update(f.ctx, pod))
	f.now = f.now.Add(progressInterval)
	f.mustReconcile()
	f.want(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonAvailable)
}

// TestProxyOfForeignServer: a foreign Service with the name of a server gets no items.
func TestProxyOfForeignServer(t *testing.T) {
	f := newFixtureOf(t, "{size: 1, workload: StatefulSet, proxy: {size: 1}}")
	servers := func() string {
		config := &corev1.ConfigMap{}
		f.must(f.api.Get(f.ctx, f.key("cache-proxy"), config))
		return config.Data["servers"]
	}
	f.mustReconcile()
	f.servers("old")
	f.mustReconcile()
	before := servers()
	foreign := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "cache-1", Namespace: f.mc.Namespace}}
	foreign.Spec.Ports = []corev1.ServicePort{{Port: 11211}}
	f.must(f.api.Create(f.ctx, foreign))
	f.patch(`{"spec":{"size":2}}`)
	f.mustReconcile()
	f.servers("new", "new")
	f.mustReconcile()
	f.want(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonConflict)
	if got := servers(); got != before {
		t.Errorf("the proxies are told of somebody else's server: %q", got)
	}
	f.must(f.api.Delete(f.ctx, foreign))
	f.mustReconcile()
	f.mustReconcile()
	if got := servers(); got == before || before == "" {
		t.Error("the second server is not in the configuration of the proxies")
	}
}

// TestProxyOfForeignServerFromTheStart: the same if the name was taken before the Memcached was created.
func TestProxyOfForeignServerFromTheStart(t *testing.T) {
	f := newFixtureOf(t, "{size: 1, workload: StatefulSet, proxy: {size: 1}}")
	foreign := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "cache-0", Namespace: f.mc.Namespace}}
	foreign.Spec.Ports = []corev1.ServicePort{{Port: 11211}}
	f.must(f.api.Create(f.ctx, foreign))
	f.mustReconcile()
	f.mustReconcile()
	f.servers("old")
	f.mustReconcile()
	config := &corev1.ConfigMap{}
	f.must(f.api.Get(f.ctx, f.key("cache-proxy"), config))
	if got := strings.TrimSpace(config.Data["servers"]); got != "" {
		t.Errorf("the proxies are told of somebody else's server: %q", got)
	}
	f.want(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonConflict)
}
