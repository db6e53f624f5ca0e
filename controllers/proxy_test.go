package controllers

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
	"github.com/example/memcached-operator/controllers/steps"
)

// list returns the servers that the proxies are told, such as "0 1 > 0 1 2" in phase 1; "> 0 1" without a change.
func (f *fixture) list() (list, phase string) {
	f.Helper()
	f.observe()
	told := f.state.Proxies()
	text := strings.Join(told.Before, " ") + " > " + strings.Join(told.After, " ")
	return strings.TrimSpace(strings.ReplaceAll(text, "cache-", "")), told.Phase
}

// lists does rounds until the Memcached is Ready. It returns the lists of the proxies meanwhile, each change once.
func (f *fixture) lists() (all []string) {
	f.Helper()
	f.until("Ready", func() bool {
		list, _ := f.list()
		all = append(all, list)
		return f.isReady()
	})
	return slices.Compact(all)
}

// proxyName is the name of the only proxy.
func (f *fixture) proxyName() string {
	f.Helper()
	return f.pods("proxy")[0].Name
}

func (f *fixture) replicas() int {
	f.Helper()
	return int(*get[appsv1.StatefulSet](f).Spec.Replicas)
}

func (f *fixture) proxyConfig() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: f.Object("cache-proxy")}
}

// TestProxy: a Memcached with a proxy has one address, that of the proxy. It becomes ready once the proxies use the
// list of servers.
func TestProxy(t *testing.T) {
	f := newFixture(t, withProxy)
	f.silent = true
	f.settle()
	f.wantNotReady(v1alpha1.ReasonRollingOut,
		"2 of 2 servers ready; proxy "+f.proxyName()+" does not answer the operator on port 9151")
	f.silent = false
	f.Agents.Change = func(_ *corev1.Pod, r *contract.Report) { r.ListHash = "another" }
	for range 3 {
		f.round()
	}
	f.wantNotReady(v1alpha1.ReasonRollingOut,
		"2 of 2 servers ready; proxy "+f.proxyName()+" has not loaded the list of servers yet")
	f.Agents.Change = nil
	f.settle()
	f.wantReady()
	if want := "cache-proxy." + f.Key.Namespace + ".svc:11211"; !slices.Equal(f.mc.Status.Servers, []string{want}) {
		t.Errorf("got status.servers %q, want %q", f.mc.Status.Servers, want)
	}
	if len(f.mc.Status.Nodes) != 2 || f.mc.Status.Replicas != 2 {
		t.Errorf("got status.nodes %q and %d replicas, want 2: proxies are no servers", f.mc.Status.Nodes,
			f.mc.Status.Replicas)
	}
	f.set(`{"paused":true}`)
	f.settle()
	f.wantReady()
	f.set(`{"size":3,"proxy":null,"paused":false}`)
	f.settle()
	f.wantReady()
	for _, obj := range []client.Object{&appsv1.Deployment{}, &corev1.ConfigMap{}, &policyv1.PodDisruptionBudget{},
		&corev1.Service{}} {
		if f.exists("cache-proxy", obj) {
			t.Errorf("the proxy's %T still exists", obj)
		}
	}
	if len(f.mc.Status.Servers) != 3 {
		t.Errorf("got status.servers %q, want 3 servers", f.mc.Status.Servers)
	}
}

// TestResizeWithProxy: while servers are added and removed, the status says what the mover does. A server is removed
// once the proxies do not use it, and proxies are not replaced. The steps and their order are those of TestNext of the
// package steps.
func TestResizeWithProxy(t *testing.T) {
	f := ready(t, withProxy)
	template := getNamed[appsv1.Deployment](f, "cache-proxy").Spec.Template
	for _, tt := range []struct {
		size int
		want []string
		more string
	}{
		{3, []string{"> 0 1", "0 1 > 0 1 2", "> 0 1 2"}, ""},
		{1, []string{"> 0 1 2", "0 1 2 > 0", "> 0"}, ", 2 more to remove"},
	} {
		f.set(fmt.Sprintf(`{"size":%d}`, tt.size))
		var got, said []string
		f.until("Ready", func() bool {
			list, phase := f.list()
			if got = append(got, list); phase != "" && f.replicas() < 3 {
				t.Errorf("got %d servers while the proxies are told %q, want 3", f.replicas(), list)
			}
			said = append(said, meta.FindStatusCondition(f.mc.Status.Conditions, v1alpha1.ConditionReady).Message)
			return f.isReady()
		})
		if got = slices.Compact(got); !slices.Equal(got, tt.want) {
			t.Errorf("got the lists %q, want %q", got, tt.want)
		}
		for _, work := range []string{"deleting items of earlier changes, 50 %", "moving items, 50 %"} {
			want := fmt.Sprintf("%d of %d servers ready%s; %s", tt.size, tt.size, tt.more, work)
			if !slices.Contains(said, want) {
				t.Errorf("got the messages %q, want %q", slices.Compact(said), want)
			}
		}
	}
	if got := f.replicas(); got != 1 {
		t.Errorf("got %d servers, want 1", got)
	}
	if !equality.Semantic.DeepEqual(getNamed[appsv1.Deployment](f, "cache-proxy").Spec.Template, template) {
		t.Error("the template of the proxies changed with the number of servers")
	}
}

// TestServerIsEmptied: a server that is replaced, evicted, or whose container the kubelet stops, serves until its items
// have moved to a spare server. It is used again once it is new, and the spare one is removed.
func TestServerIsEmptied(t *testing.T) {
	t.Parallel()
	const spec = "{size: 1, workload: StatefulSet, metrics: {}, proxy: {size: 1}}"
	for name, tt := range map[string]struct {
		stop   func(*fixture)
		pods   int // that were started in the end
		reason string
	}{
		"another template": {func(f *fixture) { f.set(`{"threads":2}`) }, 3, v1alpha1.ReasonRollingOut},
		"eviction": {func(f *fixture) { f.Must(f.API.Delete(f.Ctx, f.pod("cache-0"))) }, 3,
			v1alpha1.ReasonResizing},
		"stop of the container": {func(f *fixture) {
			uid, since := f.pod("cache-0").UID, status.RunningSince(f.pod("cache-0"))
			f.Agents.Change = func(pod *corev1.Pod, r *contract.Report) {
				r.Draining = pod.UID == uid && status.RunningSince(pod) == since
			}
		}, 2, v1alpha1.ReasonResizing},
	} {
		t.Run(name, func(t *testing.T) {
			f := ready(t, spec)
			f.now = f.now.Add(steps.Later)
			tt.stop(f)
			f.until("the list changed", func() bool {
				list, _ := f.list()
				return list != "> 0"
			})
			f.wantNotReady(tt.reason, "")
			got := f.lists()
			if want := []string{"0 > 1", "> 1", "1 > 0", "> 0"}; !slices.Equal(got, want) {
				t.Errorf("got the lists %q, want %q", got, want)
			}
			f.settle()
			f.wantReady()
			if f.replicas() != 1 || f.Started["server"] != tt.pods {
				t.Errorf("got %d servers, and %d were started, want 1 and %d", f.replicas(), f.Started["server"], tt.pods)
			}
		})
	}
}

// TestUnreachable: Ready is False while a proxy does not reach a server that is ready, and the message names both.
func TestUnreachable(t *testing.T) {
	f := ready(t, withProxy)
	f.Agents.Change = func(_ *corev1.Pod, r *contract.Report) { r.Unreachable = []string{"cache-7", "cache-1", "cache-0"} }
	for range 2 {
		f.now = f.now.Add(steps.Later)
		if wait := f.mustReconcile().RequeueAfter; wait <= 0 || wait > steps.Later {
			t.Errorf("proxies are asked again after %s", wait)
		}
	}
	f.wantNotReady(v1alpha1.ReasonProgressingWithRetry,
		"2 of 2 servers ready; proxy "+f.proxyName()+" does not reach server cache-0")
	f.wantCondition(v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonAsExpected)
	f.Agents.Change = nil
	f.now = f.now.Add(time.Second) // which is the time between two polls now
	f.mustReconcile()
	f.mustReconcile()
	f.wantReady()
}

// TestStalledMove: a move that cannot go on waits, or is given up, as whenMoveStalls says.
func TestStalledMove(t *testing.T) {
	t.Parallel()
	for _, when := range []v1alpha1.WhenMoveStalls{v1alpha1.WhenMoveStallsWait, v1alpha1.WhenMoveStallsProceed} {
		t.Run(string(when), func(t *testing.T) {
			f := ready(t, strings.Replace(withProxy, "{size: 1}", "{size: 1, whenMoveStalls: "+string(when)+"}", 1))
			f.set(`{"size":1}`)
			f.untilPhase(contract.PreferBefore)
			f.silent = true
			f.mustReconcile()
			f.now = f.now.Add(time.Hour)
			f.mustReconcile()
			f.wantStalled(v1alpha1.ReasonProgressDeadlineExceeded, "")
			f.mustReconcile()
			f.mustReconcile()
			list, _ := f.list()
			if want := map[bool]string{true: "0 1 > 0", false: "> 0"}[when == v1alpha1.WhenMoveStallsWait]; list != want ||
				f.replicas() != 2 { // the proxy may still use the servers before
				t.Errorf("got the servers %q and %d replicas, want %q and 2", list, f.replicas(), want)
			}
			if when == v1alpha1.WhenMoveStallsProceed {
				f.wantNotStalled() // so that the next move is not given up at once
			}
			f.silent = false
			f.settle()
			f.wantReady()
			if got := f.replicas(); got != 1 {
				t.Errorf("got %d servers, want 1", got)
			}
		})
	}
}

// untilPhase does rounds until the proxies are told this phase.
func (f *fixture) untilPhase(want contract.Phase) {
	f.Helper()
	f.until("phase "+string(want), func() bool {
		_, phase := f.list()
		return phase == string(want)
	})
}

// TestFailingMover: a mover that begins again and again makes no progress. After the deadline, the move is Stalled, and
// given up if whenMoveStalls says so. Meanwhile, the message says why the mover fails.
func TestFailingMover(t *testing.T) {
	f := ready(t, strings.Replace(withProxy, "{size: 1}", "{size: 1, whenMoveStalls: Proceed}", 1))
	f.set(`{"size":1}`)
	f.untilPhase(contract.PreferAfter)
	n := 0
	f.Agents.Change = func(_ *corev1.Pod, r *contract.Report) {
		r.MovedHash, r.Percent, r.Problem = "", 63-20*(n%3), "server cache-1 does not answer"
	}
	for phase := string(contract.PreferAfter); phase == string(contract.PreferAfter); _, phase = f.list() {
		f.silent = n%4 == 3
		f.now = f.now.Add(20 * time.Second)
		f.mustReconcile()
		n++
		if n == 5 {
			f.wantMessage(v1alpha1.ConditionReady,
				"1 of 1 servers ready, 1 more to remove; moving items, 43 %: server cache-1 does not answer")
		}
		if n == 25 { // 500 s
			f.wantNotStalled()
		}
		if n > 100 {
			t.Fatal("the move was not given up")
		}
	}
	f.wantNotStalled() // the next move gets its own time
}

// TestProceedAfterBegin: whenMoveStalls does not give up a move that begins while the Memcached is Stalled for another
// reason, whichever write fails then, and whatever the informer cache of the next operator shows.
func TestProceedAfterBegin(t *testing.T) {
	f := ready(t, strings.Replace(withProxy, "{size: 1}", "{size: 1, whenMoveStalls: Proceed}", 1))
	f.set(`{"size":3}`)
	f.mustReconcile()
	f.now = f.now.Add(time.Hour)
	f.mustReconcile()
	f.wantStalled(v1alpha1.ReasonProgressDeadlineExceeded, "")
	stalled := f.mc.DeepCopy()
	f.failures["patch status"] = apierrors.NewConflict(schema.GroupResource{}, "cache", errors.New("changed"))
	for range 3 { // a node has room
		f.act()
		f.mustReconcile()
	}
	if list, _ := f.list(); list != "> 0 1" {
		t.Errorf("the move to %q has begun, and the status still says that it has stalled", list)
	}
	clear(f.failures)
	f.untilPhase(contract.Purge)
	f.wantNotStalled()
	for range 3 {
		f.restartOperator()
		f.cached["Memcached"] = stalled
		f.mustReconcile()
		if list, phase := f.list(); phase != string(contract.Purge) {
			t.Fatalf("got %q in phase %q, want a move that goes on", list, phase)
		}
	}
}

// TestFlushAndMove: a flush does not begin while items move, and no item moves past a flush.
func TestFlushAndMove(t *testing.T) {
	t.Parallel()
	resize := func(f *fixture) { f.set(`{"size":1}`) }
	flush := func(f *fixture) { f.annotate(v1alpha1.FlushedAtAnnotation, "now") }
	for name, todo := range map[string][]func(*fixture){"flush first": {flush, resize}, "move first": {resize, flush}} {
		t.Run(name, func(t *testing.T) {
			f := ready(t, withProxy)
			var moved, flushed bool
			check := func() {
				t.Helper()
				_, phase := f.list()
				flushing := f.asked() != "" && get[appsv1.StatefulSet](f).Annotations[v1alpha1.FlushedAtAnnotation] == ""
				if moved, flushed = moved || phase != "", flushed || flushing; flushing && phase != "" {
					t.Errorf("items move in phase %s while %q drop theirs", phase, f.asked())
				}
			}
			todo[0](f)
			f.until("the first one begun", func() bool { check(); return moved || flushed })
			todo[1](f)
			f.until("Ready", func() bool { check(); return f.isReady() })
			if !moved || !flushed {
				t.Errorf("got items moved: %t, and dropped: %t, want both", moved, flushed)
			}
		})
	}
}

// TestRemoveNotReady: the items of a server that is to be removed move although it is not ready: its agent or a probe
// may have failed. A server that is down is removed without a move, and alone.
func TestRemoveNotReady(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ down, notReady, want, next string }{
		"not ready":                    {"", "3", "0 1 2 3 > 0 1", ""},
		"down":                         {"3", "", "> 0 1 2", "0 1 2 > 0 1"},
		"both down":                    {"2 3", "", "> 0 1 2", ""},
		"one is down, one serves":      {"2", "3", "0 1 2 3 > 0 1", ""},
		"one is down, and one is kept": {"1", "", "0 1 2 3 > 0 1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := ready(t, "{size: 4, workload: StatefulSet, proxy: {size: 1}}")
			for _, ordinal := range strings.Fields(tt.down + " " + tt.notReady) {
				f.setReady("cache-"+ordinal, false)
				f.setStatus("cache-"+ordinal, func(is *corev1.PodStatus) {
					if s := &is.ContainerStatuses[0]; strings.Contains(tt.down, ordinal) {
						s.Ready, s.State.Running = false, nil
					}
				})
			}
			f.set(`{"size":2}`)
			f.mustReconcile()
			if got, _ := f.list(); got != tt.want {
				t.Errorf("got the list %q, want %q", got, tt.want)
			}
			for range 5 { // tells the kubelet of the list, asks the proxy, and makes the next step
				f.mustReconcile()
			}
			if got, _ := f.list(); tt.next != "" && got != tt.next {
				t.Errorf("got the list %q, want %q", got, tt.next)
			}
		})
	}
}

// TestServersThatCannotMove: the arguments of the servers that run decide whether items can move, not only those of the
// spec. Otherwise, servers are added and removed at once, and replaced as rollout says.
func TestServersThatCannotMove(t *testing.T) {
	f := ready(t, "{size: 3, workload: StatefulSet, extraArgs: [--disable-dumping], proxy: {size: 1}}")
	f.Agents.WasReady = func(*v1alpha1.Memcached) bool { return false } // items may be lost
	f.set(`{"size":2}`)
	if got, want := f.lists(), []string{"> 0 1 2", "> 0 1"}; !slices.Equal(got, want) {
		t.Errorf("got the lists %q, want %q", got, want)
	}
	f.set(`{"extraArgs":null}`)
	f.until("a server replaced without a spare one", func() bool {
		if got := f.replicas(); got != 2 {
			t.Fatalf("got %d servers, want no spare one", got)
		}
		return f.has("delete Pod")
	})
}

// TestOrderOfServers: the order of the servers behind proxies survives whatever happens to the ConfigMap of the proxies
// or to the annotation of the StatefulSet, but not to both.
func TestOrderOfServers(t *testing.T) {
	t.Parallel()
	const list = `{"after":[{"name":"cache-1"},{"name":"cache-0"}]}`
	inOrder := `{"data":{"servers":"cache-0 10.0.0.1:11211\ncache-1 10.0.0.2:11211\n"}}`
	orphan := `{"metadata":{"ownerReferences":null}}`
	for name, lose := range map[string]func(f *fixture){
		"deletion of the ConfigMap": func(f *fixture) { f.Must(f.API.Delete(f.Ctx, f.proxyConfig())) },
		"change of the ConfigMap":   func(f *fixture) { f.Patch(f.proxyConfig(), inOrder) },
		"restore of an older ConfigMap": func(f *fixture) {
			f.Must(f.API.Delete(f.Ctx, f.proxyConfig()))
			old := f.proxyConfig()
			old.Labels = names.Proxies.Labels(f.mc)
			f.Must(f.API.Create(f.Ctx, old))
			f.Patch(old, inOrder)
		},
		"deletion of the annotation": func(f *fixture) { f.setOrder("null") },
		"another annotation":         func(f *fixture) { f.setOrder(`"{"`) },
		"deletion of the StatefulSet": func(f *fixture) {
			f.Must(f.API.Delete(f.Ctx, get[appsv1.StatefulSet](f)))
			for _, pod := range f.pods("server") {
				f.lose(pod.Name)
			}
		},
		"deletion of the Memcached, which leaves its children": func(f *fixture) {
			for _, obj := range []client.Object{get[appsv1.StatefulSet](f), f.proxyConfig(),
				getNamed[appsv1.Deployment](f, "cache-proxy")} {
				f.Patch(obj, orphan)
			}
			for _, name := range []string{"cache", "cache-0", "cache-1", "cache-proxy"} {
				f.Patch(getNamed[corev1.Service](f, name), orphan)
			}
			f.succeed(func(*v1alpha1.MemcachedSpec) {})
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := ready(t, withProxy)
			f.setOrder(strconv.Quote(list))
			f.settle()
			f.wantReady()
			lose(f)
			f.restartOperator()
			f.settle()
			f.wantReady()
			if got, _ := f.list(); got != "> 1 0" {
				t.Errorf("got the servers %q, want them in the order of before", got)
			}
			if got := get[appsv1.StatefulSet](f).Annotations[v1alpha1.ProxyServersAnnotation]; got != list {
				t.Errorf("got the annotation %s", got)
			}
		})
	}
}

// setOrder changes the list in the annotation of the StatefulSet, as somebody else.
func (f *fixture) setOrder(list string) {
	f.Helper()
	f.Patch(get[appsv1.StatefulSet](f), fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`,
		v1alpha1.ProxyServersAnnotation, list))
}

// TestChangedConfigMap: a proxy may have loaded what somebody else wrote into the ConfigMap. It counts as one that has
// not loaded its list, until it reports the list again. While the ConfigMap cannot be written, it is not asked.
func TestChangedConfigMap(t *testing.T) {
	f := ready(t, withProxy)
	f.Patch(f.proxyConfig(), `{"data":{"servers":"cache-0 10.0.0.1:11211\n"}}`)
	f.mustReconcile()
	f.wantRequests("patch Pod") // void before the ConfigMap is written: the operator may stop then
	f.failures["apply ConfigMap"] = errors.New("no (by the test)")
	for range 3 {
		_, _ = f.reconcile()
		if value := f.pod(f.proxyName()).Annotations[v1alpha1.ProxyConfigAnnotation]; value != "" {
			t.Errorf("got the confirmation %q, want none", value)
		}
	}
	clear(f.failures)
	f.Agents.Change = func(_ *corev1.Pod, r *contract.Report) { r.ListHash = "another" }
	for range 3 {
		f.round()
		f.wantNotReady(v1alpha1.ReasonRollingOut, "")
	}
	f.Agents.Change = nil
	f.settle()
	f.wantReady()
}

// TestMoveWithoutConfigMap: a move goes on although somebody deletes the ConfigMap of the proxies in each phase. A list
// is not given to proxies before the StatefulSet has it.
func TestMoveWithoutConfigMap(t *testing.T) {
	f := ready(t, strings.Replace(withProxy, "size: 2", "size: 3", 1))
	f.setOrder(strconv.Quote(`{"after":[{"name":"cache-2"},{"name":"cache-0"},{"name":"cache-1"}]}`))
	f.settle()
	f.set(`{"size":2}`)
	f.failures["apply StatefulSet"] = errors.New("no (by the test)")
	f.reconcileError("no (by the test)")
	if list, _ := f.list(); list != "> 2 0 1" {
		t.Errorf("the proxies got the list %q, which the StatefulSet does not have", list)
	}
	clear(f.failures)
	var phases []string
	f.until("the end of the move", func() bool {
		list, phase := f.list()
		if phase != "" && list != "2 0 1 > 2 0" {
			t.Fatalf("got the list %q after the phases %q", list, phases)
		}
		if phase != "" && !slices.Contains(phases, phase) {
			phases = append(phases, phase)
			f.Must(f.API.Delete(f.Ctx, f.proxyConfig()))
			f.restartOperator()
		}
		return list == "> 2 0"
	})
	if !slices.Equal(phases, []string{"0", "1", "2"}) {
		t.Errorf("got the phases %q", phases)
	}
}
