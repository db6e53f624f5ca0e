package controllers

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/example/memcached-operator/controllers/names"
)

// paces is a queue that notes for how long a look is put off.
type paces struct {
	queue
	after []time.Duration
}

func (p *paces) AddAfter(_ reconcile.Request, after time.Duration) { p.after = append(p.after, after) }

// TestPace: what is looked at without delay is, while servers start, a workload that has counted them all; each change
// of a Memcached that is ready; and the end of the last server of a deleted one, whatever else still runs.
func TestPace(t *testing.T) {
	f := newFixture(t)
	watch := f.r.toOwner()
	after := func(e client.Object, gone bool) time.Duration {
		q := &paces{}
		if gone {
			watch.Delete(f.ctx, event.DeleteEvent{Object: e}, q)
		} else {
			watch.Update(f.ctx, event.UpdateEvent{ObjectOld: e, ObjectNew: e}, q)
		}
		if len(q.after) != 1 {
			t.Fatalf("queued %d times", len(q.after))
		}
		return q.after[0]
	}
	want := func(what string, got, want time.Duration) {
		t.Helper()
		if got != want {
			t.Errorf("%s is looked at after %s, want %s", what, got, want)
		}
	}
	pod := func(name string) *corev1.Pod {
		p := &corev1.Pod{}
		f.must(f.api.Get(f.ctx, f.key(name), p))
		return p
	}

	f.mustReconcile()
	f.roll(2)
	want("a server that starts", after(pod("cache-0"), false), progressingPace)
	want("a Deployment with two of three servers", after(get[appsv1.Deployment](f), false), progressingPace)
	f.roll(3)
	want("a Deployment with all servers", after(get[appsv1.Deployment](f), false), countedPace)
	f.mustReconcile()
	want("a server of one that is ready", after(pod("cache-0"), false), 0)

	f.must(f.api.Delete(f.ctx, f.mc))
	f.mustReconcile()
	proxy := pod("cache-0").DeepCopy()
	proxy.ObjectMeta = metav1.ObjectMeta{Name: "proxy", Namespace: proxy.Namespace, Labels: names.Proxies.Labels(f.mc),
		OwnerReferences: proxy.OwnerReferences}
	f.must(f.api.Create(f.ctx, proxy))
	for _, name := range []string{"cache-0", "cache-1"} {
		p := pod(name)
		f.must(f.api.Delete(f.ctx, p, client.GracePeriodSeconds(0)))
		want("the end of "+name, after(p, true), startPace)
	}
	last := pod("cache-2")
	f.must(f.api.Delete(f.ctx, last, client.GracePeriodSeconds(0)))
	want("the end of the last server", after(last, true), 0)
}
