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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/tests/cluster"
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
	if os.Getenv("KUBECONFIG") == "" {
		t.Skip("needs a cluster without the operator: make install-e2e")
	}
	c, err := cluster.New("kwok")
	require.NoError(t, err)
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
		"--selector=app.kubernetes.io/instance=memcached-sample", "--output=jsonpath={.items[*].metadata.uid}"))
	require.Len(w, uids, 3)
	slices.Sort(uids)
	return uids
}

// older returns manifests of an older release: its CRD lacks spec.proxy.
func older(t *testing.T, manifests string) string {
	t.Helper()
	var all []string
	for text := range strings.SplitSeq(manifests, "\n---\n") {
		if strings.Contains(text, "\nkind: CustomResourceDefinition\n") {
			crd := &unstructured.Unstructured{}
			require.NoError(t, yaml.Unmarshal([]byte(text), &crd.Object))
			versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
			require.NoError(t, err)
			schema := versions[0].(map[string]any)
			spec := []string{"schema", "openAPIV3Schema", "properties", "spec"}
			unstructured.RemoveNestedField(schema, append(spec, "properties", "proxy")...)
			unstructured.RemoveNestedField(schema, append(spec, "x-kubernetes-validations")...)
			require.NoError(t, unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"))
			changed, err := yaml.Marshal(crd.Object)
			require.NoError(t, err)
			text = string(changed)
		}
		all = append(all, text)
	}
	return strings.Join(all, "\n---\n")
}

// knowsProxy reports whether the API server accepts the field that the older CRD lacks.
func (w *world) knowsProxy() bool {
	w.Helper()
	_, err := command.Run(w.Context(), "kubectl", "create", "--dry-run=server", "--validate=strict", "--filename",
		"config/samples/cache_v1alpha1_memcached_proxy.yaml")
	return err == nil
}

// TestE2EHelm runs the commands of docs/how-to/helm.md: it installs the chart from a registry, upgrades it, uninstalls
// it, and installs it again.
func TestE2EHelm(t *testing.T) {
	w := newWorld(t)
	manifests := run(t, "kustomize", "build", "config/default")
	registry := w.registry()
	for version, text := range map[string]string{"0.0.3": older(t, manifests), "0.0.4": manifests} {
		run(t, "tools/chart", version, w.file(version, text), w.dir)
		// The last command of the page.
		push := regexp.MustCompile(`helm push \S+/(\S+)-\S+ (\S+)`).FindStringSubmatch(
			block(t, "helm.md", "## A chart of your own", "sh", ""))
		run(t, "helm", "push", "--plain-http", fmt.Sprintf("%s/%s-%s.tgz", w.dir, push[1], version),
			strings.Replace(push[2], "registry.example.com", registry, 1))
	}
	shell := func(heading, start string, settings ...string) {
		t.Helper()
		commands := start + block(t, "helm.md", heading, "sh", start)
		commands = regexp.MustCompile(`(oci://)example\.com(/\S+ --version) \S+`).ReplaceAllString(commands,
			"--plain-http "+strings.Join(settings, " ")+" ${1}"+registry+"${2} $$version")
		run(t, "bash", "-ec", strings.NewReplacer("helm uninstall", "helm uninstall --timeout=60s", "kubectl delete",
			"kubectl delete --timeout=60s").Replace(commands))
	}
	t.Setenv("version", "0.0.3")
	shell("## Install", "")
	shell("## Install", "kubectl label")
	w.start()
	assert.False(t, w.knowsProxy())
	servers := w.cache("default")

	w.stop()
	t.Setenv("version", "0.0.4")
	shell("## Upgrade", "", "--set=replicas=2,log.level=debug")
	w.start()
	assert.True(t, w.knowsProxy(), "the upgrade did not bring the new CRD")
	assert.Equal(t, servers, w.servers("default"))
	assert.Contains(t, w.kubectl("get", "poddisruptionbudgets", "--namespace", namespace, "--output=name"),
		cluster.OperatorDeployment)

	w.stop()
	shell("## Uninstall", "")
	assert.Empty(t, w.kubectl("get", "deployments,services", "--namespace", namespace, "--output=name"))
	assert.NotContains(t, w.kubectl("get", "clusterroles,clusterrolebindings", "--output=name"), "memcached")
	assert.Equal(t, servers, w.servers("default"))

	shell("## Install", "")
	w.start()
	assert.Equal(t, servers, w.servers("default"))
	shell("## Uninstall", "kubectl delete memcacheds")
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

// TestE2EHelmTakesOver runs the commands of docs/how-to/helm.md that move from install.yaml to the chart.
func TestE2EHelmTakesOver(t *testing.T) {
	w := newWorld(t)
	manifests := installYAML(t)
	w.kubectl("apply", "--server-side", "--filename", w.file("install.yaml", manifests))
	w.start()
	servers := w.cache("default")
	w.stop()
	run(t, "bash", "-ec", block(t, "helm.md", "## From another way to install", "sh", ""))
	run(t, "helm", "install", "memcached-operator", chart(t, manifests), "--namespace", namespace, "--create-namespace",
		"--wait", "--timeout=60s")
	w.start()
	assert.Equal(t, servers, w.servers("default"))
	w.kubectl("delete", "memcacheds", "--all", "--all-namespaces", "--timeout=60s")
	w.stop()
	run(t, "helm", "uninstall", "memcached-operator", "--namespace", namespace, "--wait", "--timeout=60s")
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

// TestE2EInstallYAML removes what install.yaml installed with its own file: as its head says, and also without the
// Memcacheds being deleted first, with the commands of docs/how-to/kustomize.md that then help.
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
	removal := block(t, "kustomize.md", "### With all caches", "sh", "")
	for command := range strings.Lines(strings.ReplaceAll(removal, "-k .", "-f install.yaml")) {
		assert.Contains(t, head, "\n#   "+command)
	}
	shell(removal)
	w.stop()

	install()
	servers := w.cache("default")
	keep := block(t, "kustomize.md", "### But keep the caches", "sh", "")
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
	help := block(t, "kustomize.md", "### If a deletion hangs", "sh", "")
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
		block(t, "kustomize.md", "### If a deletion hangs", "sh", "kubectl get memcacheds --all-namespaces"))
	shell(patch)
	w.kubectl("wait", "--for=delete", "--timeout=60s", "crd/memcacheds.cache.example.com", "namespace/"+namespace)
	w.kubectl("wait", "--for=delete", "--timeout=60s", "--namespace=default", "pods", "--all")
}
