// Package production tests a cache in a production environment on a real node: with a real cert-manager, and with
// enforced NetworkPolicies. The operator must run on the cluster that CLUSTER names.
package production

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/tests/cluster"
)

var (
	testCluster *cluster.Cluster
	api         client.WithWatch
)

func TestMain(m *testing.M) {
	cluster.Main("production-e2e CLUSTER=node", func(kind string) int {
		var err error
		if testCluster, api, err = cluster.Connect(kind); err != nil {
			fmt.Println("FAIL:", err)
			return 1
		}
		return m.Run()
	})
}

// world is the environment of a test: the cluster and a namespace. An error ends the test.
type world struct {
	client.WithWatch
	*testing.T
	ns string
}

func newWorld(t *testing.T) world {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "production-"}}
	harness.Must(t, api.Create(t.Context(), ns))
	w := world{WithWatch: api, T: t, ns: ns.Name}
	t.Cleanup(func() {
		if t.Failed() {
			for _, kinds := range []string{"memcacheds,networkpolicies,statefulsets", "pods,events"} {
				out, err := w.kubectl("get", kinds, "-o", "wide")
				t.Logf("%s: %v\n%s", kinds, err, out)
			}
		}
		_, err := w.kubectl("delete", "memcacheds", "--all")
		harness.Must(t, err)
		_, err = w.kubectl("delete", "namespace", w.ns, "--wait=false")
		harness.Must(t, err)
	})
	return w
}

func (w world) kubectl(args ...string) (string, error) {
	return harness.Command{}.Run(context.WithoutCancel(w.Context()), "kubectl",
		append([]string{"--namespace", w.ns}, args...)...)
}

// apply applies a manifest.
func (w world) apply(manifest string) {
	w.Helper()
	file := filepath.Join(w.TempDir(), "manifest.yaml")
	harness.Must(w, os.WriteFile(file, []byte(manifest), 0o644))
	_, err := w.kubectl("apply", "--filename", file)
	harness.Must(w, err)
}

// ready waits until the current generation of a Memcached is ready.
func (w world) ready(name string) *v1alpha1.Memcached {
	w.Helper()
	mc := &v1alpha1.Memcached{}
	harness.Eventually(w, "wait until ready", harness.Patience, func() error {
		err := w.Get(w.Context(), client.ObjectKey{Namespace: w.ns, Name: name}, mc)
		if err == nil && !is(mc, v1alpha1.ConditionReady, v1alpha1.ReasonReady) {
			err = fmt.Errorf("generation %d, status of %d, conditions %v", mc.Generation, mc.Status.ObservedGeneration,
				mc.Status.Conditions)
		}
		return err
	})
	return mc
}

// is reports whether a condition of the current generation is True with this reason.
func is(mc *v1alpha1.Memcached, conditionType, reason string) bool {
	c := meta.FindStatusCondition(mc.Status.Conditions, conditionType)
	return c != nil && c.Status == metav1.ConditionTrue && c.Reason == reason && c.ObservedGeneration == mc.Generation
}

// pods returns the pods of a component of a Memcached that are not terminating.
func (w world) pods(name string, component names.Component) []corev1.Pod {
	w.Helper()
	var pods corev1.PodList
	harness.Must(w, w.List(w.Context(), &pods, client.InNamespace(w.ns), client.MatchingLabels(
		component.Selector(&v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Name: name}}))))
	list := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	if len(list) == 0 {
		w.Fatalf("%s has no %s", name, component)
	}
	return list
}
