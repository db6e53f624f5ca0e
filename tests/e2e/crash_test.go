package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/tests/cluster"
)

// fleet is large enough for the operator to be in the middle of it when it is killed.
var fleet = func() (names []string) {
	for i := range 8 {
		names = append(names, fmt.Sprintf("cache-%d", i))
	}
	return names
}()

// crash does something with each of the fleet, kills the operator when it shows in half of the Deployments, and starts
// it again once it is certain that something was left to do.
func (w world) crash(act func(name string), trace func(watch.EventType, *appsv1.Deployment) bool,
	done func(name string) error) {
	w.Helper()
	events := w.watch(&appsv1.DeploymentList{})
	for _, name := range fleet {
		act(name)
	}
	traced := map[string]bool{}
	await(w, events, "the operator is at work", func(e watch.EventType, d *appsv1.Deployment) bool {
		if trace(e, d) {
			traced[d.Name] = true
		}
		return len(traced) >= len(fleet)/2
	})
	w.must(operator.Kill(w.ctx))
	w.must(operator.Stop(w.ctx)) // what starts killed containers anew must not do that now
	left := 0
	for _, name := range fleet {
		if done(name) != nil {
			left++
		}
	}
	w.Logf("killed with %d of %d left to do", left, len(fleet))
	if left == 0 {
		w.Error("the operator had finished: it was not killed in the middle")
	}
	w.restart()
}

// restart starts a killed operator without waiting for its lease to run out.
func (w world) restart() {
	w.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.OperatorNamespace,
		Name: "memcached-operator.cache.example.com"}}
	w.must(client.IgnoreNotFound(w.Delete(w.ctx, lease)))
	w.must(operator.Start(w.ctx, 1))
}

func TestOperatorKilled(t *testing.T) {
	testEnv.Test(t, features.New("operator killed in the middle").
		Assess("of creating", step(func(w world) {
			w.crash(func(name string) { w.create(name, 1) },
				func(e watch.EventType, _ *appsv1.Deployment) bool { return e == watch.Added }, w.ready)
			w.awaitReady(fleet...)
		})).
		Assess("of scaling", step(func(w world) {
			before := w.pods()
			w.crash(func(name string) { w.merge(name, `{"size":2}`) },
				func(_ watch.EventType, d *appsv1.Deployment) bool { return *d.Spec.Replicas == 2 }, w.ready)
			w.awaitReady(fleet...)
			after := w.pods()
			for uid := range before {
				if after[uid] == "" {
					w.Errorf("server %s was lost", before[uid])
				}
			}
		})).
		Assess("of a rollout", step(func(w world) {
			const image = "docker.io/library/memcached:1.6"
			before := w.pods()
			w.crash(func(name string) { w.merge(name, `{"image":"`+image+`"}`) },
				func(_ watch.EventType, d *appsv1.Deployment) bool {
					return d.Spec.Template.Spec.Containers[0].Image == image
				}, w.ready)
			w.awaitReady(fleet...)
			for uid, name := range w.pods() {
				if before[uid] != "" {
					w.Errorf("server %s was not replaced", name)
				}
			}
		})).
		Assess("of deleting", step(func(w world) {
			w.crash(func(name string) {
				w.must(w.Delete(w.ctx, &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}))
			}, func(e watch.EventType, d *appsv1.Deployment) bool {
				return e == watch.Deleted || d.DeletionTimestamp != nil
			}, w.gone)
			for _, name := range fleet {
				w.eventually("delete "+name, func() error { return w.gone(name) })
			}
			w.eventually("delete the children", w.noChildren)
		})).Feature())
}

// pods are the names of all servers of the namespace by their uid.
func (w world) pods() map[string]string {
	w.Helper()
	var list corev1.PodList
	w.must(w.List(w.ctx, &list, client.InNamespace(w.ns)))
	names := map[string]string{}
	for i := range list.Items {
		if p := &list.Items[i]; p.DeletionTimestamp == nil {
			names[string(p.UID)] = p.Name
		}
	}
	return names
}

// gone returns nil if there is no Memcached of that name.
func (w world) gone(name string) error {
	if _, err := load[v1alpha1.Memcached](w, name); !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s is still there: %w", name, err)
	}
	return nil
}

func (w world) noChildren() error {
	for _, list := range children() {
		if err := w.List(w.ctx, list, client.InNamespace(w.ns)); err != nil {
			return err
		}
		if n := len(listItems(list)); n > 0 {
			return fmt.Errorf("%T: %d are left", list, n)
		}
	}
	return nil
}

func TestStandby(t *testing.T) {
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
					err = errors.New("the dead one holds the lease")
				}
				return err
			})
			w.Logf("another leader after %.0f s", time.Since(start).Seconds())
			w.awaitReady("cache")
		})).
		Assess("takes over at once from one that ends in order", step(func(w world) {
			w.must(operator.Stop(w.ctx))
			if holder, err := operator.Holder(w.ctx); err == nil {
				w.Errorf("%s ended and keeps its lease", holder)
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
