package steps

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
)

// uses says that proxies use servers with these names, and that items move before a server is replaced.
func uses(servers ...string) func(View) View {
	return func(v View) View {
		v.Routing.Moves = true
		for _, name := range servers {
			v.Routing.List.After = append(v.Routing.List.After, contract.Server{Name: name})
		}
		return v
	}
}

// TestReplace covers the rules in the comment of replace.
func TestReplace(t *testing.T) {
	t.Parallel()
	type list = []*server
	sixOutdated := func(change func(*server) *server) (servers list) {
		for range 6 {
			servers = append(servers, change(outdated()))
		}
		return servers
	}
	unavailable := func(n int32) func(View) View {
		return func(v View) View { v.Memcached.Spec.Rollout.MaxUnavailable = n; return v }
	}
	minReady := func(seconds int32) func(View) View {
		return func(v View) View { v.statefulSet().Spec.MinReadySeconds = seconds; return v }
	}
	warmUp := func(v View) View {
		v.Memcached.Spec.Rollout.WarmUp = &v1alpha1.WarmUpSpec{Percent: 80, TimeoutSeconds: 600}
		return v
	}
	status := func(with func(View) View, ready, available, newest int32) func(View) View {
		return func(v View) View {
			v.statefulSet().Status.Replicas, v.statefulSet().Status.ReadyReplicas = 3, ready
			v.statefulSet().Status.AvailableReplicas, v.statefulSet().Status.UpdatedReplicas = available, newest
			return with(v)
		}
	}
	newOne := func(d time.Duration) *server { return updated().readyFor(d) }
	for name, tt := range map[string]struct {
		servers list // by ordinal
		with    func(View) View
		deletes string // names, without "cache-"
		asks    string // how many items they hold
		wait    time.Duration
	}{
		"all updated":                        {list{updated(), updated(), updated()}, nil, "", "", 0},
		"highest ordinal first":              {list{outdated(), outdated(), outdated()}, nil, "2", "", 0},
		"one after the other":                {list{outdated(), outdated(), updated()}, nil, "1", "", 0},
		"two may be unavailable":             {list{outdated(), outdated(), outdated()}, unavailable(2), "2 1", "", 0},
		"more may be unavailable than exist": {list{outdated(), outdated()}, unavailable(1000), "1 0", "", 0},
		"an updated one is not ready":        {list{outdated(), outdated(), updated().notReady()}, nil, "", "", 0},
		"one is missing":                     {list{outdated(), outdated(), missing}, nil, "", "", 0},
		"one is terminating":                 {list{outdated(), outdated(), outdated().terminating()}, nil, "", "", 0},
		"one is down, which uses the budget": {list{outdated().down(), outdated(), outdated()}, nil, "0", "", 0},
		"two are down, three may be unavailable": {list{outdated().down(), outdated(), outdated().down(), outdated()},
			unavailable(3), "2 0 3", "", 0},
		"all are down":              {sixOutdated((*server).down), nil, "5 4 3 2 1 0", "", 0},
		"none is scheduled":         {list{outdated().unscheduled(), outdated().unscheduled()}, nil, "1 0", "", 0},
		"all agents are down":       {sixOutdated((*server).agentDown), nil, "5", "", 0},
		"all nodes are unreachable": {sixOutdated((*server).unreachable), nil, "5", "", 0},
		"all nodes are unreachable, memcached was starting": {sixOutdated((*server).unreachableWhileStarting), nil, "5", "",
			0},
		"one node is unreachable": {list{outdated().unreachable(), outdated(), outdated()}, nil, "0", "", 0},
		"one node is unreachable, two may be unavailable": {list{outdated().unreachable(), outdated(), outdated()},
			unavailable(2), "0 2", "", 0},
		"all probes fail":    {sixOutdated((*server).probeFails), nil, "5", "", 0},
		"two were restarted": {list{outdated().restarted(), outdated().restarted(), updated()}, nil, "1 0", "", 0},
		"all agents are down, one server is terminating": {
			list{outdated().agentDown(), outdated().agentDown(), outdated().agentDown().terminating()}, nil, "", "", 0},
		"updated one not ready for minReadySeconds": {list{outdated(), outdated(), newOne(10 * time.Second)}, minReady(30),
			"", "", 0},
		"updated one ready for minReadySeconds": {list{outdated(), outdated(), newOne(30 * time.Second)}, minReady(30), "1",
			"", 0},
		"outdated ones not ready for minReadySeconds": {
			list{outdated().readyFor(time.Second), outdated().readyFor(time.Second)}, minReady(30), "1", "", 0},
		"all updated, one not ready for minReadySeconds": {list{updated(), newOne(time.Second)}, minReady(30), "", "", 0},
		"kubelets an hour behind": {list{outdated(), outdated(), newOne(time.Hour)},
			status(minReady(30), 3, 2, 3), "", "", 0},
		"kubelets an hour ahead": {list{outdated(), outdated(), newOne(-time.Hour)}, status(minReady(30), 3, 3, 3), "1", "",
			0},
		"a terminating one counts as available": {list{outdated(), newOne(0), outdated().terminating()},
			status(minReady(30), 3, 2, 2), "", "", 0},
		"one beyond the size counts as available": {list{outdated(), newOne(0), outdated()}, func(v View) View {
			v.statefulSet().Spec.Replicas = ptr.To[int32](2)
			return status(minReady(30), 3, 2, 3)(v)
		}, "", "", 0},
		"the status counts no new server yet": {list{outdated(), outdated(), newOne(0)}, status(minReady(0), 3, 3, 2), "",
			"", 0},
		"the status counts a server as ready that is not": {list{outdated(), outdated().agentDown(), newOne(0)},
			status(minReady(0), 3, 3, 3), "", "", 0},
		"outdated one beyond the size": {list{outdated(), updated(), outdated()}, func(v View) View {
			v.statefulSet().Spec.Replicas = ptr.To[int32](2)
			return v
		}, "0", "", 0},
		"pod of another workload": {list{updated(), outdated()}, func(v View) View {
			v.Servers[1].OwnerReferences[0].UID = "other"
			return v
		}, "", "", 0},
		"template not observed by the controller": {list{outdated(), outdated()}, func(v View) View {
			v.statefulSet().Generation++
			return v
		}, "", "", 0},
		"StatefulSet being deleted": {list{outdated(), outdated()}, func(v View) View {
			v.statefulSet().DeletionTimestamp = &metav1.Time{Time: now}
			return v
		}, "", "", 0},
		"template not final": {list{outdated()}, func(v View) View { v.TemplateApplied = false; return v }, "", "", 0},
		"paused":             {list{outdated()}, func(v View) View { v.Memcached.Spec.Paused = true; return v }, "", "", 0},

		"none is new":        {list{outdated(), outdated()}, warmUp, "1", "", 0},
		"a new one warms up": {list{outdated(), outdated(), newOne(time.Minute)}, warmUp, "", "1 0 2", warmUpRetry},
		"a new one is warm":  {list{outdated(), outdated(), newOne(time.Minute).warm()}, warmUp, "1", "", 0},
		"one warms up for long, by the clock of its node": {list{outdated(), newOne(10 * time.Minute)}, warmUp, "", "0 1",
			0},
		"a warm one restarted": {list{outdated(), updated().warm().readyFor(time.Minute)}, warmUp, "", "0 1", 0},
		"one that warmed up restarted": {list{outdated(), updated().warmsUpFor(time.Hour).readyFor(time.Minute)}, warmUp,
			"", "0 1", 0},
		"the timeout is over": {list{outdated(), newOne(0).warmsUpFor(10 * time.Minute)}, warmUp, "0", "", 0},
		"the timeout is over soon": {list{outdated(), newOne(time.Hour).warmsUpFor(599 * time.Second)}, warmUp, "", "0 1",
			0},
		"the clock of the operator before was ahead": {list{outdated(), updated().warmsUpFor(-time.Hour)}, warmUp, "",
			"0 1", 0},
		"minReadySeconds comes first": {list{outdated(), newOne(time.Minute)}, func(v View) View {
			return warmUp(minReady(90)(v))
		}, "", "", 0},
		"two are new, minReadySeconds of both come first": {list{outdated(), outdated(), newOne(time.Minute),
			newOne(time.Hour)}, func(v View) View { return warmUp(minReady(90)(unavailable(2)(v))) }, "", "", 0},
		"two are new, one is warm and one not available": {list{outdated(), outdated(), newOne(time.Minute),
			newOne(time.Hour).warm()}, func(v View) View { return warmUp(minReady(90)(unavailable(2)(v))) }, "1", "", 0},
		"the last one need not warm up": {list{updated(), newOne(time.Minute)}, warmUp, "", "", 0},
		"an outdated one is down":       {list{outdated().down(), newOne(time.Minute)}, warmUp, "0", "", 0},

		"proxies use some": {list{outdated(), outdated(), outdated().down(), outdated().terminating(), updated(),
			outdated().agentDown()}, uses("cache-0", "cache-2", "cache-5"), "1 2", "", 0},
		"proxies use others, template not observed": {list{outdated()}, func(v View) View {
			v.statefulSet().Generation++
			return uses("cache-1")(v)
		}, "", "", 0},
		"items move": {list{outdated()}, func(v View) View { v.Routing.List.Phase = contract.Purge; return v }, "", "", 0},
	} {
		v := viewOf(tt.servers...)
		if tt.with != nil {
			v = tt.with(v)
		}
		s, busy := replace(counted(v))
		deletes := strings.ReplaceAll(strings.Join(podNames(s.Delete), " "), "cache-", "")
		asks := strings.ReplaceAll(strings.Join(podNames(s.Ask), " "), "cache-", "")
		if deletes != tt.deletes || asks != tt.asks && deletes == "" || s.IsIrreversible() != (deletes != "") ||
			s.Wait != tt.wait && asks == "" && deletes == "" || deletes+asks != "" && !busy {
			t.Errorf("%s: deletes %q, asks %q, waits %s, busy %t, want %+v", name, deletes, asks, s.Wait, busy, tt)
		}
	}
}

// TestDraining: a server that is about to stop has items to move while proxies use it, and may then stop. A server
// whose container was restarted in the same pod is used again.
func TestDraining(t *testing.T) {
	t.Parallel()
	before := now.Add(-time.Minute)
	v := uses("cache-1")(viewOf(updated().withDrain(), updated().withDrain().terminating(),
		updated().withDrain().terminating(), updated().terminating(), updated().withDrain().down().terminating(),
		updated().withDrain().running(before).kubeletWaits(before),
		updated().withDrain().running(now).kubeletWaits(before),
		updated().withDrain().running(before).kubeletWaits(before).unreachable(),
		updated().running(before).kubeletWaits(before), updated().withDrain().kubeletWaits(before),
		outdated(), outdated().down(), outdated().agentDown()))
	if s, _ := chores(v); !slices.Equal(podNames(s.Stop), []string{"cache-2", "cache-5", "cache-7"}) {
		t.Errorf("lets %v stop, want those that are about to stop, except cache-1", podNames(s.Stop))
	}
	servers := v.serverSet([]int{1})
	for i := range v.Servers {
		if want := slices.Contains([]int{1, 2, 5, 7, 10, 12}, i); servers.outdated[i] != want {
			t.Errorf("server %d: got outdated %t, want %t", i, servers.outdated[i], want)
		}
		if want := slices.Contains([]int{0, 1, 6, 8, 9, 10}, i); servers.ready[i] != want {
			t.Errorf("server %d: got ready %t, want %t", i, servers.ready[i], want)
		}
	}
	v.Memcached.Spec.Paused = true
	if s, _ := chores(v); len(s.Stop) != 4 {
		t.Errorf("while paused, lets %v stop, want all that are about to stop", podNames(s.Stop))
	}
}
