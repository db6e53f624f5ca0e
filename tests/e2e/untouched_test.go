package e2e

import (
	"fmt"
	"maps"
	"slices"
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

func TestChangeWithoutRollout(t *testing.T) {
	needMoreTime(t)
	t.Parallel()
	feature := features.New("a change that replaces no server").
		Setup(step(func(w world) {
			w.create("cache", 3)
			w.createSpec("set", `{size: 3, workload: StatefulSet}`)
			w.awaitReady("cache", "set")
			for _, name := range []string{"cache", "set"} {
				w.eventually("report that "+name+" is ready", func() error {
					reasons := slices.Collect(maps.Values(w.operatorEvents(name)))
					if !slices.ContainsFunc(reasons, func(reason string) bool { return strings.HasPrefix(reason, "Ready") }) {
						return fmt.Errorf("the events are %v", reasons)
					}
					return nil
				})
			}
		}))
	for _, spec := range []string{
		`{"disruptionBudget":{"maxUnavailable":2}}`, `{"networkPolicy":{}}`, `{"networkPolicy":null}`,
	} {
		feature.Assess("leaves it Ready: "+spec, step(func(w world) {
			events, before := w.watch(&v1alpha1.MemcachedList{}), w.operatorEvents("cache", "set")
			left := map[string]int64{"cache": w.generation("cache") + 1, "set": w.generation("set") + 1}
			for name := range left {
				w.merge(name, spec)
			}
			await(w, events, "both changes are observed", func(_ watch.EventType, mc *v1alpha1.Memcached) bool {
				if mc.Status.ObservedGeneration == left[mc.Name] {
					ready := condition(mc, v1alpha1.ConditionReady)
					if ready.Status != metav1.ConditionTrue {
						w.Errorf("Ready of %s is %s, reason %s: %s", mc.Name, ready.Status, ready.Reason, ready.Message)
					}
					delete(left, mc.Name)
				}
				return len(left) == 0
			})
			w.always("send no event", 2*time.Second, func() error { return differ(before, w.operatorEvents("cache", "set")) })
		}))
	}
	for _, spec := range []string{`{"rollout":{"maxUnavailable":2}}`, `{"rollout":{"progressDeadlineSeconds":601}}`} {
		feature.Assess("is Ready again once the Deployment's controller has seen it: "+spec, step(func(w world) {
			before := w.uids("cache")
			w.merge("cache", spec)
			w.awaitReady("cache")
			w.mustNotReplace(before, w.uids("cache"))
		}))
	}
	testEnv.Test(t, feature.Feature())
}

// operatorEvents returns the operator's events about Memcacheds, with their reason and count.
func (w world) operatorEvents(names ...string) map[string]string {
	w.Helper()
	var list eventsv1.EventList
	w.must(w.List(w.ctx, &list, client.InNamespace(w.ns)))
	events := map[string]string{}
	for i := range list.Items {
		if e := &list.Items[i]; e.Regarding.Kind == "Memcached" && slices.Contains(names, e.Regarding.Name) &&
			strings.Contains(e.ReportingController, "memcached") {
			events[e.Name] = fmt.Sprint(e.Reason, e.Series)
		}
	}
	return events
}

func (w world) generation(name string) int64 {
	w.Helper()
	mc, err := load[v1alpha1.Memcached](w, name)
	w.must(err)
	return mc.Generation
}
