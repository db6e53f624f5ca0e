package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
)

func TestDeletionCreatesNothing(t *testing.T) {
	feature := features.New("no child is created again")
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground,
		metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan} {
		feature.Assess(fmt.Sprintf("by deletion with policy %s", policy), step(func(w world) {
			w.create("cache", 2)
			w.awaitReady("cache")
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
				w.orphaned()
			} else {
				for range 2 {
					pod := await(w, pods, "a server is gone", func(e watch.EventType,
						_ *corev1.Pod) bool {
						return e == watch.Deleted
					})
					if c, err := resourceversion.CompareResourceVersion(pod.ResourceVersion, end.ResourceVersion); err != nil ||
						c > 0 {
						w.Errorf("server %s ended after the Memcached (%v)", pod.Name, err)
					}
				}
				w.eventually("delete the children", w.noChildren)
			}
			// When the operator has made another, it has seen all of this.
			w.create("other", 1)
			w.awaitReady("other")
			for _, channel := range events {
				await(w, channel, "the other is created", func(e watch.EventType, o client.Object) bool {
					if e == watch.Added && o.GetName() == "cache" {
						w.Errorf("%T was created again", o)
					}
					return e == watch.Added && o.GetName() == "other"
				})
			}
			w.must(w.Delete(w.ctx, &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "other"}}))
			w.eventually("delete the other", func() error { return w.gone("other") })
		}))
	}
	testEnv.Test(t, feature.Feature())
}

// orphaned fails if an orphaning deletion did not leave each child, without an owner, and the servers.
func (w world) orphaned() {
	w.Helper()
	if n := len(w.pods()); n != 2 {
		w.Errorf("%d servers are left of 2", n)
	}
	for _, list := range children() {
		w.must(w.List(w.ctx, list, client.InNamespace(w.ns)))
		items := listItems(list)
		if len(items) != 1 || len(items[0].GetOwnerReferences()) != 0 || items[0].GetDeletionTimestamp() != nil {
			w.Errorf("%T is not one orphan: %v", list, items)
		}
	}
}
