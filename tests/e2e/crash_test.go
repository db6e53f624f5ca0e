package e2e

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/tests/cluster"
)

// fleet is large enough that the operator has not finished when it is killed.
var fleet = func() (names []string) {
	for i := range 8 {
		names = append(names, fmt.Sprintf("cache-%d", i))
	}
	return names
}()

// createFleetMember creates a Memcached of the fleet. Every second one runs in a StatefulSet.
func (w world) createFleetMember(name string) {
	w.Helper()
	spec := `{size: 1}`
	if i := slices.Index(fleet, name); i%2 > 0 {
		spec = `{size: 1, workload: StatefulSet, serverAddresses: ClusterIP}`
	}
	w.createSpec(name, spec)
}

// killDuring calls act for each Memcached of the fleet, kills the operator when half of the workloads show an effect,
// and restarts the operator after checking that some work was left.
func (w world) killDuring(act func(name string), hasEffect func(watch.EventType, client.Object) bool,
	done func(name string) error) {
	w.Helper()
	events := w.watch(&appsv1.DeploymentList{}, &appsv1.StatefulSetList{})
	for _, name := range fleet {
		act(name)
	}
	affected := map[string]bool{}
	await(w, events, "the operator is at work", func(e watch.EventType, o client.Object) bool {
		if hasEffect(e, o) {
			affected[o.GetName()] = true
		}
		return len(affected) >= len(fleet)/2
	})
	w.must(operator.Kill(w.ctx))
	w.must(operator.Stop(w.ctx)) // the kubelet must not restart the killed container now
	left := 0
	for _, name := range fleet {
		if done(name) != nil {
			left++
		}
	}
	w.Logf("killed before %d of %d were done", left, len(fleet))
	if left == 0 {
		w.Error("the operator was killed too late: it had finished")
	}
	w.restart()
}

// restart starts a killed operator without waiting until its lease expires.
func (w world) restart() {
	w.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.OperatorNamespace,
		Name: "memcached-operator.cache.example.com"}}
	w.must(client.IgnoreNotFound(w.Delete(w.ctx, lease)))
	w.must(operator.Start(w.ctx, 1))
}

func TestOperatorKilled(t *testing.T) {
	needMoreTime(t)
	testEnv.Test(t, features.New("operator killed").
		Assess("during creation", step(func(w world) {
			w.killDuring(w.createFleetMember, func(e watch.EventType, _ client.Object) bool { return e == watch.Added }, w.ready)
			w.awaitReady(fleet...)
		})).
		Assess("during scaling", step(func(w world) {
			before := w.pods()
			w.killDuring(func(name string) { w.merge(name, `{"size":2}`) },
				func(_ watch.EventType, o client.Object) bool { return *replicasOf(o) == 2 }, w.ready)
			w.awaitReady(fleet...)
			after := w.pods()
			for uid := range before {
				if after[uid] == "" {
					w.Errorf("server %s was deleted", before[uid])
				}
			}
		})).
		Assess("during a rollout", step(func(w world) {
			const image = "docker.io/library/memcached:1.6"
			before, replaced := w.pods(), w.serversDeleted()
			w.killDuring(func(name string) { w.merge(name, `{"image":"`+image+`"}`) },
				func(_ watch.EventType, o client.Object) bool {
					return templateOf(o).Spec.Containers[0].Image == image
				}, w.ready)
			w.awaitReady(fleet...)
			for uid, name := range w.pods() {
				if before[uid] != "" {
					w.Errorf("server %s was not replaced", name)
				}
			}
			deleted := replaced()
			for _, name := range fleet {
				if n := deleted[name]; n != 2 {
					w.Errorf("%d servers of %s were deleted to replace 2", n, name)
				}
			}
		})).
		Assess("during deletion", step(func(w world) {
			w.killDuring(func(name string) {
				w.deleteMemcached(name)
			}, func(e watch.EventType, o client.Object) bool {
				return e == watch.Deleted || o.GetDeletionTimestamp() != nil
			}, w.isGone)
			for _, name := range fleet {
				w.eventually("delete "+name, func() error { return w.isGone(name) })
			}
			w.eventually("delete the children", w.noChildren)
		})).Feature())
}

func replicasOf(workload client.Object) *int32 {
	if s, ok := workload.(*appsv1.StatefulSet); ok {
		return s.Spec.Replicas
	}
	return workload.(*appsv1.Deployment).Spec.Replicas
}

func templateOf(workload client.Object) *corev1.PodTemplateSpec {
	if s, ok := workload.(*appsv1.StatefulSet); ok {
		return &s.Spec.Template
	}
	return &workload.(*appsv1.Deployment).Spec.Template
}

// pods returns the names of all servers in the namespace by their UIDs.
func (w world) pods() map[string]string {
	w.Helper()
	var list corev1.PodList
	w.must(w.List(w.ctx, &list, client.InNamespace(w.ns), client.MatchingLabels{"app.kubernetes.io/component": "server"}))
	names := map[string]string{}
	for i := range list.Items {
		if p := &list.Items[i]; p.DeletionTimestamp == nil {
			names[string(p.UID)] = p.Name
		}
	}
	return names
}

// serversDeleted counts the servers that are deleted from now on, by Memcached. Deletions without a grace period are
// not counted: only the simulated kubelets delete so. They delete by name, and sometimes hit the next pod with that
// name.
func (w world) serversDeleted() func() map[string]int {
	w.Helper()
	events, mu, uids, count := w.watch(&corev1.PodList{}), sync.Mutex{}, map[types.UID]bool{}, map[string]int{}
	go func() {
		for {
			select {
			case e := <-events:
				pod, ok := e.Object.(*corev1.Pod)
				mu.Lock()
				if ok && e.Type == watch.Modified && ptr.Deref(pod.DeletionGracePeriodSeconds, 0) > 0 && !uids[pod.UID] {
					uids[pod.UID] = true
					count[pod.Labels["app.kubernetes.io/instance"]]++
				}
				mu.Unlock()
			case <-w.Context().Done():
				return
			}
		}
	}()
	return func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(count)
	}
}

// isGone returns nil if there is no Memcached with this name.
func (w world) isGone(name string) error {
	if _, err := load[v1alpha1.Memcached](w, name); !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s still exists: %w", name, err)
	}
	return nil
}

func (w world) noChildren() error {
	var left []string
	err := w.eachChild(func(o client.Object) { left = append(left, fmt.Sprintf("%T %s", o, o.GetName())) })
	if len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("%d children are left: %v", len(left), left))
	}
	return err
}

func TestStandby(t *testing.T) {
	needMoreTime(t)
	testEnv.Test(t, features.New("a standby").
		Assess("takes over from a killed leader", step(func(w world) {
			w.must(operator.Start(w.ctx, 2))
			var killed string
			w.eventually("find the leader", func() error {
				_, err := operator.Leader(w.ctx)
				if err == nil {
					killed, err = operator.Holder(w.ctx)
				}
				return err
			})
			w.must(operator.Kill(w.ctx))
			w.create("cache", 2)
			start := time.Now()
			w.eventually("wait for another leader", func() error {
				holder, err := operator.Holder(w.ctx)
				if err == nil && holder == killed {
					err = errors.New("the killed leader still holds the lease")
				}
				return err
			})
			w.Logf("another replica leads after %.0f s", time.Since(start).Seconds())
			w.awaitReady("cache")
		})).
		Assess("takes over at once from a leader that stops on SIGTERM", step(func(w world) {
			w.must(operator.Stop(w.ctx))
			if holder, err := operator.Holder(w.ctx); err == nil {
				w.Errorf("%s stopped without releasing its lease", holder)
			}
			start := time.Now()
			w.must(operator.Start(w.ctx, 1))
			w.merge("cache", `{"size":3}`)
			w.awaitReady("cache")
			if took := time.Since(start); took > 15*time.Second {
				w.Errorf("the next leader took %s", took)
			}
		})).Feature())
}
