package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// everyChild is a spec with children of every kind.
const everyChild = `{size: 2, workload: StatefulSet, networkPolicy: {}, proxy: {size: 1}}`

func TestDeletionCreatesNothing(t *testing.T) {
	needMoreTime(t)
	t.Parallel()
	feature := features.New("a deletion creates no child again")
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground,
		metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan} {
		feature.Assess(fmt.Sprintf("with policy %s", policy), step(func(w world) { w.deleteAndWatch(policy) }))
	}
	testEnv.Test(t, feature.Feature())
}

func (w world) deleteAndWatch(policy metav1.DeletionPropagation) {
	w.Helper()
	w.createSpec("cache", everyChild)
	w.awaitReady("cache")
	before := w.childGenerations()
	var events []<-chan watch.Event
	for _, list := range children() {
		events = append(events, w.watch(list))
	}
	memcacheds, pods := w.watch(&v1alpha1.MemcachedList{}), w.watch(&corev1.PodList{})
	mc := &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "cache"}}
	w.must(w.Delete(w.ctx, mc, client.PropagationPolicy(policy)))
	end := await(w, memcacheds, "the Memcached is gone",
		func(e watch.EventType, _ *v1alpha1.Memcached) bool { return e == watch.Deleted })
	if policy == metav1.DeletePropagationOrphan {
		w.mustBeOrphans(before)
	} else {
		for range 2 {
			pod := await(w, pods, "a server is gone", func(e watch.EventType, p *corev1.Pod) bool {
				return e == watch.Deleted && p.Labels["cache.example.com/component"] == "server"
			})
			if c, err := resourceversion.CompareResourceVersion(pod.ResourceVersion, end.ResourceVersion); err != nil || c > 0 {
				w.Errorf("server %s was gone only after the Memcached (%v)", pod.Name, err)
			}
		}
		w.eventually("delete the children", w.noChildren)
	}
	// Once the operator has created children of every kind for another Memcached, it has processed all events from before.
	w.createSpec("other", everyChild)
	w.awaitReady("other")
	for _, channel := range events {
		await(w, channel, "a child of the other Memcached is created", func(e watch.EventType, o client.Object) bool {
			if e == watch.Added && strings.HasPrefix(o.GetName(), "cache") {
				w.Errorf("%T %s was created again", o, o.GetName())
			}
			return e == watch.Added && strings.HasPrefix(o.GetName(), "other")
		})
	}
	w.deleteMemcached("other")
	w.eventually("delete the other", func() error { return w.isGone("other") })
	w.must(w.eachChild(func(orphan client.Object) {
		w.must(client.IgnoreNotFound(w.Delete(w.ctx, orphan, client.PropagationPolicy(metav1.DeletePropagationForeground))))
	}))
	w.eventually("delete the orphans", w.noChildren)
}

// mustBeOrphans fails unless an orphaning deletion left the servers, and left each child unchanged but without an
// owner.
func (w world) mustBeOrphans(before map[string]string) {
	w.Helper()
	if n := len(w.uids("cache")); n != 2 {
		w.Errorf("%d of 2 servers are left", n)
	}
	if err := differ(before, w.childGenerations()); err != nil {
		w.Error(err)
	}
	w.must(w.eachChild(func(o client.Object) {
		if len(o.GetOwnerReferences()) != 0 || o.GetDeletionTimestamp() != nil {
			w.Errorf("%T %s is not an orphan: %v", o, o.GetName(), o)
		}
	}))
}

// childGenerations are the UIDs and generations of the children. ConfigMaps and Services have no generation.
func (w world) childGenerations() map[string]string {
	w.Helper()
	generations := map[string]string{}
	w.must(w.eachChild(func(o client.Object) {
		generations[fmt.Sprintf("%T %s", o, o.GetName())] = fmt.Sprint(o.GetUID(), o.GetGeneration())
	}))
	return generations
}

// TestChildrenOfOptions: the operator deletes the children that the spec no longer asks for, of every optional kind.
func TestChildrenOfOptions(t *testing.T) {
	needMoreTime(t)
	t.Parallel()
	testEnv.Test(t, features.New("options").Assess("take their children with them", step(func(w world) {
		w.createSpec("cache", everyChild)
		w.awaitReady("cache")
		servers := w.uids("cache")
		w.merge("cache", `{"networkPolicy":null,"proxy":null}`)
		w.awaitReady("cache")
		w.eventually("delete the children of the options", func() error {
			var left []string
			err := w.eachChild(func(o client.Object) {
				if _, isPolicy := o.(*networkingv1.NetworkPolicy); isPolicy || strings.HasPrefix(o.GetName(), "cache-proxy") {
					left = append(left, fmt.Sprintf("%T %s", o, o.GetName()))
				}
			})
			if len(left) > 0 {
				err = errors.Join(err, fmt.Errorf("there are still %v", left))
			}
			return err
		})
		w.merge("cache", `{"networkPolicy":{}}`)
		w.awaitReady("cache")
		w.mustNotReplace(servers, w.uids("cache"))
	})).Feature())
}
