package olm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/example/memcached-operator/tests/earlier"
)

const (
	operatorNamespace  = "memcached-operator-system"
	operatorDeployment = "memcached-operator-controller-manager"
)

// TestLifecycle installs the operator with the files that we ship, upgrades it, removes it, installs it again and
// removes everything. Caches with keys exist all the time.
func TestLifecycle(t *testing.T) {
	w := test{t}
	w.must(moveCatalog(from))
	w.step("operator installed", func() { // with the commands of the docs
		w.kubectl("apply", "-k", files)
		w.kubectl("wait", "--namespace", operatorNamespace, "--timeout=2m", "--for=jsonpath={.status.state}=AtLatestKnown",
			"subscriptions.operators.coreos.com/memcached-operator")
		w.kubectl("wait", "--namespace", operatorNamespace, "--timeout=2m", "--for=jsonpath={.status.phase}=Succeeded",
			"clusterserviceversions", "--all")
	})
	w.succeeded(from)
	served := fill(w, "caches", "memcached-sample")
	milestones.note("caches hold %d keys on %d servers", keys*len(served.servers), len(served.servers))
	upgraded := earlier.Create(w, source, kubectl)

	w.step("upgrade", func() { w.upgrade(served) })
	w.step("pod templates after the upgrade", upgraded.Upgraded)
	w.step("operator removed, caches stay", func() { w.remove(served) })
	w.step("operator installed again", func() {
		w.kubectl("apply", "-k", files)
		w.succeeded(to)
		served.intact()
		served.scales(5)
	})
	w.step("everything removed", func() { w.removeAll(served) })
}

// step runs a part of a test and adds it to the summary.
func (t test) step(what string, do func()) {
	t.Helper()
	start := time.Now()
	do()
	milestones.add(what, start)
}

// succeeded waits until this release is installed and runs, and logs when each stage is reached.
func (t test) succeeded(r release) {
	t.Helper()
	start := time.Now()
	for _, stage := range []struct{ what, path, want string }{
		{"catalog answers", "catalogsource/memcached-operator {.status.connectionState.lastObservedState}", "READY"},
		{"InstallPlan for v" + r.version, "subscription/memcached-operator {.status.currentCSV}", r.csv()},
		{"CSV v" + r.version + " Succeeded", "csv/" + r.csv() + " {.status.phase}", "Succeeded"},
		{"operator v" + r.version + " runs", "deployment/" + operatorDeployment +
			" {.status.availableReplicas} {.spec.template.spec.containers[0].image}", "1 " + r.operator},
	} {
		object, path, _ := strings.Cut(stage.path, " ")
		t.becomes(stage.want, 2*time.Minute, path, object, "--namespace", operatorNamespace)
		milestones.add("  "+stage.what, start)
	}
}

// upgrade makes the catalog offer the next release, and waits until OLM has upgraded the operator, while clients read.
func (t test) upgrade(served *cache) {
	stop := served.startReading()
	t.must(moveCatalog(to))
	t.succeeded(to)
	// The new CSV replaces the old one, which is deleted.
	t.becomes(to.csv()+" replaces "+from.csv(), time.Minute,
		"{.items[*].metadata.name} replaces {.items[*].spec.replaces}", "csv", "--namespace", operatorNamespace)
	served.intact()
	served.scales(4)
	milestones.note("%d reads during the upgrade, none failed; no server restarted, no key lost", stop())
}

// scales resizes the Memcached. The operator must do so without touching the other servers.
func (c *cache) scales(size int) {
	c.Helper()
	c.kubectl("scale", "--namespace", c.namespace, "memcached/"+c.name, fmt.Sprintf("--replicas=%d", size))
	c.becomes(strconv.Itoa(size), 90*time.Second, "{.status.readyReplicas}", "memcached", c.name, "--namespace",
		c.namespace)
	c.intact()
}

// remove removes the operator as the docs describe, while caches exist.
func (t test) remove(served *cache) {
	t.unsubscribe(operatorNamespace)
	t.becomes("", time.Minute, "{.items[*].metadata.name}", "deployments,pods", "--selector",
		"control-plane=controller-manager", "--namespace", operatorNamespace)
	served.intact()
}

// removeAll deletes the caches while the operator runs, and then everything else.
func (t test) removeAll(served *cache) {
	t.kubectl("delete", "memcached", "--all", "--all-namespaces", "--timeout=90s")
	if pods := served.state(); pods != "" {
		t.Fatalf("the Memcacheds are gone before these servers:\n%s", pods)
	}
	t.unsubscribe(operatorNamespace)
	t.kubectl("delete", "-k", files, "--timeout=2m", "--ignore-not-found")
	t.removeClusterScoped(operatorNamespace)
}

// unsubscribe deletes Subscription and CSV, and waits until OLM has removed what belongs to them.
func (t test) unsubscribe(namespace string) {
	t.Helper()
	t.kubectl("delete", "subscription", "memcached-operator", "--namespace", namespace, "--timeout=1m")
	t.kubectl("delete", "csv", "--selector", "operators.coreos.com/memcached-operator."+namespace, "--namespace",
		namespace, "--timeout=1m")
}

// removeClusterScoped removes what OLM leaves after the Subscriptions and CSVs in these namespaces are deleted, and
// checks that nothing else is left.
func (t test) removeClusterScoped(namespaces ...string) {
	t.Helper()
	t.kubectl("delete", "--ignore-not-found", "crd", "memcacheds.cache.example.com", "--timeout=1m")
	t.kubectl("delete", "clusterrole", "--selector", "app.kubernetes.io/name=memcached-operator")
	for _, namespace := range namespaces {
		t.kubectl("delete", "clusterroles,clusterrolebindings", "--selector",
			"operators.coreos.com/memcached-operator."+namespace)
		t.kubectl("delete", "--ignore-not-found", "operators.operators.coreos.com", "memcached-operator."+namespace)
		// OLM removes these with their OperatorGroup, but a concurrent sync of the group may create them again.
		t.kubectl("delete", "clusterroles", "--selector",
			"olm.owner.kind=OperatorGroup,olm.owner.namespace="+namespace)
	}
	t.eventually("remove everything", time.Minute, func() error { // pods of catalogs stop slowly
		left := t.left()
		if len(left) > 0 {
			return fmt.Errorf("these objects are left: %s", strings.Join(left, ", "))
		}
		return nil
	})
}

// left returns all objects of ours on the cluster.
func (t test) left() (objects []string) {
	t.Helper()
	kinds := slices.DeleteFunc(strings.Fields(t.kubectl("api-resources", "--verbs=list", "--output", "name")),
		func(kind string) bool {
			return strings.HasPrefix(kind, "events") || strings.HasPrefix(kind, "endpoint") ||
				strings.HasPrefix(kind, "packagemanifests")
		})
	out := t.kubectl("get", strings.Join(kinds, ","), "--all-namespaces", "--ignore-not-found", "--output",
		`jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name}{"\n"}{end}`)
	for line := range strings.Lines(out) {
		if strings.Contains(line, "memcached") {
			objects = append(objects, strings.TrimSpace(line))
		}
	}
	return objects
}
