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
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
	"github.com/example/memcached-operator/controllers/steps"
	"github.com/example/memcached-operator/internal/testing/apiserver"
)

// server is the state of one server of a StatefulSet, for setServers.
type server struct {
	template string // old or new
	ready    bool
}

// missing is a server without a pod.
var missing = server{}

func outdated() server { return server{"old", true} }
func updated() server  { return server{"new", true} }

func (s server) notReady() server {
	s.ready = false
	return s
}

// TestStatefulSetRollout: the operator replaces the servers of a StatefulSet one at a time, and reports each step.
func TestStatefulSetRollout(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, workload: StatefulSet}")
	f.mustReconcile()
	if !get[corev1.Service](f).Spec.PublishNotReadyAddresses {
		t.Error("got publishNotReadyAddresses false: the name of a server that restarts does not resolve")
	}
	f.setServers(updated(), updated(), updated())
	f.mustReconcile()
	f.wantRequests("patch status")
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	host := ".cache." + f.mc.Namespace + ".svc:11211"
	addresses := []string{"cache-0" + host, "cache-1" + host, "cache-2" + host}

	f.patch(`{"spec":{"memory":"128Mi"}}`)
	f.mustReconcile()
	f.wantRequests("apply StatefulSet", "patch status")
	for _, step := range []struct {
		servers  []server
		requests []string
	}{
		{[]server{outdated(), outdated(), outdated()}, []string{"get StatefulSet", "list Pod", "delete Pod"}},
		{[]server{outdated(), outdated(), missing}, nil},
		{[]server{outdated(), outdated(), updated().notReady()}, nil},
		{[]server{outdated(), outdated(), updated()}, []string{"get StatefulSet", "list Pod", "delete Pod", "patch status"}},
		{[]server{outdated().notReady(), updated(), updated()},
			[]string{"get StatefulSet", "list Pod", "delete Pod", "patch status"}},
		{[]server{updated().notReady(), updated(), updated()}, []string{"patch status"}},
	} {
		f.setServers(step.servers...)
		f.now = f.now.Add(3 * steps.Pace)
		f.mustReconcile()
		if step.requests != nil {
			f.wantRequests(step.requests...)
		} else if slices.Contains(f.requests, "delete Pod") {
			t.Errorf("%v: got requests %q, want no pod deleted", step.servers, f.requests)
		}
		f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRollingOut)
		if !slices.Equal(f.mc.Status.Servers, addresses) {
			t.Errorf("%v: got status.servers %q, want %q", step.servers, f.mc.Status.Servers, addresses)
		}
	}
	f.setServers(updated(), updated(), updated())
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)

	// The informer cache does not show yet that somebody changed the template.
	f.setServers(outdated(), outdated(), outdated())
	f.cached["StatefulSet"] = get[appsv1.StatefulSet](f)
	f.must(f.api.Patch(f.ctx, get[appsv1.StatefulSet](f),
		mergePatch(`{"spec":{"template":{"metadata":{"annotations":{"a":"b"}}}}}`)))
	f.mustReconcile()
	if slices.Contains(f.requests, "delete Pod") {
		t.Errorf("got requests %q, want no pod deleted: the newest template is unknown", f.requests)
	}
}

// TestRefusedTemplate: no server is replaced while the API server refuses the newest template.
func TestRefusedTemplate(t *testing.T) {
	f := newFixtureOf(t, "{size: 2, workload: StatefulSet}")
	f.mustReconcile()
	f.setServers(updated(), updated())
	f.mustReconcile()
	f.patch(`{"spec":{"memory":"128Mi"}}`)
	f.mustReconcile()
	f.patch(`{"spec":{"memory":"64Mi"}}`)
	f.setServers(outdated(), outdated())
	f.failures["apply StatefulSet"] = forbidden("denied by a policy")
	f.wantReconcileError("denied by a policy")
	if slices.Contains(f.requests, "delete Pod") {
		t.Errorf("got requests %q, want no pod deleted", f.requests)
	}
	f.failures = map[string]error{}
	f.mustReconcile()
	f.setServers(outdated(), outdated())
	f.mustReconcile()
	if !slices.Contains(f.requests, "delete Pod") {
		t.Errorf("got requests %q, want a pod deleted", f.requests)
	}
}

// TestWarmUp: the next server is replaced once the agents report that the new one holds its share of items, and the
// status says how many.
func TestWarmUp(t *testing.T) {
	f := newFixtureOf(t, `{size: 2, workload: StatefulSet, metrics: {},
		rollout: {warmUp: {percent: 50, timeoutSeconds: 86400}}}`)
	f.mustReconcile()
	f.setServers(updated(), updated())
	f.mustReconcile()
	f.patch(`{"spec":{"threads":2}}`)
	f.mustReconcile()
	f.setServers(outdated(), updated())
	step := func(silent bool, items int64, message string, requests ...string) {
		t.Helper()
		f.now = f.now.Add(3 * steps.Pace)
		f.silent, f.items = silent, map[string]int64{podIP("cache-0"): 100, podIP("cache-1"): items}
		result := f.mustReconcile()
		f.wantRequests(requests...)
		if message == "" {
			return
		}
		f.wantMessage(v1alpha1.ConditionReady, "1 of 2 servers updated, 2 ready; "+message)
		if want := map[bool]time.Duration{false: 5 * time.Second, true: steps.Later}[silent]; result.RequeueAfter != want {
			t.Errorf("got a reconcile after %s, want %s", result.RequeueAfter, want)
		}
	}
	step(false, 49, "server cache-1 holds 49 % of the items of the others, warm with 50 %", "patch status")
	step(true, 0, "server cache-1 cannot be compared: its agent or those of the others do not answer", "patch status")
	step(false, 50, "", "patch Pod", "patch status")
	step(false, 0, "", "get StatefulSet", "list Pod", "delete Pod")
}

// TestFlush: servers drop their items one after the other, once the Memcached is not ready any more, and the next one
// waits until the one before is warm. Servers that are created later drop nothing.
func TestFlush(t *testing.T) {
	f := newFixtureOf(t, `{size: 2, workload: StatefulSet, metrics: {}, rollout: {warmUp: {timeoutSeconds: 86400}}}`)
	f.flushAt("at its creation")
	f.mustReconcile()
	f.setServers(updated(), updated())
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)

	f.patch(`{"spec":{"paused":true}}`)
	f.flushAt("now")
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPaused)
	f.patch(`{"spec":{"paused":false}}`)
	step := func(items int64, message string, requests ...string) (wait time.Duration) {
		t.Helper()
		f.now = f.now.Add(3 * steps.Pace)
		f.items = map[string]int64{podIP("cache-0"): items, podIP("cache-1"): 100}
		wait = f.mustReconcile().RequeueAfter
		f.wantRequests(requests...)
		f.wantMessage(v1alpha1.ConditionReady, message)
		return wait
	}
	annotation := func(name string) string { return f.pod(name).Annotations[v1alpha1.FlushAnnotation] }
	step(100, "2 of 2 servers ready, 2 to drop their items", "apply StatefulSet", "get StatefulSet",
		"list Pod", "patch Pod", "patch status")
	f.cached["Pod"] = f.pod("cache-1") // the informer cache does not show that cache-0 was asked
	f.mustReconcile()
	if got := annotation("cache-1"); got != "" {
		t.Errorf("cache-1 has the annotation %q, although cache-0 has not dropped its items yet", got)
	}
	delete(f.cached, "Pod")
	f.silent = true
	if wait := step(100, "; server cache-0 does not answer the operator on port 9151", "patch status"); wait != steps.Later {
		t.Errorf("got a reconcile after %s, want %s", wait, steps.Later)
	}
	f.silent = false
	refreshed := f.pod("cache-0").Annotations[v1alpha1.RefreshedAnnotation]
	step(100, "; server cache-0: memcached drops its items", "patch Pod", "patch status")
	if f.pod("cache-0").Annotations[v1alpha1.RefreshedAnnotation] == refreshed {
		t.Error("the kubelet was not asked to refresh the files of the agent again")
	}
	f.flushed = []string{"cache-0"}
	step(79, "1 to drop their items; server cache-0 holds 79 % of the items of the others, warm with 80 %", "patch status")
	step(80, "1 to drop their items", "get StatefulSet", "list Pod", "patch Pod", "patch status")
	f.flushed = []string{"cache-0", "cache-1"}
	step(80, "2 of 2 servers ready", "patch StatefulSet", "patch status")
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.mustReconcile()
	f.wantRequests("apply StatefulSet") // which records the flush
	f.mustReconcile()
	f.wantRequests()
	f.patch(`{"metadata":{"annotations":null}}`)
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	f.flushAt("again")
	step(80, "2 to drop their items", "patch status", "get StatefulSet", "list Pod", "patch Pod")

	// The flush is taken back while the agent of a server is silent.
	f.silent = true
	f.patch(`{"metadata":{"annotations":null}}`)
	if result := f.mustReconcile(); result.RequeueAfter != steps.Soon || annotation("cache-0") != "" {
		t.Errorf("got a reconcile after %s and the annotation %q, want cache-0 asked no more, and another reconcile soon",
			result.RequeueAfter, annotation("cache-0"))
	}
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// TestFlushOfNewMemcached: the servers of a Memcached that is created with the annotation have nothing to drop.
func TestFlushOfNewMemcached(t *testing.T) {
	f := newFixtureOf(t, `{size: 1, workload: StatefulSet}`)
	f.flushAt("long ago")
	f.mustReconcile()
	f.setServers(updated())
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	if got := f.pod("cache-0").Annotations[v1alpha1.FlushAnnotation]; got != "" {
		t.Errorf("the server was asked to drop its items: %q", got)
	}
}

// flushAt asks for a flush.
func (f *fixture) flushAt(value string) {
	f.Helper()
	f.patch(fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.FlushedAtAnnotation, value))
}

// TestFlushWithoutMetrics: the status says that servers without an agent that reports cannot be flushed.
func TestFlushWithoutMetrics(t *testing.T) {
	f := newFixture(t)
	f.mustReconcile()
	f.becomeReady()
	f.now = time.Now().Add(time.Second) // after the creation of the pods
	f.flushAt("now")
	f.mustReconcile()
	f.now = f.now.Add(3 * steps.Pace)
	f.mustReconcile()
	f.wantMessage(v1alpha1.ConditionReady, "3 to drop their items; server cache-0 has no agent that can flush it")
	f.flushAt("")
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// TestMemory: a server gets another memory in steps, each after the one before was seen, and is not replaced. The
// status says what a step waits for.
func TestMemory(t *testing.T) {
	f := newFixtureOf(t, "{size: 1, workload: StatefulSet, metrics: {}, memory: 64Mi}")
	f.mustReconcile()
	f.setServers(updated())
	f.mustReconcile()
	// The API server compares what the pods of a node request with the node.
	one := resource.MustParse("1Gi")
	room := corev1.ResourceList{corev1.ResourceMemory: one, corev1.ResourceCPU: one}
	f.must(f.api.Create(f.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"},
		Status: corev1.NodeStatus{Allocatable: room}}))
	before := status.ReadMemory(&get[appsv1.StatefulSet](f).Spec.Template.Spec)
	f.patch(`{"spec":{"memory":"128Mi"}}`)
	f.mustReconcile()
	set := get[appsv1.StatefulSet](f)
	wanted := status.ReadMemory(&set.Spec.Template.Spec)
	set.Status.ObservedGeneration, set.Status.UpdateRevision, set.Status.UpdatedReplicas = set.Generation, "newer", 0
	f.must(f.api.Status().Update(f.ctx, set))

	pod := func() *corev1.Pod { return f.pod("cache-0") }
	step := func(retry time.Duration, message string, requests ...string) {
		t.Helper()
		f.now = f.now.Add(3 * steps.Pace)
		result := f.mustReconcile()
		f.wantRequests(requests...)
		f.wantMessage(v1alpha1.ConditionReady, "0 of 1 servers updated, 1 ready"+message)
		if result.RequeueAfter != retry {
			t.Errorf("got a reconcile after %s, want %s", result.RequeueAfter, retry)
		}
	}
	wantAnnotation := func(want string) {
		t.Helper()
		if got := pod().Annotations[v1alpha1.MemoryAnnotation]; got != want {
			t.Errorf("got the annotation %q, want %q", got, want)
		}
	}
	step(steps.Soon, "", "patch resize", "patch Pod")
	wantAnnotation("64 2")
	f.failures["patch resize"] = apierrors.NewForbidden(corev1.Resource("pods"), "cache-0", errors.New("there is no room"))
	step(steps.Later, `; server cache-0: pods "cache-0" is forbidden: there is no room`, "patch resize", "patch status")
	delete(f.failures, "patch resize")
	step(steps.Soon, "", "patch resize", "patch status")
	if got := status.ReadMemory(&pod().Spec); got.Limit != wanted.Limit || got.Request != wanted.Request {
		t.Errorf("got a container with %+v after %+v, want %+v", got, before, wanted)
	}
	step(steps.Later, "; server cache-0: the kubelet changes the memory of the container", "patch status")
	resized := pod()
	resized.Status.ObservedGeneration = resized.Generation
	resized.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: names.Container, Ready: true, Image: "memcached",
		Resources: &resized.Spec.Containers[0].Resources}}
	f.must(f.api.Status().Update(f.ctx, resized))
	step(steps.Soon, "", "patch Pod", "patch status")
	wantAnnotation("128 2")
	f.silent = true
	step(steps.Later, "; server cache-0 does not answer the operator on port 9151", "patch status")
	f.silent, f.report = false, contract.Report{Memory: 64 << 20, Applied: "64 2"}
	step(steps.Soon, "; server cache-0: memcached has 64 MiB, and gets 128 MiB", "patch Pod", "patch status")
	f.report.Problem = "it is full"
	step(steps.Later, "; server cache-0: it is full", "patch status")
	f.report = contract.Report{Memory: 128 << 20, Applied: "128 2"}
	step(steps.Soon, "", "patch Pod", "patch status")
	wantAnnotation("128 2 done")
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

// TestRefusedReplacement: the status says why a server cannot be replaced. If one pod cannot be annotated, the others
// still are.
func TestRefusedReplacement(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, workload: StatefulSet, auth: {secretName: passwords}}")
	f.createPasswords("app:first\n")
	f.mustReconcile()
	f.setServers(updated(), updated(), updated())
	refused := forbidden("denied by a policy")
	f.failures["patch Pod cache-0"] = refused
	f.wantReconcileError("annotate pod cache-0")
	for _, pod := range f.pods() {
		if annotated := pod.Annotations[v1alpha1.SecretsAnnotation] != ""; annotated != (pod.Name != "cache-0") {
			t.Errorf("pod %s: got annotated %t, want %t", pod.Name, annotated, !annotated)
		}
	}
	f.failures = map[string]error{"delete Pod": refused}
	f.patch(`{"spec":{"memory":"128Mi"}}`)
	f.mustReconcile()
	f.setServers(outdated(), outdated(), outdated())
	f.wantReconcileError("replace a server")
	f.wantMessage(v1alpha1.ConditionReady, "denied by a policy")
}

// TestPausedRollout: spec.paused stops a rollout, and servers that are lost meanwhile are reported.
func TestPausedRollout(t *testing.T) {
	f := newFixtureOf(t, "{size: 3, workload: StatefulSet}")
	f.mustReconcile()
	f.setServers(updated(), updated(), updated())
	f.mustReconcile()
	f.patch(`{"spec":{"memory":"128Mi"}}`)
	f.mustReconcile()
	f.patch(`{"spec":{"paused":true}}`)
	for _, step := range []struct {
		servers  []server
		degraded metav1.ConditionStatus
		reason   string
	}{
		{[]server{outdated(), outdated(), updated()}, metav1.ConditionFalse, v1alpha1.ReasonAsExpected},
		{[]server{outdated().notReady(), outdated(), updated()}, metav1.ConditionTrue, v1alpha1.ReasonServersLost},
		{[]server{outdated(), outdated(), updated()}, metav1.ConditionFalse, v1alpha1.ReasonAsExpected},
	} {
		f.setServers(step.servers...)
		f.mustReconcile()
		if slices.Contains(f.requests, "delete Pod") {
			t.Errorf("%v: got requests %q, want no pod deleted", step.servers, f.requests)
		}
		f.wantCondition(v1alpha1.ConditionDegraded, step.degraded, step.reason)
	}
}

// TestServerServices: each server has a Service with an address. The Service is deleted when the server is removed.
func TestServerServices(t *testing.T) {
	f := newFixtureOf(t, "{size: 2, workload: StatefulSet, serverAddresses: ClusterIP}")
	f.mustReconcile()
	f.setServers(updated(), updated())
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	var want []string
	for i := range 2 {
		s := &corev1.Service{}
		f.must(f.api.Get(f.ctx, f.key(fmt.Sprintf("cache-%d", i)), s))
		want = append(want, s.Spec.ClusterIP+":11211")
	}
	if !slices.Equal(f.mc.Status.Servers, want) {
		t.Errorf("got status.servers %q, want %q", f.mc.Status.Servers, want)
	}
	f.patch(`{"spec":{"size":1}}`)
	f.mustReconcile()
	f.wantRequests("apply StatefulSet", "delete Service", "patch status")
	if !slices.Equal(f.mc.Status.Servers, want[:1]) {
		t.Errorf("got status.servers %q, want %q", f.mc.Status.Servers, want[:1])
	}
}

// TestIPv6: in a cluster whose Services have IPv6 addresses, clients and proxies get these, in brackets.
func TestIPv6(t *testing.T) {
	apiserver.Need(t)
	t.Parallel()
	environment := newEnvironment()
	environment.ControlPlane.GetAPIServer().Configure().
		Set("service-cluster-ip-range", "fd00:10::/112").
		Set("advertise-address", "fd00::1")
	api, err := startAPIServer(environment)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := environment.Stop(); err != nil {
			t.Error(err)
		}
	})
	for spec, got := range map[string]func(*fixture) []string{
		"{workload: StatefulSet, serverAddresses: ClusterIP}": func(f *fixture) []string { return f.mc.Status.Servers },
		"{workload: StatefulSet, proxy: {}}": func(f *fixture) []string {
			config := &corev1.ConfigMap{}
			f.must(f.api.Get(f.ctx, f.key("cache-proxy"), config))
			return []string{contract.ParseServers(config.Data).After[0].Address}
		},
	} {
		f := newFixtureOn(t, api, spec)
		f.mustReconcile()
		f.setServers(updated())
		f.mustReconcile()
		s := &corev1.Service{}
		f.must(f.api.Get(f.ctx, f.key("cache-0"), s))
		want := "[" + s.Spec.ClusterIP + "]:11211"
		if !slices.Equal(got(f), []string{want}) || !strings.HasPrefix(want, "[fd00:10::") {
			t.Errorf("%s: got the server %q, want %q", spec, got(f), want)
		}
	}
}
