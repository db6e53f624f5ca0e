package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/steps"
)

// setProxied acts as the controllers and the kubelets: this number of servers and one proxy are ready.
func (f *fixture) setProxied(size int) {
	f.Helper()
	f.setServersAndProxy(slices.Repeat([]server{updated()}, size)...)
}

func (f *fixture) setServersAndProxy(servers ...server) {
	f.Helper()
	f.setServers(servers...)
	d := f.proxy()
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 1, UpdatedReplicas: 1,
		ReadyReplicas: 1, AvailableReplicas: 1}
	f.must(f.api.Status().Update(f.ctx, d))
	f.createPod("cache-proxy-a", withTemplateHash(names.Proxies.Labels(f.mc)), ownedByReplicaSet("cache-proxy"), true)
}

func (f *fixture) proxy() *appsv1.Deployment {
	f.Helper()
	d := &appsv1.Deployment{}
	f.must(f.api.Get(f.ctx, f.key("cache-proxy"), d))
	return d
}

// confirm lets the proxies report that they use the current list of servers, and done that the items were moved.
func (f *fixture) confirm(done bool) {
	f.Helper()
	f.load(done)
	f.mustReconcile()
	if !slices.Contains(f.requests, "patch Pod") || slices.Contains(f.requests, "dry-run Deployment") {
		f.Errorf("got requests %q, want the confirmation stored, and the proxies as desired", f.requests)
	}
}

// load lets the proxies use the current list of servers, and done the mover move all items.
func (f *fixture) load(done bool) {
	f.Helper()
	config := &corev1.ConfigMap{}
	f.must(f.api.Get(f.ctx, f.key("cache-proxy"), config))
	f.report = contract.Report{ListHash: contract.ParseServers(config.Data).Hash(), Percent: 63}
	if done {
		f.report.MovedHash = f.report.ListHash
	}
}

// becomeReadyWithProxy makes the Memcached ready: this number of servers and one proxy, which uses them.
func (f *fixture) becomeReadyWithProxy(size int) {
	f.Helper()
	f.mustReconcile()
	f.setProxied(size)
	f.mustReconcile()
	f.setProxied(size)
	f.mustReconcile()
	f.confirm(false)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// TestProxy: a Memcached with a proxy has one address, that of the proxy. It becomes ready once the proxies use the
// list of servers.
func TestProxy(t *testing.T) {
	f := newFixtureOf(t, "{size: 2, workload: StatefulSet, proxy: {size: 1}}")
	f.mustReconcile()
	f.setServers(updated(), updated())
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRollingOut)
	f.setProxied(2)
	f.mustReconcile()
	f.wantRequests("patch Pod", "patch status")
	f.silent, f.now = true, f.now.Add(steps.Pace)
	f.mustReconcile()
	f.wantMessage(v1alpha1.ConditionReady,
		"2 of 2 servers ready; proxy cache-proxy-a does not answer the operator on port 9151")
	f.silent, f.now = false, f.now.Add(steps.Pace)
	f.mustReconcile()
	f.wantMessage(v1alpha1.ConditionReady,
		"2 of 2 servers ready; proxy cache-proxy-a has not loaded the list of servers yet")
	f.confirm(false)
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRollingOut)
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

	f.patch(`{"spec":{"size":3,"proxy":null,"paused":false}}`)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonResizing)
	for _, kind := range []string{"Deployment", "ConfigMap", "PodDisruptionBudget", "Service"} {
		if !slices.Contains(f.requests, "delete "+kind) {
			t.Errorf("got requests %q, want the proxy's %s deleted", f.requests, kind)
		}
	}
	if len(f.mc.Status.Servers) != 3 {
		t.Errorf("got status.servers %q, want 3 servers", f.mc.Status.Servers)
	}
}

// TestResizeWithProxy: while servers are added and removed, proxies change their list in steps, each after the one
// before was confirmed. A server is removed last, and proxies are not replaced.
func TestResizeWithProxy(t *testing.T) {
	f := newFixtureOf(t, "{size: 2, workload: StatefulSet, proxy: {size: 1}}")
	f.becomeReadyWithProxy(2)
	template := f.proxy().Spec.Template
	wantServers := func(phase contract.Phase, movingPod string, before, after int) {
		t.Helper()
		config := &corev1.ConfigMap{}
		f.must(f.api.Get(f.ctx, f.key("cache-proxy"), config))
		s := contract.ParseServers(config.Data)
		if s.Phase != phase || s.Mover != movingPod || len(s.Before) != before || len(s.After) != after {
			t.Errorf("got servers %+v, want phase %q, mover %q, %d and %d servers", s, phase, movingPod, before, after)
		}
		f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonResizing)
	}
	step := func(done bool) {
		t.Helper()
		f.confirm(done)
		f.now = f.now.Add(steps.Pace)
		f.mustReconcile()
	}
	for _, size := range [][2]int{{2, 3}, {3, 1}} {
		before, after := size[0], size[1]
		f.patch(fmt.Sprintf(`{"spec":{"size":%d}}`, after))
		f.mustReconcile()
		if after > before {
			f.setProxied(before)
			f.confirm(false) // of the pod that has just been created
			f.mustReconcile()
			wantServers(contract.NoChange, "", 0, before)
			f.setProxied(after)
			f.mustReconcile()
			f.confirm(false)
			f.mustReconcile()
		}
		wantServers(contract.Purge, "cache-proxy-a", before, after)
		step(false)
		wantServers(contract.Purge, "cache-proxy-a", before, after)
		more := map[bool]string{true: ", 2 more to remove"}[after < before]
		f.wantMessage(v1alpha1.ConditionReady,
			fmt.Sprintf("%d of %d servers ready%s; deleting items of earlier changes, 63 %%", after, after, more))
		step(true)
		wantServers(contract.PreferBefore, "", before, after)
		step(false)
		wantServers(contract.PreferAfter, "", before, after)
		step(false)
		wantServers(contract.PreferAfter, "cache-proxy-a", before, after)
		f.patch(`{"spec":{"size":2}}`) // has to wait
		step(false)
		wantServers(contract.PreferAfter, "cache-proxy-a", before, after)
		f.patch(fmt.Sprintf(`{"spec":{"size":%d}}`, after))
		step(true)
		wantServers(contract.NoChange, "", 0, after)
		if got := *get[appsv1.StatefulSet](f).Spec.Replicas; int(got) != max(before, after) {
			t.Errorf("got %d servers before the proxies use the new list, want %d", got, max(before, after))
		}
		step(false)
		if got := *get[appsv1.StatefulSet](f).Spec.Replicas; int(got) != after {
			t.Errorf("got %d servers, want %d", got, after)
		}
	}
	f.setProxied(1)
	f.mustReconcile()
	f.confirm(false)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	if !equality.Semantic.DeepEqual(f.proxy().Spec.Template, template) {
		t.Error("the template of the proxies changed with the number of servers")
	}
}

// TestReplaceWithProxy: a server is replaced once its items have moved to a spare server, and the spare one is removed
// once its items have moved back.
func TestReplaceWithProxy(t *testing.T) {
	f := newFixtureOf(t, "{size: 1, workload: StatefulSet, proxy: {size: 1}}")
	f.becomeReadyWithProxy(1)
	// set changes the servers, and lets the proxy, which is created again, report.
	set := func(servers ...server) {
		t.Helper()
		f.setServersAndProxy(servers...)
		f.mustReconcile()
		f.confirm(false)
		f.now = f.now.Add(steps.Pace)
		f.mustReconcile()
	}
	wantReplicas := func(want int32) {
		t.Helper()
		if got := *get[appsv1.StatefulSet](f).Spec.Replicas; got != want {
			t.Errorf("got %d servers, want %d", got, want)
		}
	}
	move := func(from, to string) {
		t.Helper()
		for _, done := range []bool{true, false, false, true} {
			config := &corev1.ConfigMap{}
			f.must(f.api.Get(f.ctx, f.key("cache-proxy"), config))
			if s := contract.ParseServers(config.Data); len(s.Before) != 1 || s.Before[0].Name != from || s.After[0].Name != to {
				t.Errorf("got servers %+v, want a move from %s to %s", s, from, to)
			}
			f.wantNotDeleted()
			f.confirm(done)
			f.now = f.now.Add(steps.Pace)
			f.mustReconcile()
		}
		f.wantNotDeleted()
		f.confirm(false)
		f.now = f.now.Add(steps.Pace)
		f.mustReconcile()
	}
	f.patch(`{"spec":{"threads":2}}`)
	f.mustReconcile()
	set(outdated())
	wantReplicas(2)
	f.wantNotDeleted()
	set(outdated(), updated().notReady())
	f.wantNotDeleted()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRollingOut)
	set(outdated(), updated())
	move("cache-0", "cache-1")
	if !slices.Contains(f.requests, "delete Pod") {
		t.Errorf("got requests %q, want the old server deleted", f.requests)
	}
	wantReplicas(2)
	set(updated(), updated())
	move("cache-1", "cache-0")
	wantReplicas(1)
	set(updated())
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// stopOf returns the request that lets a server stop, as f.stopped has it.
func (f *fixture) stopOf(server string) string {
	return podIP(server) + ":9151 " + desired.Digest(f.mc.UID)
}

// TestDrain: a server that is evicted serves until its items have moved to a spare one, and is then told to stop. Where
// nothing can be moved, it is told at once.
func TestDrain(t *testing.T) {
	f := newFixtureOf(t, "{size: 1, workload: StatefulSet, metrics: {}, proxy: {size: 1}}")
	f.becomeReadyWithProxy(1)
	evict := func() {
		t.Helper()
		pod := &corev1.Pod{}
		f.must(f.api.Get(f.ctx, f.key("cache-0"), pod))
		pod.Finalizers = []string{"example.com/kubelet"}
		f.must(f.api.Update(f.ctx, pod))
		t.Cleanup(func() {
			pod := pod.DeepCopy()
			_ = f.api.Patch(context.Background(), pod, mergePatch(`{"metadata":{"finalizers":null}}`))
		})
		f.must(f.api.Delete(f.ctx, pod))
		f.now = f.now.Add(steps.Pace)
		f.mustReconcile()
	}
	evict()
	if got := *get[appsv1.StatefulSet](f).Spec.Replicas; got != 2 || len(f.stopped) > 0 {
		t.Fatalf("got %d servers and stopped %q, want a spare server, and the other one to serve", got, f.stopped)
	}
	set := get[appsv1.StatefulSet](f)
	owner := metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))
	labels := withRevision(updated().template, names.Servers.Labels(f.mc))
	f.createPod("cache-1", labels, []metav1.OwnerReference{*owner}, true)
	f.mustReconcile()
	for _, done := range []bool{false, true, false, false, true} {
		if len(f.stopped) > 0 {
			t.Fatal("the server was stopped before its items had moved")
		}
		f.confirm(done)
		f.now = f.now.Add(steps.Pace)
		f.mustReconcile()
	}
	f.confirm(false)
	f.mustReconcile()
	if want := f.stopOf("cache-0"); len(f.stopped) == 0 || f.stopped[0] != want {
		t.Errorf("stopped %q, want %s", f.stopped, want)
	}

	f.stopped = nil
	f.must(f.api.Delete(f.ctx, f.mc))
	f.mustReconcile()
	if len(f.stopped) == 0 {
		t.Error("the server was not stopped although the Memcached is being deleted")
	}
}

// TestDrainInPlace: a server drains too if the kubelet stops its container without a deletion of the pod, and is used
// again once another memcached runs in the pod.
func TestDrainInPlace(t *testing.T) {
	f := newFixtureOf(t, "{size: 1, workload: StatefulSet, metrics: {}, proxy: {size: 1}}")
	f.becomeReadyWithProxy(1)
	restart := func() {
		t.Helper()
		pod := &corev1.Pod{}
		f.must(f.api.Get(f.ctx, f.key("cache-0"), pod))
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: names.Container, Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(f.now)}}}}
		f.must(f.api.Status().Update(f.ctx, pod))
	}
	wantReplicas := func(want int32) {
		t.Helper()
		if got := *get[appsv1.StatefulSet](f).Spec.Replicas; got != want {
			t.Errorf("got %d servers, want %d", got, want)
		}
	}
	restart()
	f.now = f.now.Add(steps.Later)
	f.mustReconcile()
	wantReplicas(1)
	f.report.Draining, f.now = true, f.now.Add(steps.Later)
	f.mustReconcile()
	f.mustReconcile()
	wantReplicas(2)
	if len(f.stopped) > 0 {
		t.Error("the server was stopped before its items had moved")
	}
	f.report.Draining, f.now = false, f.now.Add(steps.Later)
	restart()
	f.mustReconcile()
	wantReplicas(1)
}

// TestUnreachable: Ready is False while a proxy does not reach a server that is ready, and the message names both.
func TestUnreachable(t *testing.T) {
	f := newFixtureOf(t, "{size: 2, workload: StatefulSet, proxy: {size: 1}}")
	f.becomeReadyWithProxy(2)
	f.report.Unreachable = []string{"cache-7", "cache-1", "cache-0"}
	f.mustReconcile()
	f.wantRequests()
	for range 2 {
		f.now = f.now.Add(steps.Later)
		if wait := f.mustReconcile().RequeueAfter; wait <= 0 || wait > steps.Later {
			t.Errorf("proxies are asked again after %s", wait)
		}
	}
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonProgressingWithRetry)
	f.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonAsExpected)
	f.wantMessage(v1alpha1.ConditionReady, "2 of 2 servers ready; proxy cache-proxy-a does not reach server cache-0")
	f.report.Unreachable, f.now = []string{"cache-0"}, f.now.Add(steps.Pace)
	f.mustReconcile()
	f.wantRequests()
	f.report.Unreachable, f.now = nil, f.now.Add(time.Second)
	f.mustReconcile()
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.now = f.now.Add(steps.Later)
	f.mustReconcile()
	f.wantRequests()
}

// TestStalledMove: a move that cannot go on waits, or is given up, as whenMoveStalls says.
func TestStalledMove(t *testing.T) {
	t.Parallel()
	for _, when := range []v1alpha1.WhenMoveStalls{v1alpha1.WhenMoveStallsWait, v1alpha1.WhenMoveStallsProceed} {
		t.Run(string(when), func(t *testing.T) {
			f := newFixtureOf(t, fmt.Sprintf("{size: 2, workload: StatefulSet, proxy: {size: 1, whenMoveStalls: %s}}", when))
			f.becomeReadyWithProxy(2)
			f.patch(`{"spec":{"size":1}}`)
			f.mustReconcile()
			f.confirm(true)
			want := func(phase contract.Phase, replicas int32) {
				t.Helper()
				config := &corev1.ConfigMap{}
				f.must(f.api.Get(f.ctx, f.key("cache-proxy"), config))
				s := contract.ParseServers(config.Data)
				if got := *get[appsv1.StatefulSet](f).Spec.Replicas; s.Phase != phase || len(s.After) != 1 || got != replicas {
					t.Errorf("got the servers %+v and %d replicas, want phase %q and %d", s, got, phase, replicas)
				}
			}
			f.now = f.now.Add(steps.Pace)
			f.mustReconcile()
			want(contract.PreferBefore, 2)
			f.silent = true
			f.mustReconcile()
			f.now = f.now.Add(time.Hour)
			f.mustReconcile()
			f.wantCondition(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonProgressDeadlineExceeded)
			f.mustReconcile()
			f.mustReconcile()
			if when == v1alpha1.WhenMoveStallsWait {
				want(contract.PreferBefore, 2)
				return
			}
			want(contract.NoChange, 2) // the proxy may still use the servers before
			f.wantNotStalled()         // so that the next move is not given up at once
			f.silent = false
			f.confirm(false)
			f.now = f.now.Add(steps.Pace)
			f.mustReconcile()
			want(contract.NoChange, 1)
			f.setProxied(1)
			f.mustReconcile()
			f.confirm(false)
			f.mustReconcile()
			f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
		})
	}
}

// TestFlushBehindProxies: no item moves past a flush. A server that is about to stop before it has dropped its items
// may stop with them.
func TestFlushBehindProxies(t *testing.T) {
	f := newFixtureOf(t, "{size: 2, workload: StatefulSet, metrics: {}, proxy: {size: 1}}")
	f.becomeReadyWithProxy(2)
	f.flushAt("now")
	f.mustReconcile()
	if f.pod("cache-0").Annotations[v1alpha1.FlushAnnotation] == "" {
		t.Fatal("cache-0 was not asked to drop its items")
	}
	f.patch(`{"spec":{"size":1}}`)
	f.must(f.api.Delete(f.ctx, f.pod("cache-1"))) // it serves until the operator lets it stop
	f.mustReconcile()
	f.mustReconcile()
	if f.phase() != contract.NoChange || !slices.Contains(f.stopped, f.stopOf("cache-1")) {
		t.Errorf("got the phase %q and %v stopped, want no move, and cache-1 stopped", f.phase(), f.stopped)
	}
	f.flushed = []string{"cache-0", "cache-1"}
	f.mustReconcile()
	f.must(f.api.Delete(f.ctx, f.pod("cache-1"), client.GracePeriodSeconds(0)))
	f.setProxied(2)
	f.mustReconcile()
	f.confirm(false)
	for range 4 { // both servers are new
		f.mustReconcile()
	}
	if f.phase() != contract.Purge {
		t.Errorf("got the phase %q, want the move to begin after the flush", f.phase())
	}
}

// TestFlushDuringMove: a flush does not begin while items move.
func TestFlushDuringMove(t *testing.T) {
	f := newFixtureOf(t, "{size: 2, workload: StatefulSet, metrics: {}, proxy: {size: 1}}")
	f.becomeReadyWithProxy(2)
	flushes := func() (list []string) {
		for _, pod := range f.pods() {
			if value := pod.Annotations[v1alpha1.FlushAnnotation]; value != "" {
				list = append(list, pod.Name)
			}
		}
		return list
	}
	f.patch(`{"spec":{"size":1}}`)
	f.mustReconcile()
	f.now = time.Now().Add(time.Second)
	f.flushAt("now")
	seen := map[contract.Phase]bool{}
	for now := f.phase(); now != contract.NoChange; now = f.phase() {
		seen[now] = true
		if list := flushes(); len(list) > 0 {
			t.Fatalf("in phase %q, %v were asked to drop their items", now, list)
		}
		f.mustReconcile() // tells the kubelet of a new list
		f.confirm(true)
		f.mustReconcile()
	}
	f.mustReconcile()
	f.confirm(false)
	f.mustReconcile()
	if list := flushes(); len(seen) != 3 || len(list) != 1 {
		t.Errorf("got the phases %v and %v asked to drop their items, want three, and one after them", seen, list)
	}
}

// phase is that of the servers that the proxies are told.
func (f *fixture) phase() contract.Phase {
	f.Helper()
	config := &corev1.ConfigMap{}
	f.must(f.api.Get(f.ctx, f.key("cache-proxy"), config))
	return contract.ParseServers(config.Data).Phase
}

func (f *fixture) wantNotDeleted() {
	f.Helper()
	if slices.Contains(f.requests, "delete Pod") {
		f.Errorf("got requests %q, want no server deleted", f.requests)
	}
}

// TestFirstProxyMakesAvailable: if the servers are ready before the proxies, Available becomes True with the first
// proxy.
func TestFirstProxyMakesAvailable(t *testing.T) {
	f := newFixtureOf(t, "{size: 1, workload: StatefulSet, proxy: {size: 2}}")
	f.mustReconcile()
	f.setServers(updated())
	f.now = f.now.Add(steps.Pace)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionAvailable, metav1.ConditionFalse, v1alpha1.ReasonUnavailable)
	f.createPod("cache-proxy-a", withTemplateHash(names.Proxies.Labels(f.mc)), ownedByReplicaSet("cache-proxy"), true)
	f.now = f.now.Add(steps.Pace)
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
	f.must(client.IgnoreNotFound(f.api.Get(f.ctx, f.key("cache-proxy"), config)))
	return config.Data["servers"]
}

// list returns the names of the servers that the proxies are told: before and after a change.
func (f *fixture) list() (before, after string) {
	f.Helper()
	config := &corev1.ConfigMap{}
	f.must(f.api.Get(f.ctx, f.key("cache-proxy"), config))
	join := func(servers []contract.Server) string {
		var list []string
		for _, s := range servers {
			list = append(list, strings.TrimPrefix(s.Name, "cache-"))
		}
		return strings.Join(list, " ")
	}
	s := contract.ParseServers(config.Data)
	return join(s.Before), join(s.After)
}

// stumble makes a pod not ready: memcached serves on, or has stopped.
func (f *fixture) stumble(name string, down bool) {
	f.Helper()
	pod := f.pod(name)
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	since := metav1.NewTime(f.now.Add(-time.Hour))
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: since}}
	if down {
		running = corev1.ContainerState{}
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: names.Container, Ready: !down, State: running}}
	f.must(f.api.Status().Update(f.ctx, pod))
}

// TestRemoveNotReady: the items of a server that is to be removed move although it is not ready: its agent or a probe
// may have failed. A server that is down is removed without a move, and alone.
func TestRemoveNotReady(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		down, notReady string
		before, after  string
	}{
		"not ready":                    {"", "3", "0 1 2 3", "0 1"},
		"down":                         {"3", "", "", "0 1 2"},
		"both down":                    {"2 3", "", "", "0 1 2"},
		"one is down, one serves":      {"2", "3", "0 1 2 3", "0 1"},
		"one is down, and one is kept": {"1", "", "0 1 2 3", "0 1"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixtureOf(t, "{size: 4, workload: StatefulSet, proxy: {size: 1}}")
			f.becomeReadyWithProxy(4)
			for _, ordinal := range strings.Fields(tt.down) {
				f.stumble("cache-"+ordinal, true)
			}
			for _, ordinal := range strings.Fields(tt.notReady) {
				f.stumble("cache-"+ordinal, false)
			}
			f.patch(`{"spec":{"size":2}}`)
			f.mustReconcile()
			if before, after := f.list(); before != tt.before || after != tt.after {
				t.Errorf("got a change from %q to %q, want one from %q to %q", before, after, tt.before, tt.after)
			}
			for range 3 { // tells the kubelet of the list, asks the proxy, and makes the next step
				f.load(false)
				f.mustReconcile()
			}
			if before, after := f.list(); tt.down == "3" && (before != "0 1 2" || after != "0 1") {
				t.Errorf("got a change from %q to %q, want the items of server 2 to move", before, after)
			}
		})
	}
}

// TestProceedAfterBegin: whenMoveStalls does not give up a move that begins while the Memcached is Stalled for another
// reason, whichever write fails then, and whatever the informer cache of the next operator shows.
func TestProceedAfterBegin(t *testing.T) {
	f := newFixtureOf(t, "{size: 2, workload: StatefulSet, proxy: {size: 1, whenMoveStalls: Proceed}}")
	f.becomeReadyWithProxy(2)
	f.patch(`{"spec":{"size":3}}`)
	f.mustReconcile()
	f.now = f.now.Add(time.Hour)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonProgressDeadlineExceeded)
	f.setProxied(3) // a node has room
	f.load(false)
	f.setProxyConfirmation()
	stalled := f.mc.DeepCopy()

	f.failures["patch status"] = apierrors.NewConflict(schema.GroupResource{}, "cache", errors.New("changed"))
	f.mustReconcile()
	if f.phase() != contract.NoChange {
		t.Error("the move has begun, and the status still says that it has stalled")
	}
	delete(f.failures, "patch status")
	f.mustReconcile()
	f.wantNotStalled()
	for range 3 {
		f.restartOperator()
		f.cached["Memcached"] = stalled
		f.mustReconcile()
		if f.phase() != contract.Purge {
			t.Fatalf("got the phase %q, want a move that goes on", f.phase())
		}
	}
}

// setProxyConfirmation stores that the proxy has loaded its list of servers.
func (f *fixture) setProxyConfirmation() {
	f.Helper()
	config := &corev1.ConfigMap{}
	f.must(f.api.Get(f.ctx, f.key("cache-proxy"), config))
	f.must(f.api.Patch(f.ctx, f.pod("cache-proxy-a"), mergePatch(fmt.Sprintf(
		`{"metadata":{"annotations":{%q:"%s loaded"}}}`, v1alpha1.ProxyConfigAnnotation, desired.Digest(config.Data)))))
}

// TestFailingMover: a mover that begins again and again makes no progress. After the deadline, the move is Stalled, and
// given up if whenMoveStalls says so. Meanwhile, the message says why the mover fails.
func TestFailingMover(t *testing.T) {
	f := newFixtureOf(t, "{size: 2, workload: StatefulSet, proxy: {size: 1, whenMoveStalls: Proceed}}")
	f.becomeReadyWithProxy(2)
	f.patch(`{"spec":{"size":1}}`)
	f.mustReconcile()
	for f.phase() != contract.PreferAfter { // a mover that reports the end of the purge, and then nothing more
		f.load(true)
		f.mustReconcile()
		f.mustReconcile()
	}
	f.load(false)
	f.mustReconcile()
	for n := 0; f.phase() == contract.PreferAfter; n++ {
		if n > 100 {
			t.Fatal("the move was not given up")
		}
		f.load(false)
		f.report.Percent, f.silent = 63-20*(n%3), n%4 == 3
		f.report.Problem = "server cache-1 does not answer"
		f.now = f.now.Add(20 * time.Second)
		f.mustReconcile()
		if n == 4 {
			f.wantMessage(v1alpha1.ConditionReady,
				"1 of 1 servers ready, 1 more to remove; moving items, 43 %: server cache-1 does not answer")
		}
		if n == 25 { // 500 s
			f.wantNotStalled()
		}
	}
	f.wantNotStalled() // the next move gets its own time
}

// TestServersThatCannotMove: the arguments of the servers that run decide whether items can move, not only those of the
// spec. Otherwise, servers are added and removed at once, and replaced as rollout says.
func TestServersThatCannotMove(t *testing.T) {
	f := newFixtureOf(t, "{size: 2, workload: StatefulSet, extraArgs: [--disable-dumping], proxy: {size: 1}}")
	f.becomeReadyWithProxy(2)
	args := f.pod("cache-0").Spec.Containers[0].Args
	f.patch(`{"spec":{"extraArgs":null}}`)
	f.mustReconcile()
	f.setServersAndProxy(outdated(), outdated())
	for _, name := range []string{"cache-0", "cache-1"} { // with the arguments of before
		pod := f.pod(name)
		f.must(f.api.Delete(f.ctx, pod, client.GracePeriodSeconds(0)))
		pod.Spec.Containers[0].Args = args
		f.createPod(name, pod.Labels, pod.OwnerReferences, true, pod.Spec)
		f.makeOutdated(name)
	}
	f.mustReconcile()
	if got := *get[appsv1.StatefulSet](f).Spec.Replicas; got != 2 || !slices.Contains(f.requests, "delete Pod") {
		t.Errorf("got %d servers and requests %q, want one of the servers replaced without a spare one", got, f.requests)
	}
	f.patch(`{"spec":{"size":1}}`)
	f.mustReconcile()
	if before, after := f.list(); before != "" || after != "0" {
		t.Errorf("got a change from %q to %q, want the list changed at once", before, after)
	}
}

// TestOrderOfServers: the order of the servers behind proxies survives whatever happens to the ConfigMap of the proxies
// or to the annotation of the StatefulSet, but not to both.
func TestOrderOfServers(t *testing.T) {
	t.Parallel()
	const list = `{"after":[{"name":"cache-1"},{"name":"cache-0"}]}`
	config := func(f *fixture) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cache-proxy", Namespace: f.mc.Namespace}}
	}
	inOrder := mergePatch(`{"data":{"servers":"cache-0 10.0.0.1:11211\ncache-1 10.0.0.2:11211\n"}}`)
	for name, lose := range map[string]func(f *fixture){
		"deletion of the ConfigMap": func(f *fixture) { f.must(f.api.Delete(f.ctx, config(f))) },
		"change of the ConfigMap":   func(f *fixture) { f.must(f.api.Patch(f.ctx, config(f), inOrder)) },
		"restore of an older ConfigMap": func(f *fixture) {
			f.must(f.api.Delete(f.ctx, config(f)))
			old := config(f)
			old.Labels = names.Proxies.Labels(f.mc)
			f.must(f.api.Create(f.ctx, old))
			f.must(f.api.Patch(f.ctx, old, inOrder))
		},
		"deletion of the annotation": func(f *fixture) { f.setOrder("null") },
		"another annotation":         func(f *fixture) { f.setOrder(`"{"`) },
		"deletion of the StatefulSet": func(f *fixture) {
			f.must(f.api.Delete(f.ctx, get[appsv1.StatefulSet](f), client.PropagationPolicy(metav1.DeletePropagationOrphan)))
			f.must(f.api.Patch(f.ctx, get[appsv1.StatefulSet](f), mergePatch(`{"metadata":{"finalizers":null}}`)))
			f.mustReconcile()
			f.setProxied(2)
		},
		"deletion of the Memcached, which leaves its children": func(f *fixture) {
			for _, obj := range []client.Object{get[appsv1.StatefulSet](f), config(f), f.proxy()} {
				f.must(f.api.Patch(f.ctx, obj, mergePatch(`{"metadata":{"ownerReferences":null}}`)))
			}
			for _, name := range []string{"cache", "cache-0", "cache-1", "cache-proxy"} {
				f.must(f.api.Patch(f.ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: f.mc.Namespace}},
					mergePatch(`{"metadata":{"ownerReferences":null}}`)))
			}
			again := &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Name: f.mc.Name, Namespace: f.mc.Namespace},
				Spec: f.mc.Spec}
			f.must(f.api.Patch(f.ctx, f.mc, mergePatch(`{"metadata":{"finalizers":null}}`)))
			f.must(f.api.Delete(f.ctx, f.mc))
			f.must(f.api.Create(f.ctx, again))
			f.mc = again
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixtureOf(t, "{size: 2, workload: StatefulSet, proxy: {size: 1}}")
			f.becomeReadyWithProxy(2)
			f.setOrder(strconv.Quote(list))
			f.loadAll()
			f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
			lose(f)
			f.restartOperator()
			f.loadAll()
			if _, after := f.list(); after != "1 0" {
				t.Errorf("got the servers %q, want them in the order of before", after)
			}
			if got := get[appsv1.StatefulSet](f).Annotations[v1alpha1.ProxyServersAnnotation]; got != list {
				t.Errorf("got the annotation %s", got)
			}
			f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
			f.mustReconcile()
			f.wantRequests()
		})
	}
}

// TestFirstList: an operator that adds the list of the proxies to a StatefulSet of an older one changes nothing else.
func TestFirstList(t *testing.T) {
	f := newFixtureOf(t, "{size: 2, workload: StatefulSet, proxy: {size: 1}}")
	f.becomeReadyWithProxy(2)
	before, ready := get[appsv1.StatefulSet](f), f.mc.Status.DeepCopy()
	f.setOrder("null")
	f.patch(`{"spec":{"paused":true}}`)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.patch(`{"spec":{"paused":false}}`)
	f.mustReconcile()
	after := get[appsv1.StatefulSet](f)
	if after.Generation != before.Generation || !maps.Equal(after.Annotations, before.Annotations) {
		t.Errorf("got generation %d and annotations %v, want %d and %v", after.Generation, after.Annotations,
			before.Generation, before.Annotations)
	}
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	transition := func(s *v1alpha1.MemcachedStatus) metav1.Time {
		return meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady).LastTransitionTime
	}
	if was, is := transition(ready), transition(&f.mc.Status); !was.Equal(&is) {
		t.Errorf("Ready changed at %s", is)
	}
}

// setOrder changes the list in the annotation of the StatefulSet, as somebody else.
func (f *fixture) setOrder(list string) {
	f.Helper()
	f.must(f.api.Patch(f.ctx, get[appsv1.StatefulSet](f), mergePatch(fmt.Sprintf(
		`{"metadata":{"annotations":{%q:%s}}}`, v1alpha1.ProxyServersAnnotation, list))))
}

// loadAll lets the proxies load each list, and the mover do its work, until nothing changes any more.
func (f *fixture) loadAll() {
	f.Helper()
	for n, idle := 0, 0; idle < 3; n++ {
		if n > 200 {
			f.Fatalf("each reconcile changes something, the last one by %q", f.requests)
		}
		if f.proxyServers() != "" {
			f.load(true)
		}
		f.now = f.now.Add(steps.Pace)
		f.mustReconcile()
		idle++
		if len(f.requests) > 0 {
			idle = 0
		}
	}
}

// TestChangedConfigMap: a proxy may have loaded what somebody else wrote into the ConfigMap. It counts as one that has
// not loaded its list, until it reports the list again. While the ConfigMap cannot be written, it is not asked.
func TestChangedConfigMap(t *testing.T) {
	f := newFixtureOf(t, "{size: 2, workload: StatefulSet, proxy: {size: 1}}")
	f.becomeReadyWithProxy(2)
	f.must(f.api.Patch(f.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cache-proxy",
		Namespace: f.mc.Namespace}}, mergePatch(`{"data":{"servers":"cache-0 10.0.0.1:11211\n"}}`)))
	f.mustReconcile()
	f.wantRequests("patch Pod") // void before the ConfigMap is written: the operator may stop then
	f.failures["apply ConfigMap"] = errors.New("no (by the test)")
	f.load(false)
	for range 3 {
		_, _ = f.reconcile()
		if value := f.pod("cache-proxy-a").Annotations[v1alpha1.ProxyConfigAnnotation]; value != "" {
			t.Errorf("got the confirmation %q, want none", value)
		}
	}
	delete(f.failures, "apply ConfigMap")
	f.report.ListHash = "another"
	for range 3 {
		f.now = f.now.Add(steps.Pace)
		f.mustReconcile()
		f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRollingOut)
	}
	f.loadAll()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// TestMoveWithoutConfigMap: a move goes on although somebody deletes the ConfigMap of the proxies in each phase. A list
// is not given to proxies before the StatefulSet has it.
func TestMoveWithoutConfigMap(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, workload: StatefulSet, proxy: {size: 1}}")
	f.becomeReadyWithProxy(3)
	f.setOrder(strconv.Quote(`{"after":[{"name":"cache-2"},{"name":"cache-0"},{"name":"cache-1"}]}`))
	f.loadAll()
	f.patch(`{"spec":{"size":2}}`)
	f.failures["apply StatefulSet"] = errors.New("no (by the test)")
	_, _ = f.reconcile()
	if f.phase() != contract.NoChange {
		t.Error("the proxies got a list that the StatefulSet does not have")
	}
	delete(f.failures, "apply StatefulSet")
	f.mustReconcile()
	var phases []string
	for before, after := f.list(); before != ""; before, after = f.list() {
		phases = append(phases, string(f.phase()))
		if before != "2 0 1" || after != "2 0" || len(phases) > 20 {
			t.Fatalf("got a change from %q to %q after the phases %q", before, after, phases)
		}
		if last := len(phases) - 1; last == 0 || phases[last] != phases[last-1] {
			f.must(f.api.Delete(f.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cache-proxy",
				Namespace: f.mc.Namespace}}))
			f.restartOperator()
			f.mustReconcile() // what the proxies have confirmed is void
			f.mustReconcile()
		}
		f.load(true)
		f.mustReconcile()
		f.mustReconcile()
	}
	if phases = slices.Compact(phases); !slices.Equal(phases, []string{"0", "1", "2"}) {
		t.Errorf("got the phases %q", phases)
	}
}
