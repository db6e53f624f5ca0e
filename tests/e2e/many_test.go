package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
)

func TestNamespaceDeleted(t *testing.T) {
	needMoreTime(t)
	t.Parallel()
	testEnv.Test(t, features.New("a namespace with many Memcacheds").Assess("is deleted without errors",
		step(func(w world) {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-many-"}}
			w.must(w.Create(w.ctx, ns))
			w.ns = ns.Name
			names := w.createMany(20)
			events, gone := w.watch(&v1alpha1.MemcachedList{}), 0
			w.must(w.Delete(w.ctx, ns))
			await(w, events, "all are gone", func(e watch.EventType, _ *v1alpha1.Memcached) bool {
				if e == watch.Deleted {
					gone++
				}
				return gone == len(names)
			})
			w.eventually("delete the namespace", func() error {
				if _, err := w.kubectl("get", "namespace", ns.Name); err == nil || !strings.Contains(err.Error(), "NotFound") {
					return fmt.Errorf("the namespace still exists: %w", err)
				}
				return nil
			})
			logs, err := operator.Logs(w.ctx)
			w.must(err)
			var failures []string
			for line := range strings.Lines(logs) { // the namespace accepts no events
				if strings.Contains(line, ns.Name) && !strings.Contains(line, `"logger":"events"`) &&
					(strings.Contains(line, `"level":"error"`) ||
						strings.Contains(line, "stacktrace")) {
					failures = append(failures, line)
				}
			}
			if len(failures) > 0 {
				w.Errorf("%d errors in the log, such as %s", len(failures), failures[0])
			}
		})).Feature())
}

// TestManyDeleted: with many workers, each event of a terminating child may cause a reconcile of its own; with few
// workers, one reconcile handles several events.
func TestManyDeleted(t *testing.T) {
	needMoreTime(t)
	const most = 10
	count := 60
	if testing.Short() || testCluster.Kind != "kwok" {
		count = 20 // a small node has no CPU for more
	}
	testEnv.Test(t, features.New("many deleted Memcacheds, with many workers").
		Setup(step(func(w world) {
			w.createMany(count)
		})).
		Assess("need few reconciles each", step(func(w world) {
			const reconciles = `controller_runtime_reconcile_total\{.*\}`
			before := w.metric(reconciles)
			w.must(w.DeleteAllOf(w.ctx, &v1alpha1.Memcached{}, client.InNamespace(w.ns)))
			w.eventually("delete them with their children", w.noChildren)
			n := w.metric(reconciles) - before
			w.Logf("%.1f reconciles each", float64(n)/float64(count))
			if n < count || n >= most*count {
				w.Errorf("%d reconciles for the deletion of %d objects, want one to %d each", n, count, most-1)
			}
		})).Feature())
}

// createMany creates this number of Memcacheds with one server each, and waits until they are ready.
func (w world) createMany(count int) (names []string) {
	w.Helper()
	for i := range count {
		names = append(names, fmt.Sprintf("cache-%d", i))
		w.createSpec(names[i], []string{`{}`, `{workload: StatefulSet}`,
			`{workload: StatefulSet, serverAddresses: ClusterIP}`}[i%3])
	}
	w.awaitReady(names...)
	return names
}
