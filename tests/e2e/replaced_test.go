package e2e

import (
	"testing"

	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// TestDeletedAndCreatedAtOnce: a Memcached that is created right after one of the same name was deleted is never
// Failed, although children of the deleted one may still exist.
func TestDeletedAndCreatedAtOnce(t *testing.T) {
	needMoreTime(t)
	t.Parallel()
	const tries = 36
	testEnv.Test(t, features.New("deleted and created at once").Assess("is never Failed", step(func(w world) {
		events, failed := w.watch(&v1alpha1.MemcachedList{}), map[string]string{}
		for i := range tries {
			w.createSpec("cache", []string{`{size: 0}`, `{size: 0, workload: StatefulSet}`}[i%2])
			await(w, events, "it is ready", func(_ watch.EventType, mc *v1alpha1.Memcached) bool {
				s, err := kstatus(mc)
				w.must(err)
				if s == status.FailedStatus {
					failed[string(mc.UID)] = condition(mc, v1alpha1.ConditionStalled).Message
				}
				return s == status.CurrentStatus
			})
			w.deleteMemcached("cache")
			await(w, events, "it is gone", func(e watch.EventType, _ *v1alpha1.Memcached) bool { return e == watch.Deleted })
		}
		if len(failed) > 0 {
			w.Errorf("%d of %d Memcacheds were Failed: %v", len(failed), tries, failed)
		}
	})).Feature())
}
