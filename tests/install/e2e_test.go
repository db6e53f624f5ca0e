package install

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/tests/cluster"
	"github.com/example/memcached-operator/tests/earlier"
)

// world is a kwok cluster on which no operator is installed. Its pods are simulated; the operator runs as a process of
// this machine, as its Deployment says.
type world struct {
	*testing.T
	operator *cluster.Operator
	dir      string
}

// newWorld skips the test if there is no cluster. `make install-e2e` starts one.
func newWorld(t *testing.T) *world {
	t.Helper()
	c, err := cluster.New(cluster.Need(t, "install-e2e"))
	require.NoError(t, err)
	t.Setenv("KUBECONFIG", c.GetKubeconfig())
	w := &world{T: t, operator: c.Operator(""), dir: t.TempDir()}
	require.NotContains(t, w.kubectl("get", "crds,namespaces"), "memcached", "the test before removes everything")
	t.Cleanup(w.cleanUp)
	return w
}

// cleanUp removes what a failed test leaves, for the next one.
func (w *world) cleanUp() {
	ctx := context.Background()
	_ = w.operator.Stop(ctx)
	if !w.Failed() {
		return
	}
	for _, script := range []string{
		"kubectl delete memcacheds --all --all-namespaces --wait=false",
		`kubectl get memcacheds --all-namespaces --no-headers | while read -r namespace name _; do
			kubectl patch memcached --namespace $namespace $name --type=merge --patch '{"metadata":{"finalizers":null}}'; done`,
		"kustomize build config/default | kubectl delete --ignore-not-found --timeout=60s --filename -",
	} {
		_, _ = command.Run(ctx, "bash", "-c", script)
	}
}

func (w *world) kubectl(args ...string) string { w.Helper(); return run(w.T, "kubectl", args...) }

func (w *world) tryKubectl(args ...string) (string, error) {
	return command.Run(w.Context(), "kubectl", args...)
}

// file writes a file and returns its path.
func (w *world) file(name, text string) string {
	w.Helper()
	path := filepath.Join(w.dir, name)
	write(w.T, path, text)
	return path
}

// start waits until the Deployment is available, and starts the operator.
func (w *world) start() {
	w.Helper()
	w.kubectl("rollout", "status", "--timeout=60s", "--namespace", namespace, "deployment/"+cluster.OperatorDeployment)
	require.NoError(w, w.operator.Run(w.Context()))
}

func (w *world) stop() { w.Helper(); require.NoError(w, w.operator.Stop(w.Context())) }

// cache creates the sample in a namespace, and returns the uids of its servers when it is ready.
func (w *world) cache(namespace string) []string {
	w.Helper()
	w.kubectl("apply", "--namespace", namespace, "--filename", "config/samples/cache_v1alpha1_memcached.yaml")
	return w.servers(namespace)
}

// servers waits until the sample is ready, and returns the uids of its servers.
func (w *world) servers(namespace string) []string {
	w.Helper()
	w.kubectl("wait", "--for=condition=Ready", "--timeout=60s", "--namespace", namespace, "memcached/memcached-sample")
	return w.uids(namespace)
}

// uids returns the uids of the servers of the sample.
func (w *world) uids(namespace string) []string {
	w.Helper()
	uids := strings.Fields(w.kubectl("get", "pods", "--namespace", namespace,
		"--selector=cache.example.com/name=memcached-sample", "--output=jsonpath={.items[*].metadata.uid}"))
	require.Len(w, uids, 3)
	slices.Sort(uids)
	return uids
}

// earlier builds the version from which to upgrade. Its Source has the manifests.
func (w *world) earlier() (from earlier.Version, manager string) {
	w.Helper()
	from, err := earlier.Before(w.Context(), os.Getenv("VERSION"), filepath.Join(w.dir, "earlier"))
	require.NoError(w, err)
	manager, err = from.Build(w.Context())
	require.NoError(w, err)
	return from, manager
}

// TestE2EHelm runs the commands of docs/how-to/helm.md, upgrade.md and uninstall.md: it installs the chart of the
// version before from a registry, upgrades it, uninstalls it, and installs it again.
func TestE2EHelm(t *testing.T) {
	w := newWorld(t)
	from, manager := w.earlier()
	newer := os.Getenv("VERSION")
	install := block(t, "helm.md", "## Install", "sh", "")
	ref := regexp.MustCompile(`oci://[^/\s]+(\S*)/(\S+) --version \S+`).FindStringSubmatch(install)
	require.NotNil(t, ref, "the page installs no chart")
	registry := w.registry()
	for version, source := range map[string]string{from.Version: from.Source, newer: "."} {
		manifests := run(t, "kustomize", "build", filepath.Join(source, "config/default"))
		run(t, filepath.Join(source, "tools/chart"), version, w.file(version, manifests), w.dir)
		// The last command of the page.
		push := regexp.MustCompile(`helm push \S+/(\S+)-\S+ oci://`).FindStringSubmatch(
			block(t, "helm.md", "## A chart of your own", "sh", ""))
		require.Equal(t, ref[2], push[1])
		run(t, "helm", "push", "--plain-http", fmt.Sprintf("%s/%s-%s.tgz", w.dir, push[1], version),
			"oci://"+registry+ref[1])
	}
	shell := func(page, heading, start string, settings ...string) {
		t.Helper()
		commands := start + block(t, page, heading, "sh", start)
		commands = regexp.MustCompile(`oci://[^/\s]+(\S+ --version) \S+`).ReplaceAllString(commands,
			"--plain-http oci://"+registry+"${1} $$version")
		run(t, "bash", "-ec", strings.NewReplacer("helm uninstall", "helm uninstall --timeout=60s", "kubectl delete",
			"kubectl delete --timeout=60s", "helm upgrade", "helm upgrade "+strings.Join(settings, " ")).Replace(commands))
	}
	t.Setenv("version", from.Version)
	shell("helm.md", "## Install", "")
	shell("helm.md", "## Install", "kubectl label")
	w.operator.Manager = manager
	w.start()
	servers := w.cache("default")
	caches := earlier.Create(t, from, w.tryKubectl)

	w.stop()
	t.Setenv("version", newer)
	shell("upgrade.md", "## Helm", "", "--set=replicas=2,log.level=debug")
	w.operator.Manager = ""
	w.start()
	caches.Upgraded()
	assert.Equal(t, servers, w.servers("default"))
	assert.Contains(t, w.kubectl("get", "poddisruptionbudgets", "--namespace", namespace, "--output=name"),
		cluster.OperatorDeployment)

	w.stop()
	shell("uninstall.md", "## Helm", "")
	assert.Empty(t, w.kubectl("get", "deployments,services", "--namespace", namespace, "--output=name"))
	assert.NotContains(t, w.kubectl("get", "clusterroles,clusterrolebindings", "--output=name"), "memcached")
	assert.Equal(t, servers, w.servers("default"))

	shell("helm.md", "## Install", "")
	w.start()
	assert.Equal(t, servers, w.servers("default"))
	shell("uninstall.md", "## Helm", "kubectl delete memcacheds")
	w.stop()
	w.kubectl("delete", "--timeout=60s", "namespace/"+namespace)
}

// registry serves images until the test ends, and returns its address.
func (w *world) registry() string {
	w.Helper()
	address, err := harness.FreeAddress()
	require.NoError(w, err)
	cmd := exec.Command("crane", "registry", "serve", "--address", address)
	require.NoError(w, cmd.Start())
	w.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	harness.Eventually(w, "serve images", harness.Patience, func() error {
		_, err := command.Run(w.Context(), "crane", "catalog", address)
		return err
	})
	return address
}

// TestE2EHelmTakesOver moves from install.yaml to the chart, by the commands of docs/how-to/uninstall.md that keep the
// caches.
func TestE2EHelmTakesOver(t *testing.T) {
	w := newWorld(t)
	manifests := installYAML(t)
	w.kubectl("apply", "--server-side", "--filename", w.file("install.yaml", manifests))
	w.start()
	servers := w.cache("default")
	w.stop()
	run(t, "bash", "-ec", block(t, "uninstall.md", "## kubectl and kustomize", "sh", ""))
	run(t, "helm", "install", "memcached-operator", chart(t, manifests), "--namespace", namespace, "--create-namespace",
		"--wait", "--timeout=60s")
	w.start()
	assert.Equal(t, servers, w.servers("default"))
	w.kubectl("delete", "memcacheds", "--all", "--all-namespaces", "--timeout=60s")
	w.stop()
	run(t, "helm", "uninstall", "memcached-operator", "--namespace", namespace, "--wait", "--timeout=60s")
	w.kubectl("delete", "--timeout=60s", "crd/memcacheds.cache.example.com", "namespace/"+namespace)
}

// TestE2EUmbrella installs operator and Memcached by one chart, with no CRD before. It upgrades both, with a new field,
// and removes them, by the commands of docs/how-to/helm.md and uninstall.md.
func TestE2EUmbrella(t *testing.T) {
	w := newWorld(t)
	shell := func(dir, page, heading, start string) {
		t.Helper()
		commands := start + block(t, page, heading, "sh", start)
		// The archive of the dependency is there.
		run(t, "bash", "-ec", strings.NewReplacer("helm dependency update shop\n", "",
			" shop "+"shop ", " shop "+dir+" ", "crds shop ", "crds "+dir+" ",
			"--wait", "--wait --timeout=60s").Replace(commands))
	}
	ready := func() {
		t.Helper()
		w.kubectl("wait", "--for=condition=Ready", "--timeout=60s", "--namespace", namespace, "memcached/sessions")
	}
	manifests := installYAML(t)
	older := umbrella(t, chart(t, manifests))
	const heading = "## As a dependency"
	shell(older, "helm.md", heading, "helm dependency")
	w.start()
	ready()

	newer := umbrella(t, chart(t, run(t, "yq", `(select(.kind == "CustomResourceDefinition") | .spec.versions[0].schema
		.openAPIV3Schema.properties.spec.properties.novel) = {"type": "string", "description": "novel is new."}`,
		w.file("install.yaml", manifests))))
	file := filepath.Join(newer, "templates/sessions.yaml")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	write(t, file, strings.TrimSpace(string(text))+"\n  novel: field\n")
	_, err = command.Run(t.Context(), "helm", "upgrade", "shop", newer, "--namespace", namespace)
	require.ErrorContains(t, err, "helm show crds CHART | kubectl apply --server-side --force-conflicts -f -")
	shell(newer, "helm.md", heading, "helm show crds")
	ready()
	assert.Equal(t, "field", w.kubectl("get", "memcached", "sessions", "--namespace", namespace,
		"--output=jsonpath={.spec.novel}"))

	shell(newer, "uninstall.md", "## Helm", "kubectl delete memcacheds --all --all-namespaces\nhelm uninstall shop")
	w.stop()
	// The garbage collector deletes the Service after the servers.
	w.kubectl("wait", "--for=delete", "--timeout=60s", "--namespace", namespace, "service/sessions")
	assert.NotContains(t, w.kubectl("get", "all", "--namespace", namespace), "sessions")
	w.kubectl("delete", "--timeout=60s", "crd/memcacheds.cache.example.com", "namespace/"+namespace)
}

// TestE2ESettings runs the operator with every setting of docs/how-to/kustomize.md.
func TestE2ESettings(t *testing.T) {
	w := newWorld(t)
	w.kubectl("create", "namespace", "shop")
	w.kubectl("create", "namespace", "forum")
	built, err := kustomization(t, page(t, "kustomize.md", "## Settings", "kustomization.yaml"), permissions(t))
	require.NoError(t, err)
	file := w.file("install.yaml", built)
	run(t, "bash", "-ec", strings.ReplaceAll(block(t, "kustomize.md", "## Install", "sh", ""), "-k .", "-f "+file))
	w.start()
	w.cache("shop")
	w.cache("forum")
	w.kubectl("apply", "--filename", "config/samples/cache_v1alpha1_memcached.yaml")
	w.cache("shop") // a reconcile after the creation in the namespace that is not watched
	assert.Equal(t, "-1", w.kubectl("get", "memcached", "memcached-sample", "--namespace=default",
		"--output=jsonpath={.status.observedGeneration}"))
	log, err := w.operator.Logs(t.Context())
	require.NoError(t, err)
	assert.Contains(t, log, `"namespaces": ["forum", "shop"], "image": "registry.example.com/library/memcached:1.6.45"`)
	assert.Contains(t, log, "\tDEBUG\t")
	assert.Contains(t, log, "operator-2.log")

	// The finalizer is added by the operator alone, so the Memcached that nobody watched has none.
	w.kubectl("delete", "memcacheds", "--all", "--all-namespaces", "--timeout=60s")
	w.stop()
	w.kubectl("delete", "--timeout=60s", "--filename", file)
	w.kubectl("delete", "--timeout=60s", "namespace", "shop", "forum")
}

// TestE2EInstallYAMLUpgrade applies install.yaml of a version over that of the version before.
func TestE2EInstallYAMLUpgrade(t *testing.T) {
	w := newWorld(t)
	from, manager := w.earlier()
	w.kubectl("apply", "--server-side", "--filename", w.file("earlier.yaml", run(t,
		filepath.Join(from.Source, "tools/install-yaml"), filepath.Join(from.Source, "overlay/install"),
		imageName+":v"+from.Version)))
	w.operator.Manager = manager
	w.start()
	caches := earlier.Create(t, from, w.tryKubectl)

	w.stop()
	file := w.file("install.yaml", installYAML(t))
	w.kubectl("apply", "--server-side", "--filename", file)
	w.operator.Manager = ""
	w.start()
	caches.Upgraded()
	w.stop()
	w.kubectl("delete", "--timeout=60s", "--filename", file)
}

// TestE2EInstallYAML removes what install.yaml installed with its own file: as its head says, and also without the
// Memcacheds being deleted first, with the commands of docs/how-to/uninstall.md that then help.
func TestE2EInstallYAML(t *testing.T) {
	w := newWorld(t)
	manifests := installYAML(t)
	file := w.file("install.yaml", manifests)
	install := func() {
		t.Helper()
		w.kubectl("apply", "--server-side", "--filename", file)
		w.start()
	}
	// shell runs commands of the page, or of the head of the file. A deletion that hangs fails.
	shell := func(commands string) {
		t.Helper()
		commands = strings.NewReplacer("-k .", "-f "+file, "-f install.yaml", "-f "+file,
			"kubectl delete", "kubectl delete --timeout=60s").Replace(commands)
		run(t, "bash", "-ec", commands)
	}
	head, _, _ := strings.Cut(manifests, "\napiVersion")

	install()
	w.cache("default")
	const uninstall, heading, first = "uninstall.md", "## kubectl and kustomize", "kubectl delete memcacheds"
	removal := first + block(t, uninstall, heading, "sh", first)
	for command := range strings.Lines(strings.ReplaceAll(removal, "-k .", "-f install.yaml")) {
		assert.Contains(t, head, "\n#   "+command)
	}
	shell(removal)
	w.stop()

	install()
	servers := w.cache("default")
	keep := block(t, uninstall, heading, "sh", "")
	for command := range strings.Lines(keep) {
		assert.Contains(t, head+"\n", "\n#   "+command)
	}
	w.stop()
	shell(keep)
	install()
	assert.Equal(t, servers, w.servers("default"), "the caches were not kept")

	// kubectl deletes the operator with the CRD, so this would hang.
	w.stop()
	w.kubectl("delete", "--wait=false", "--filename", file)
	_, err := command.Run(t.Context(), "kubectl", "wait", "--for=delete", "--timeout=3s",
		"crd/memcacheds.cache.example.com")
	require.ErrorContains(t, err, "timed out", "the deletion does not hang: the pages say that it does")
	assert.Equal(t, servers, w.uids("default"), "the servers do not serve until an operator runs")
	w.kubectl("wait", "--for=delete", "--timeout=60s", "namespace/"+namespace)
	help := block(t, uninstall, "## If a deletion hangs", "sh", "")
	apply, rest, _ := strings.Cut(help, "\n")
	shell(apply)
	w.start()
	shell(rest)
	w.stop()
	assert.Empty(t, w.kubectl("get", "pods", "--namespace=default", "--output=name"))

	// The same, by hand.
	install()
	w.cache("default")
	w.stop()
	w.kubectl("delete", "--wait=false", "--filename", file)
	patch := strings.NewReplacer("NAMESPACE", "default", " NAME ", " memcached-sample ").Replace(
		block(t, uninstall, "## If a deletion hangs", "sh", "kubectl get memcacheds --all-namespaces"))
	shell(patch)
	w.kubectl("wait", "--for=delete", "--timeout=60s", "crd/memcacheds.cache.example.com", "namespace/"+namespace)
	w.kubectl("wait", "--for=delete", "--timeout=60s", "--namespace=default", "pods", "--all")
}
