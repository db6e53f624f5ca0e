package controllers

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/status"
	"github.com/example/memcached-operator/internal/testing/apiserver"
	"github.com/example/memcached-operator/internal/testing/simulator"
)

// TestStatefulSetRollout: the operator replaces the servers of a StatefulSet one at a time. Meanwhile the Memcached is
// not Ready, and the addresses stay.
func TestStatefulSetRollout(t *testing.T) {
	f := ready(t, onStatefulSet)
	if !get[corev1.Service](f).Spec.PublishNotReadyAddresses {
		t.Error("got publishNotReadyAddresses false: the name of a server that restarts does not resolve")
	}
	host := ".cache." + f.Key.Namespace + ".svc:11211"
	addresses := []string{"cache-0" + host, "cache-1" + host, "cache-2" + host}
	f.set(`{"threads":2}`)
	f.mustReconcile()
	f.wantNotReady(v1alpha1.ReasonRollingOut, "")
	f.until("Ready", func() bool {
		ready, updated := 0, 0
		for _, pod := range f.pods("") {
			if _, ok := simulator.ReadySince(pod); ok && pod.DeletionTimestamp == nil {
				ready++
			}
			if slices.Contains(pod.Spec.Containers[0].Args, "2") {
				updated++
			}
		}
		if ready < 2 || f.isReady() && updated != 3 || !slices.Equal(f.mc.Status.Servers, addresses) {
			t.Errorf("%d servers are ready, %d updated, and the status is %+v", ready, updated, f.mc.Status)
		}
		return f.isReady()
	})

	// The informer cache does not show yet that somebody changed the template.
	f.set(`{"threads":4}`)
	f.mustReconcile()
	f.act()
	f.act()
	f.cached["StatefulSet"] = get[appsv1.StatefulSet](f)
	f.Patch(get[appsv1.StatefulSet](f), `{"spec":{"template":{"metadata":{"annotations":{"a":"b"}}}}}`)
	f.mustReconcile()
	if f.has("delete Pod") {
		t.Errorf("got requests %q, want no pod deleted: the newest template is unknown", f.requests)
	}
}

// TestRefused: no server is replaced while the API server refuses the newest template. The status says why a server
// cannot be replaced. If one pod cannot be annotated, the others still are.
func TestRefused(t *testing.T) {
	refused := forbidden("denied by a policy")
	f := newFixture(t, "{size: 3, workload: StatefulSet, auth: {secretName: passwords}}")
	f.writePasswords("app:first\n")
	f.settle()
	f.writePasswords("app:second\n")
	f.failures["patch Pod cache-0"] = refused
	f.reconcileError("annotate pod cache-0")
	first := f.pod("cache-0").Annotations[v1alpha1.SecretsAnnotation]
	for _, name := range []string{"cache-1", "cache-2"} {
		if f.pod(name).Annotations[v1alpha1.SecretsAnnotation] == first {
			t.Errorf("%s was not annotated", name)
		}
	}
	clear(f.failures)
	f.settle()
	f.set(`{"threads":2}`)
	f.mustReconcile()
	f.act()
	f.failures["apply StatefulSet"] = refused
	f.set(`{"threads":3}`)
	for range 3 {
		f.reconcileError("denied by a policy")
		if f.has("delete Pod") {
			t.Errorf("got requests %q, want no pod deleted", f.requests)
		}
		f.act()
	}
	clear(f.failures)
	f.failures["delete Pod"] = refused
	f.mustReconcile()
	f.act()
	f.reconcileError("replace a server")
	f.wantNotReady(v1alpha1.ReasonProgressingWithRetry, "denied by a policy")
	clear(f.failures)
	f.settle()
	f.wantReady()
}

// TestPausedRollout: spec.paused stops a rollout, and servers that are lost meanwhile are reported.
func TestPausedRollout(t *testing.T) {
	f := ready(t, onStatefulSet)
	f.set(`{"threads":2}`)
	f.mustReconcile()
	f.set(`{"paused":true}`)
	f.settle()
	f.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonAsExpected)
	if n := f.Started["server"]; n != 3 {
		t.Errorf("%d servers were started while paused, want 3", n)
	}
	f.lose("cache-0")
	f.act()
	f.mustReconcile()
	f.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonServersLost)
	f.settle()
	f.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonAsExpected)
}

// holding lets agents report these numbers of items, by server.
func (f *fixture) holding(items map[string]int64) {
	f.Agents.Change = func(pod *corev1.Pod, r *contract.Report) { r.Items = items[pod.Name] }
}

// TestWarmUp: the next server is replaced once the agents report that the new one holds its share of items, and the
// status says how many.
func TestWarmUp(t *testing.T) {
	f := ready(t, `{size: 2, workload: StatefulSet, metrics: {},
		rollout: {warmUp: {percent: 50, timeoutSeconds: 86400}}}`)
	f.holding(map[string]int64{"cache-0": 100, "cache-1": 49})
	f.set(`{"threads":2}`)
	f.settle()
	f.wantNotReady(v1alpha1.ReasonRollingOut, "1 of 2 servers updated, 2 ready; "+
		"server cache-1 holds 49 % of the items of the others, warm with 50 %")
	f.silent = true
	f.settle()
	f.wantMessage(v1alpha1.ConditionReady, "its agent or those of the others do not answer")
	f.silent = false
	f.holding(map[string]int64{"cache-0": 100, "cache-1": 50})
	f.settle()
	f.wantReady()
}

// TestClocks: whatever the operator's clock says, it does the same at the same time: it waits for minReadySeconds and
// for servers to warm up, replaces a server that was lost, and gives up a deletion.
func TestClocks(t *testing.T) {
	const spec = `{size: 3, workload: StatefulSet, metrics: {},
		rollout: {minReadySeconds: 12, warmUp: {timeoutSeconds: 16}}}`
	apiserver.Need(t)
	t.Parallel()
	var want string
	for _, skew := range []time.Duration{0, time.Hour, -time.Hour} {
		f := newFixtureIn(t, spec)
		f.skew = skew
		f.Agents.Change = func(pod *corev1.Pod, r *contract.Report) {
			if r.Items = 100; slices.Contains(pod.Spec.Containers[0].Args, "2") {
				r.Items = 0 // clients never use it
			}
		}
		var log strings.Builder
		begin := f.now
		until := func(what string, holds func() bool) {
			t.Helper()
			fmt.Fprintln(&log, what)
			f.until(what, func() bool {
				if f.has("") {
					fmt.Fprintln(&log, f.now.Sub(begin), f.requests)
				}
				return holds()
			})
		}
		until("create", f.isReady)
		f.set(`{"threads":2}`)
		until("replace", func() bool { return f.isReady() && f.mc.Status.ObservedGeneration == 2 })
		f.lose("cache-1")
		until("lose", func() bool { return !f.isReady() })
		until("recover", f.isReady)
		f.delete(metav1.DeletePropagationBackground)
		until("delete", func() bool { return f.mc.Status.Phase == v1alpha1.PhaseDeleting })
		f.now = f.now.Add(finalizeTimeout - time.Minute)
		until("give up", func() bool { return !f.hasFinalizer() })
		if want == "" {
			want = log.String()
			t.Log(want)
		}
		if got := log.String(); got != want {
			t.Errorf("with a clock that differs by %s: got\n%s\nwant\n%s", skew, got, want)
		}
	}
}

// asked returns the servers that were asked to drop their items.
func (f *fixture) asked() string {
	f.Helper()
	var list []string
	for _, pod := range f.pods("server") {
		if pod.Annotations[v1alpha1.FlushAnnotation] != "" {
			list = append(list, pod.Name)
		}
	}
	return strings.Join(list, " ")
}

// TestFlush: servers drop their items one after the other, once the Memcached is not ready any more, and the next one
// waits until the one before is warm. Servers that are created later drop nothing.
func TestFlush(t *testing.T) {
	f := newFixture(t, `{size: 2, workload: StatefulSet, metrics: {}, rollout: {warmUp: {timeoutSeconds: 86400}}}`)
	f.annotate(v1alpha1.FlushedAtAnnotation, "at its creation")
	f.settle()
	f.wantReady()
	wantAsked := func(want string) {
		t.Helper()
		if got := f.asked(); got != want {
			t.Errorf("%q were asked to drop their items, want %q", got, want)
		}
	}
	wantAsked("")
	f.set(`{"paused":true}`)
	f.annotate(v1alpha1.FlushedAtAnnotation, "now")
	f.settle()
	f.wantNotReady(v1alpha1.ReasonPaused, "")
	wantAsked("")

	f.holding(map[string]int64{"cache-0": 79, "cache-1": 100})
	f.set(`{"paused":false}`)
	f.mustReconcile()
	wantAsked("cache-0")
	f.wantMessage(v1alpha1.ConditionReady, "2 of 2 servers ready, 2 to drop their items")
	f.cached["Pod"] = f.pod("cache-1") // the informer cache does not show that cache-0 was asked
	f.mustReconcile()
	wantAsked("cache-0")
	clear(f.cached)
	f.silent = true
	f.settle()
	f.wantMessage(v1alpha1.ConditionReady, "; server cache-0 does not answer the operator on port 9151")
	f.silent = false
	f.settle()
	f.wantMessage(v1alpha1.ConditionReady, "server cache-0 holds 79 % of the items of the others, warm with 80 %")
	wantAsked("cache-0")
	f.holding(map[string]int64{"cache-0": 80, "cache-1": 100})
	f.settle()
	f.wantReady()
	wantAsked("cache-0 cache-1")
	f.annotate(v1alpha1.FlushedAtAnnotation, "")
	f.settle()
	f.wantReady()

	// The next flush is taken back while agents are silent.
	before := f.pod("cache-0").Annotations[v1alpha1.FlushAnnotation]
	f.silent = true
	f.annotate(v1alpha1.FlushedAtAnnotation, "again")
	f.mustReconcile()
	f.wantBefore("patch status", "patch Pod")
	if f.pod("cache-0").Annotations[v1alpha1.FlushAnnotation] == before {
		t.Errorf("got requests %q, want cache-0 asked again", f.requests)
	}
	f.annotate(v1alpha1.FlushedAtAnnotation, "")
	f.settle()
	f.wantReady()
	wantAsked("cache-1")
}

// TestMemory: a server gets another memory while it runs. The status says why the node refuses that, and memcached does
// not get the memory before its container has it.
func TestMemory(t *testing.T) {
	f := ready(t, "{size: 1, workload: StatefulSet, metrics: {}, memory: 64Mi}")
	f.failures["patch resize"] = forbidden("there is no room")
	f.set(`{"memory":"128Mi"}`)
	for range 4 {
		f.round()
	}
	f.wantNotReady(v1alpha1.ReasonRollingOut, "there is no room")
	if got := simulator.ItemMemory(f.pod("cache-0")); got != 64 {
		t.Errorf("memcached gets %d MiB in a container that has no room for them", got)
	}
	clear(f.failures)
	f.settle()
	f.wantReady()
	pod, want := f.pod("cache-0"), status.ReadMemory(&get[appsv1.StatefulSet](f).Spec.Template.Spec)
	if got := status.ReadMemory(&pod.Spec); got.Limit != want.Limit || got.Request != want.Request ||
		simulator.ItemMemory(pod) != 128 || f.Started["server"] != 1 {
		t.Errorf("got a container with %+v, memcached with %d MiB, and %d servers started, want %+v, 128, and 1", got,
			simulator.ItemMemory(pod), f.Started["server"], want)
	}
}

// TestLostServerIsReplaced: a server that fails is lost, even if the operator replaces it, because memcached would
// start with the memory that it had before.
func TestLostServerIsReplaced(t *testing.T) {
	f := ready(t, "{size: 1, workload: StatefulSet, metrics: {}, memory: 64Mi}")
	f.set(`{"memory":"128Mi"}`)
	f.settle()
	f.wantReady()
	f.setStatus("cache-0", func(is *corev1.PodStatus) {
		for i := range is.Conditions {
			is.Conditions[i].Status = corev1.ConditionFalse
		}
		is.ContainerStatuses[0].Ready = false
		is.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137,
			Reason: "OOMKilled"}}
	})
	for range 3 {
		f.mustReconcile()
		f.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonServersLost)
		f.act()
	}
	if f.Started["server"] != 2 {
		t.Errorf("%d servers were started, want 2", f.Started["server"])
	}
	f.settle()
	f.wantReady()
	f.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonAsExpected)
}

// TestIPFamilies: in a dual-stack cluster, clients and proxies get addresses of the cluster's first family, here IPv6,
// in brackets. spec.service.ipFamilyPolicy adds and removes addresses of the other family.
func TestIPFamilies(t *testing.T) {
	apiserver.Need(t)
	t.Parallel()
	environment := newEnvironment("fd00:10::/112,10.0.0.0/24")
	environment.ControlPlane.GetAPIServer().Configure().Set("advertise-address", "fd00::1")
	api, err := startAPIServer(environment)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := environment.Stop(); err != nil {
			t.Error(err)
		}
	})
	for spec, got := range map[string]func(*fixture) string{
		"{workload: StatefulSet, serverAddresses: ClusterIP}": func(f *fixture) string { return f.mc.Status.Servers[0] },
		"{workload: StatefulSet, proxy: {}}": func(f *fixture) string {
			return contract.ParseServers(getNamed[corev1.ConfigMap](f, "cache-proxy").Data).After[0].Address
		},
	} {
		f := newFixtureOn(t, api, spec)
		for i, policy := range []corev1.IPFamilyPolicy{"SingleStack", "PreferDualStack", "SingleStack"} {
			f.set(fmt.Sprintf(`{"service":{"ipFamilyPolicy":%q}}`, policy))
			f.settle()
			ips := getNamed[corev1.Service](f, "cache-0").Spec.ClusterIPs
			if want := "[" + ips[0] + "]:11211"; len(ips) != 1+i%2 || got(f) != want || !strings.HasPrefix(want, "[fd00:10::") {
				t.Errorf("%s, %s: got the server %q with the addresses %q", spec, policy, got(f), ips)
			}
		}
	}
}
