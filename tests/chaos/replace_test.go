package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
)

// keepServers returns a check that no server was replaced or restarted.
func (w *world) keepServers() (check func()) {
	w.Helper()
	before := w.servers()
	return func() { require.Equal(w, before, w.servers(), "servers were replaced or restarted without a reason") }
}

// servers returns the UIDs of all pods that do not terminate, with the number of restarts of each container, by name.
func (w *world) servers() map[string]string {
	w.Helper()
	var all map[string]string
	w.eventually("list the pods", func() error {
		list, err := w.objects(pods...)
		all = map[string]string{}
		for _, obj := range list {
			if pod := obj.(*corev1.Pod); pod.DeletionTimestamp == nil {
				all[pod.Name] = string(pod.UID)
				for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
					all[pod.Name] += fmt.Sprintf(", %s restarted %d times", c.Name, c.RestartCount)
				}
			}
		}
		return err
	})
	return all
}

// replaceServers lets the operator replace all servers of StatefulSets without proxies: behind proxies, a spare server
// takes over first. The check is that each server was replaced once, and only while enough others were available.
func (w *world) replaceServers() (check func()) {
	w.Helper()
	list, err := w.objects(memcacheds...)
	require.NoError(w, err)
	list = slices.DeleteFunc(list, func(obj client.Object) bool {
		spec := obj.(*v1alpha1.Memcached).Spec
		return spec.Workload != v1alpha1.WorkloadStatefulSet || spec.Proxy != nil
	})
	least, all := map[string]int{}, 0 // available servers, by Memcached; and how many servers there are
	for _, obj := range list {
		mc := obj.(*v1alpha1.Memcached)
		all += int(names.Size(mc))
		least[mc.Name] = int(names.Size(mc) - max(1, mc.Spec.Rollout.MaxUnavailable))
	}
	ctx, stop := context.WithCancel(w.ctx)
	seen, violations := w.watchServers(ctx, least)
	for _, obj := range list {
		threads := obj.(*v1alpha1.Memcached).Spec.Threads%4 + 1 // another number than before
		require.NoError(w, w.patch(obj, fmt.Sprintf(`{"spec": {"threads": %d}}`, threads)))
	}
	return func() {
		stop()
		require.Empty(w, violations(), "the budget")
		replaced := seen()
		require.Len(w, replaced, all, "servers that were seen")
		for name, n := range replaced {
			require.Equal(w, 2, n, "how many servers there were one after the other as %s", name)
			w.replaced++
		}
	}
}

// watchServers watches the servers of Memcacheds until ctx ends. It returns how many pods there were by each name, and
// when there were too few servers.
func (w *world) watchServers(ctx context.Context, least map[string]int) (seen func() map[string]int,
	violations func() []string) {
	w.Helper()
	informer := cache.NewSharedInformer(cache.NewListWatchFromClient(w.core, "pods", w.ns, fields.Everything()),
		&corev1.Pod{}, 0)
	var mu sync.Mutex
	pods, few := map[string]map[types.UID]bool{}, map[string]bool{}
	look := func(any) {
		if !informer.HasSynced() {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		available := map[string]int{}
		for _, obj := range informer.GetStore().List() {
			pod := obj.(*corev1.Pod)
			mc := pod.Labels[v1alpha1.NameLabel]
			if _, isWatched := least[mc]; !isWatched || pod.DeletionTimestamp != nil {
				continue
			}
			if status.IsTrue(pod, corev1.PodReady) {
				available[mc]++
			}
			if pods[pod.Name] == nil {
				pods[pod.Name] = map[types.UID]bool{}
			}
			pods[pod.Name][pod.UID] = true
		}
		for mc, n := range least {
			if available[mc] < n {
				few[fmt.Sprintf("%d servers of %s are available, not %d", available[mc], mc, n)] = true
			}
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: look, DeleteFunc: look,
		UpdateFunc: func(_, obj any) { look(obj) }})
	require.NoError(w, err)
	go informer.RunWithContext(ctx)
	w.eventually("see all pods", func() error {
		if !informer.HasSynced() {
			return errors.New("not yet")
		}
		look(nil)
		return nil
	})
	return func() map[string]int {
			mu.Lock()
			defer mu.Unlock()
			counts := map[string]int{}
			for name, uids := range pods {
				counts[name] = len(uids)
			}
			return counts
		}, func() (all []string) {
			mu.Lock()
			defer mu.Unlock()
			for violation := range maps.Keys(few) {
				all = append(all, violation)
			}
			return all
		}
}
