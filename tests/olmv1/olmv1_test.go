// Package olmv1 tests that OLM v1 itself can install, upgrade and remove the operator, on a kwok cluster. catalogd,
// operator-controller and the operator run as processes of this machine, images come from a registry of the test, and
// pods are simulated.
package olmv1

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/tests/earlier"
)

const (
	namespace  = "memcached-operator-system"
	deployment = "deployment/memcached-operator-controller-manager"
	crd        = "customresourcedefinition/memcacheds.cache.example.com"
	extension  = "clusterextension/memcached-operator"
	// owned selects the objects that OLM v1 installed.
	owned = "olm.operatorframework.io/owner-name=memcached-operator"
)

// TestUpgradeAndRemoval follows one cluster through installation, upgrade, a refused upgrade, removal and another
// installation. Its caches exist from the first version on, and must stay the same.
func TestUpgradeAndRemoval(t *testing.T) {
	w := newWorld(t)
	from, err := earlier.Before(t.Context(), os.Getenv("VERSION"), w.path("earlier"))
	w.must(err)
	manager, err := from.Build(t.Context())
	w.must(err)
	before, now := w.release(from.Source+"/bundle", manager), w.release(w.root+"/bundle", w.root+"/bin/manager")
	w.catalog("latest", before)

	w.install(before)
	stop := w.startOperator(before)
	w.run("kubectl", "apply", "--filename", "config/samples/cache_v1alpha1_memcached.yaml", "--filename",
		"config/samples/cache_v1alpha1_memcached_minimal.yaml")
	w.cachesReady(2)
	caches := w.caches()
	upgraded := earlier.Create(w, from, func(args ...string) (string, error) { return w.try("kubectl", args...) })
	w.logf("v%s is installed, and caches are ready:\n%s", before.version, strings.Join(caches, "\n"))

	w.catalog("next", before, now)
	if from.Released() {
		// Rules or descriptions of the CRD may have changed. Then OLM v1 refuses the CRD, unless the user allows it, as
		// docs/how-to/upgrade.md says.
		w.crdUpgradeSafety(`{"preflight":{"crdUpgradeSafety":{"enforcement":"None"}}}`)
	}
	w.useCatalog("next")
	w.installed(now)
	w.crdUpgradeSafety("null")
	stop()
	stop = w.startOperator(now)
	upgraded.Upgraded()
	w.createAndDelete(caches)
	w.mustBeSame("the upgrade", caches)
	w.logf("v%s is installed by the graph, and the caches are the same", now.version)

	broken := w.release(w.breaking(w.root+"/bundle", "99.0.0"), "")
	w.catalog("broken", before, now, broken)
	w.useCatalog("broken")
	w.condition("Progressing", "crd upgrade safety refuses it", func(message string) bool {
		return strings.Contains(message, "memcacheds.cache.example.com") && strings.Contains(message, "maximum")
	})
	w.installed(now)
	w.useCatalog("next")
	w.logf("a version with a stricter CRD is refused")

	crdBefore := w.get(crd).GetUID()
	w.run("kubectl", "delete", extension, "--wait", "--timeout", harness.Patience.String())
	w.goneExcept(crd)
	stop()
	w.mustBeSame("the removal of the ClusterExtension", caches)
	w.logf("the ClusterExtension is gone with all but the CRD, and the caches are the same")

	w.adopt()
	w.catalog("latest", before, now)
	w.install(now)
	stop = w.startOperator(now)
	w.createAndDelete(caches)
	w.mustBeSame("another installation", caches)
	if got := w.get(crd).GetUID(); got != crdBefore {
		t.Errorf("the CRD was created again: UID %s, was %s", got, crdBefore)
	}
	w.logf("another installation manages the same caches")

	w.run("kubectl", "delete", "memcacheds", "--all", "--all-namespaces", "--wait", "--timeout", harness.Patience.String())
	w.run("kubectl", "delete", extension, crd, "--wait", "--timeout", harness.Patience.String())
	w.goneExcept()
	stop()
	w.run("kubectl", "delete", "--kustomize", "config/olmv1", "--ignore-not-found", "--wait", "--timeout",
		harness.Patience.String())
	w.logf("everything is removed")
}

// install applies config/olmv1. A pre-release is only in the channel candidate.
func (w *world) install(r release) {
	w.Helper()
	manifests := w.run("kubectl", "kustomize", "config/olmv1")
	if strings.Contains(os.Getenv("VERSION"), "-") {
		stable := regexp.MustCompile(`(channels:\s+- )stable`)
		if !stable.MatchString(manifests) {
			w.Fatalf("config/olmv1 does not name the channel stable")
		}
		manifests = stable.ReplaceAllString(manifests, "${1}candidate")
	}
	w.write("olmv1.yaml", manifests)
	w.run("kubectl", "apply", "--filename", w.path("olmv1.yaml"))
	w.installed(r)
}

// crdUpgradeSafety sets spec.install of the ClusterExtension.
func (w *world) crdUpgradeSafety(install string) {
	w.Helper()
	w.run("kubectl", "patch", extension, "--type=merge", "--patch", `{"spec":{"install":`+install+`}}`)
}

// get returns one object.
func (w *world) get(name string) *unstructured.Unstructured {
	w.Helper()
	u := &unstructured.Unstructured{}
	w.must(u.UnmarshalJSON([]byte(w.run("kubectl", "get", name, "--namespace", namespace, "--output", "json"))))
	return u
}

// condition waits until a condition of the ClusterExtension has a wanted message.
func (w *world) condition(kind, what string, is func(message string) bool) {
	w.Helper()
	w.eventually(what, func() error {
		message, err := w.try("kubectl", "get", extension, "--output",
			`jsonpath={.status.conditions[?(@.type=="`+kind+`")].message}`)
		if err == nil && !is(message) {
			err = fmt.Errorf("%s: %s", kind, message)
		}
		return err
	})
}

// installed waits until a release is installed.
func (w *world) installed(r release) {
	w.Helper()
	w.eventually("install v"+r.version, func() error {
		out, err := w.try("kubectl", "get", extension, "--output",
			`jsonpath={.status.install.bundle.name} {range .status.conditions[*]}{.type}={.status}/{.reason} {end}: `+
				`{.status.conditions[?(@.type=="Progressing")].message}`)
		for _, want := range []string{"memcached-operator.v" + r.version + " ", "Installed=True/Succeeded"} {
			if err == nil && !strings.Contains(out, want) {
				err = fmt.Errorf("no %q: %s", want, out)
			}
		}
		return err
	})
	w.run("kubectl", "wait", "--for", "condition=Established", "--timeout", harness.Patience.String(), crd)
	w.run("kubectl", "rollout", "status", "--namespace", namespace, "--timeout", harness.Patience.String(), deployment)
}

// adopt lets OLM v1 manage a CRD that it did not create, or that it kept when it removed the rest, as
// docs/how-to/olm.md describes.
func (w *world) adopt() {
	w.Helper()
	w.run("kubectl", "label", crd, "--overwrite", "app.kubernetes.io/managed-by=Helm")
	w.run("kubectl", "annotate", crd, "--overwrite", "meta.helm.sh/release-name=memcached-operator",
		"meta.helm.sh/release-namespace="+namespace)
}

func (w *world) useCatalog(tag string) {
	w.Helper()
	w.run("kubectl", "patch", "clustercatalog", "memcached-operator", "--type", "merge", "--patch",
		`{"spec": {"source": {"image": {"ref": "`+w.public(w.image("-catalog"))+":"+tag+`"}}}}`)
}

// cachesReady waits until all Memcacheds are ready, and fails unless there are this many.
func (w *world) cachesReady(count int) {
	w.Helper()
	w.run("kubectl", "wait", "memcacheds", "--all", "--for", "condition=Ready", "--timeout", harness.Patience.String())
	if got := len(strings.Fields(w.run("kubectl", "get", "memcacheds", "--output", "name"))); got != count {
		w.Errorf("there are %d Memcacheds, want %d", got, count)
	}
}

// createAndDelete creates another Memcached and deletes it. Only an operator with all its permissions can do that.
func (w *world) createAndDelete(others []string) {
	w.Helper()
	w.write("one-more.yaml", "{apiVersion: cache.example.com/v1alpha1, kind: Memcached, metadata: {name: one-more}}")
	w.run("kubectl", "apply", "--filename", w.path("one-more.yaml"))
	w.cachesReady(3)
	w.run("kubectl", "delete", "--filename", w.path("one-more.yaml"), "--wait", "--timeout", harness.Patience.String())
	w.eventually("delete its servers", func() error {
		if now := w.caches(); len(now) != len(others) {
			return errors.New("there are " + strings.Join(now, ", "))
		}
		return nil
	})
}

// caches returns the UIDs of all Memcacheds, workloads and pods, and whether they are terminating.
func (w *world) caches() []string {
	w.Helper()
	return strings.Split(w.run("kubectl", "get", "memcacheds,deployments,statefulsets,pods", "--output",
		`jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.uid} {.metadata.deletionTimestamp}{"\n"}{end}`), "\n")
}

func (w *world) mustBeSame(after string, before []string) {
	w.Helper()
	if now := w.caches(); !slices.Equal(before, now) {
		w.Errorf("the caches changed with %s:\n%s\nbefore:\n%s", after, strings.Join(now, "\n"),
			strings.Join(before, "\n"))
	}
}

// goneExcept waits until only kept is left of what OLM v1 installed, and kept is neither terminating nor owned.
func (w *world) goneExcept(kept ...string) {
	w.Helper()
	w.eventually("removal", func() error {
		out, err := w.try("kubectl", "get",
			"deployments,services,serviceaccounts,clusterroles,clusterrolebindings,customresourcedefinitions",
			"--all-namespaces", "--selector", owned, "--output",
			`jsonpath={range .items[*]}{.kind}/{.metadata.name}{.metadata.deletionTimestamp}`+
				`{.metadata.ownerReferences[*].kind}{"\n"}{end}`)
		if left := strings.Fields(strings.ToLower(out)); err == nil && !slices.Equal(left, kept) {
			err = errors.New("these objects are left: " + strings.Join(left, " "))
		}
		return err
	})
}
