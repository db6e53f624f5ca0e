package controllers

import (
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
)

// TestProxy: a Memcached with a proxy has one address, that of the proxy. It becomes ready once the proxies have
// had time to load the list of servers. Adding a server does not replace the proxies.
func TestProxy(t *testing.T) {
	f := newFixtureOf(t, "{size: 2, workload: StatefulSet, proxy: {size: 1}}")
	proxy := func() *appsv1.Deployment {
		d := &appsv1.Deployment{}
		f.must(f.api.Get(f.ctx, f.key("cache-proxy"), d))
		return d
	}
	allReady := func(size int) {
		f.setServers(slices.Repeat([]server{updated()}, size)...)
		d := proxy()
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 1, UpdatedReplicas: 1,
			ReadyReplicas: 1, AvailableReplicas: 1}
		f.must(f.api.Status().Update(f.ctx, d))
		f.createPod("cache-proxy-a", withTemplateHash(names.Proxies.Labels(f.mc)), ownedByReplicaSet("cache-proxy"), true)
	}
	f.mustReconcile()
	f.setServers(updated(), updated())
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRollingOut)
	allReady(2)
	f.mustReconcile()
	f.wantRequests("patch Pod")
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRollingOut)
	f.now = f.now.Add(desired.ProxyDelay * time.Second)
	f.mustReconcile()
	f.wantRequests("patch status")
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	if want := "cache-proxy." + f.mc.Namespace + ".svc:11211"; !slices.Equal(f.mc.Status.Servers, []string{want}) {
		t.Errorf("got status.servers %q, want %q", f.mc.Status.Servers, want)
	}
	if len(f.mc.Status.Nodes) != 2 || f.mc.Status.Replicas != 2 {
		t.Errorf("got status.nodes %q and %d replicas, want 2: proxies are no servers", f.mc.Status.Nodes,
			f.mc.Status.Replicas)
	}
	f.mustReconcile()
	f.wantRequests()

	f.patch(`{"spec":{"paused":true}}`)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)

	before := proxy().Spec.Template
	f.patch(`{"spec":{"size":3,"paused":false}}`)
	f.mustReconcile()
	f.wantRequests("get Service", "get Memcached", "apply Service", "apply StatefulSet", "apply Deployment",
		"patch status")
	f.setServers(updated(), updated(), updated().notReady())
	f.mustReconcile()
	if got := strings.Count(f.proxyServers(), "\n"); got != 2 {
		t.Errorf("got %d servers in the configuration of the proxies before the third one is ready, want 2", got)
	}
	f.setServers(updated(), updated().notReady(), updated())
	f.mustReconcile()
	if got := strings.Count(f.proxyServers(), "\n"); got != 3 {
		t.Errorf("got %d servers in the configuration of the proxies after all were ready once, want 3", got)
	}
	if !equality.Semantic.DeepEqual(proxy().Spec.Template, before) {
		t.Error("the template of the proxies changed with the number of servers")
	}
	f.patch(`{"spec":{"proxy":null}}`)
	allReady(3)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRollingOut)
	for _, kind := range []string{"Deployment", "ConfigMap", "PodDisruptionBudget", "Service"} {
		if !slices.Contains(f.requests, "delete "+kind) {
			t.Errorf("got requests %q, want the proxy's %s deleted", f.requests, kind)
		}
	}
	if len(f.mc.Status.Servers) != 3 {
		t.Errorf("got status.servers %q, want 3 servers", f.mc.Status.Servers)
	}
}

// TestFirstProxyMakesAvailable: if the servers are ready before the proxies, Available becomes True with the first
// proxy.
func TestFirstProxyMakesAvailable(t *testing.T) {
	f := newFixtureOf(t, "{size: 1, workload: StatefulSet, proxy: {size: 2}}")
	f.mustReconcile()
	f.setServers(updated())
	f.now = f.now.Add(progressInterval)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.ReasonUnavailable)
	f.createPod("cache-proxy-a", withTemplateHash(names.Proxies.Labels(f.mc)), ownedByReplicaSet("cache-proxy"), true)
	f.now = f.now.Add(progressInterval)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionAvailable, metav1.ConditionTrue, v1alpha1.ReasonAvailable)
}

// TestProxyIgnoresForeignServer: proxies send no items to a foreign Service that has the name of a server.
func TestProxyIgnoresForeignServer(t *testing.T) {
	f := newFixtureOf(t, "{size: 1, workload: StatefulSet, proxy: {size: 1}}")
	f.mustReconcile()
	f.setServers(updated())
	f.mustReconcile()
	before := f.proxyServers()
	foreign := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "cache-1", Namespace: f.mc.Namespace}}
	foreign.Spec.Ports = []corev1.ServicePort{{Port: 11211}}
	f.must(f.api.Create(f.ctx, foreign))
	f.patch(`{"spec":{"size":2}}`)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonConflict)
	if got := *get[appsv1.StatefulSet](f).Spec.Replicas; got != 1 {
		t.Errorf("got %d servers, want 1 until the second one can have its Service", got)
	}
	if got := f.proxyServers(); got != before {
		t.Errorf("got servers %q in the configuration of the proxies, want %q", got, before)
	}
	f.must(f.api.Delete(f.ctx, foreign))
	f.mustReconcile()
	f.setServers(updated(), updated())
	f.mustReconcile()
	if got := f.proxyServers(); got == before || before == "" {
		t.Errorf("got servers %q in the configuration of the proxies, want a second one", got)
	}
}

// TestNoServersWithForeignService: a foreign Service has the name of a server's before the first reconcile.
func TestNoServersWithForeignService(t *testing.T) {
	f := newFixtureOf(t, "{size: 1, workload: StatefulSet, proxy: {size: 1}}")
	foreign := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "cache-0", Namespace: f.mc.Namespace}}
	foreign.Spec.Ports = []corev1.ServicePort{{Port: 11211}}
	f.must(f.api.Create(f.ctx, foreign))
	f.mustReconcile()
	f.mustReconcile()
	if err := f.api.Get(f.ctx, f.key("cache"), &appsv1.StatefulSet{}); !apierrors.IsNotFound(err) {
		t.Errorf("got a StatefulSet (%v), want none without the Service of a server", err)
	}
	if got := strings.TrimSpace(f.proxyServers()); got != "" {
		t.Errorf("got servers %q in the configuration of the proxies, want none", got)
	}
	f.wantCondition(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonConflict)
}

// proxyServers returns the servers in the configuration of the proxies, one in each line.
func (f *fixture) proxyServers() string {
	f.Helper()
	config := &corev1.ConfigMap{}
	f.must(f.api.Get(f.ctx, f.key("cache-proxy"), config))
	return config.Data["servers"]
}
