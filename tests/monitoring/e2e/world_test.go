// Package e2e tests that a real Prometheus and a real kube-state-metrics can use the files in config, with
// real memcached.
package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
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

var update = flag.Bool("update", false, "draw docs/how-to/monitoring.svg from the measurements")

// world is the cluster and a namespace of the test. An error ends the test.
type world struct {
	*testing.T
	client.Client
	cluster *cluster.Cluster
	root    string // the repository
	ns      string
}

func newWorld(t *testing.T) world {
	t.Helper()
	if !cluster.RealPods(os.Getenv("CLUSTER")) {
		t.Skip("needs real pods: make monitoring-e2e CLUSTER=node, or kind")
	}
	root, err := filepath.Abs("../../..")
	harness.Must(t, err)
	t.Chdir(root) // cluster.Connect finds the cluster of this repository
	w := world{T: t, root: root}
	w.cluster, w.Client, err = cluster.Connect(os.Getenv("CLUSTER"))
	harness.Must(t, err)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "monitoring-",
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	harness.Must(t, w.Create(t.Context(), ns))
	w.ns = ns.Name
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.kubectl("get", "memcacheds,pods,events", "--namespace", w.ns, "--output", "wide"))
		}
		w.must(w.kubectl("delete", "memcacheds", "--all", "--namespace", w.ns))
		w.must(w.kubectl("delete", "namespace", w.ns, "--wait=false"))
	})
	return w
}

func (w world) kubectl(args ...string) (string, error) {
	return harness.Command{}.Run(context.WithoutCancel(w.Context()), "kubectl", args...)
}

// must returns the output of a command, and ends the test if it failed.
func (w world) must(out string, err error) string {
	w.Helper()
	harness.Must(w, err)
	return out
}

// apply applies a manifest.
func (w world) apply(manifest string) {
	w.Helper()
	file := filepath.Join(w.TempDir(), "manifest.yaml")
	harness.Must(w, os.WriteFile(file, []byte(manifest), 0o600))
	w.must(w.kubectl("apply", "--server-side", "--namespace", w.ns, "--filename", file))
}

// until waits until a condition of a Memcached is True.
func (w world) until(name, condition string) {
	w.Helper()
	harness.Eventually(w, name+" "+condition, harness.Patience, func() error {
		mc := &v1alpha1.Memcached{}
		if err := w.Get(w.Context(), client.ObjectKey{Namespace: w.ns, Name: name}, mc); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(mc.Status.Conditions, condition) || mc.Status.ObservedGeneration != mc.Generation {
			return fmt.Errorf("%v", mc.Status.Conditions)
		}
		return nil
	})
}

// pods returns the servers of a Memcached.
func (w world) pods(name string) []corev1.Pod {
	w.Helper()
	var pods corev1.PodList
	harness.Must(w, w.List(w.Context(), &pods, client.InNamespace(w.ns), client.MatchingLabels(
		names.Servers.Selector(&v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Name: name}}))))
	if len(pods.Items) == 0 {
		w.Fatalf("%s has no servers", name)
	}
	return pods.Items
}

// account creates a service account in monitoringNamespace.
func (w world) account(name string) {
	w.Helper()
	object := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: monitoringNamespace, Name: name}}
	harness.Must(w, client.IgnoreAlreadyExists(w.Create(w.Context(), object)))
}
