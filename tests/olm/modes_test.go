package olm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestInstallModes runs an operator for its own namespace and another for a single other namespace. No operator touches
// a Memcached in a further namespace. OLM refuses an OperatorGroup with several namespaces, because the CSV does not
// support that mode.
func TestInstallModes(t *testing.T) {
	w := test{t}
	w.must(moveCatalog(to))
	w.kubectl("apply", "--namespace", "olm", "-f", filepath.Join(files, "catalogsource.yaml"))
	start := time.Now()
	w.install("own", "own")
	w.install("single", "served")
	w.install("multi", "multi", "also")
	for namespace, want := range map[string]string{
		"own": "Succeeded: InstallSucceeded", "single": "Succeeded: InstallSucceeded",
		"multi": "Failed: UnsupportedOperatorGroup",
	} {
		w.becomes(want, 3*time.Minute, "{.status.phase}: {.status.reason}", "csv/"+to.csv(), "--namespace", namespace)
	}
	milestones.add("OwnNamespace and SingleNamespace installed, MultiNamespace refused", start)

	for _, namespace := range []string{"elsewhere", "own", "single", "served"} { // those without an operator first
		if namespace == "elsewhere" {
			w.kubectl("create", "namespace", namespace)
		}
		w.kubectl("apply", "--namespace", namespace, "-f", "config/samples/cache_v1alpha1_memcached_minimal.yaml")
	}
	for _, namespace := range []string{"own", "served"} {
		w.kubectl("wait", "--for=condition=Ready", "--timeout=90s", "--namespace", namespace, "memcached", "--all")
	}
	for _, namespace := range []string{"elsewhere", "single"} {
		got := w.field("{.items[*].status.phase} {.items[*].status.observedGeneration}", "memcached", "--namespace",
			namespace)
		children := w.kubectl("get", "deployments,statefulsets", "--namespace", namespace, "--output", "name",
			"--selector", "app.kubernetes.io/managed-by=memcached-operator")
		if got != "Pending -1" || children != "" {
			t.Errorf("no operator serves namespace %s, but its Memcached is %s and has %q", namespace, got, children)
		}
	}
	milestones.add("each operator serves only its namespaces", start)

	w.kubectl("delete", "memcached", "--all", "--all-namespaces", "--timeout=90s")
	for _, namespace := range []string{"own", "single", "multi"} {
		w.unsubscribe(namespace)
	}
	w.kubectl("delete", "namespace", "own", "single", "multi", "served", "also", "elsewhere", "--timeout=2m")
	w.kubectl("delete", "catalogsource", "memcached-operator", "--namespace", "olm")
	w.removeClusterScoped("own", "single", "multi")
}

// install creates a Subscription in a namespace with an OperatorGroup for the target namespaces.
func (t test) install(namespace string, targets ...string) {
	t.Helper()
	var manifests strings.Builder
	for _, name := range append([]string{namespace}, targets...) {
		fmt.Fprintf(&manifests, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n---\n", name)
	}
	fmt.Fprintf(&manifests, `
apiVersion: operators.coreos.com/v1
kind: OperatorGroup
metadata: {name: memcached-operator, namespace: %[1]s}
spec: {targetNamespaces: [%[2]s]}
---
apiVersion: operators.coreos.com/v1alpha1
kind: Subscription
metadata: {name: memcached-operator, namespace: %[1]s}
spec: {name: memcached-operator, channel: %[3]s, source: memcached-operator, sourceNamespace: olm}
`, namespace, strings.Join(targets, ", "), channel())
	file := filepath.Join(work, namespace+".yaml")
	t.must(os.WriteFile(file, []byte(manifests.String()), 0o644))
	t.kubectl("apply", "-f", file)
}
