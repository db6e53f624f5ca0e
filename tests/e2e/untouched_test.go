package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
)

func TestChangeThatTouchesNoServer(t *testing.T) {
	feature := features.New("a change that touches no server").
		Setup(step(func(w world) {
			w.create("cache", 3)
			w.awaitReady("cache")
		}))
	for _, spec := range []string{
		`{"disruptionBudget":{"maxUnavailable":2}}`, `{"rollout":{"maxUnavailable":2}}`,
		`{"rollout":{"progressDeadlineSeconds":601}}`,
	} {
		feature.Assess("leaves it Ready: "+spec, step(func(w world) {
			events, before := w.watch(&v1alpha1.MemcachedList{}), w.told("cache")
			generation := w.generation("cache") + 1
			w.merge("cache", spec)
			await(w, events, "it is observed", func(_ watch.EventType, mc *v1alpha1.Memcached) bool {
				observed, ready := mc.Status.ObservedGeneration == generation, condition(mc, v1alpha1.ConditionReady)
				if observed && ready.Status != metav1.ConditionTrue {
					w.Errorf("Ready is %s, reason %s: %s", ready.Status, ready.Reason, ready.Message)
				}
				return observed && ready.Status == metav1.ConditionTrue
			})
			w.always("stay silent", 2*time.Second, func() error { return differ(before, w.told("cache")) })
		}))
	}
	testEnv.Test(t, feature.Feature())
}

// told are the operator's events of a Memcached, and how often each came.
func (w world) told(name string) map[string]string {
	w.Helper()
	var list eventsv1.EventList
	w.must(w.List(w.ctx, &list, client.InNamespace(w.ns)))
	told := map[string]string{}
	for i := range list.Items {
		if e := &list.Items[i]; e.Regarding.Kind == "Memcached" && e.Regarding.Name == name &&
			strings.Contains(e.ReportingController, "memcached") {
			told[e.Name] = fmt.Sprint(e.Reason, e.Series)
		}
	}
	return told
}

func (w world) generation(name string) int64 {
	w.Helper()
	mc, err := load[v1alpha1.Memcached](w, name)
	w.must(err)
	return mc.Generation
}
