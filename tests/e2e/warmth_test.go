package e2e

import (
	"testing"

	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// TestWarmUp: a rollout waits until clients have filled the new server.
func TestWarmUp(t *testing.T) {
	needRealPods(t)
	var before map[string]string
	testEnv.Test(t, features.New("a rollout with warmUp").
		Setup(step(func(w world) {
			w.createSpec("cache", `{size: 2, workload: StatefulSet, metrics: {}, networkPolicy: {}, rollout: {warmUp: {}}, `+
				smallServer+`}`)
			w.awaitReady("cache")
			w.eachServer("cache", func(address string) { w.fill(memcachedClient{address: address}) })
			before = w.uids("cache")
		})).
		Assess("replaces the next server once the new one has its share", step(func(w world) {
			w.merge("cache", `{"maxConnections":50}`)
			w.awaitCondition("cache", v1alpha1.ConditionReconciling, v1alpha1.ReasonRollingOut,
				"server cache-1 holds 0 % of the items of the others, warm with 80 %")
			if now := w.uids("cache"); now["cache-0"] != before["cache-0"] || now["cache-1"] == before["cache-1"] {
				w.Errorf("got the servers %v after %v, want cache-1 replaced", now, before)
			}
			w.eachServer("cache", func(address string) { w.fill(memcachedClient{address: address}) })
			w.awaitReady("cache")
			w.mustReplaceAll(before, "cache")
		})).Feature())
}
