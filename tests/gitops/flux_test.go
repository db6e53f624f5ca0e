package gitops

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const sourceController = "github.com/fluxcd/source-controller@v1.9.6" // only for its CRDs

var (
	kustomizationKind = schema.GroupVersionKind{Group: "kustomize.toolkit.fluxcd.io", Version: "v1", Kind: "Kustomization"}
	gitRepositoryKind = schema.GroupVersionKind{Group: "source.toolkit.fluxcd.io", Version: "v1", Kind: "GitRepository"}
)

// repository is a git repository on this machine.
type repository struct {
	e   *env
	dir string
}

func (e *env) newRepository() *repository {
	r := &repository{e, e.TempDir()}
	r.git("init", "--quiet", "--initial-branch=main")
	return r
}

func (r *repository) git(args ...string) string {
	r.e.Helper()
	return strings.TrimSpace(r.e.run("git", append([]string{"-C", r.dir, "-c", "user.name=test", "-c",
		"user.email=test@example.com"}, args...)...))
}

// commit replaces the whole content of the repository by these files, by path.
func (r *repository) commit(files map[string]string) (revision string) {
	r.e.Helper()
	r.git("rm", "-r", "--quiet", "--ignore-unmatch", ".")
	for path, text := range files {
		path = filepath.Join(r.dir, path)
		require.NoError(r.e, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(r.e, os.WriteFile(path, []byte(text), 0o644))
	}
	r.git("add", "--all")
	r.git("commit", "--quiet", "--allow-empty", "--message=test")
	return r.git("rev-parse", "HEAD")
}

// flux is the real kustomize-controller as a process of this machine. As in Flux's own tests, the test replaces
// source-controller: it serves the commit and writes the status of the GitRepository.
type flux struct {
	*env
	*repository
	server *httptest.Server
	source *unstructured.Unstructured
	synced int
}

func newFlux(t *testing.T) *flux {
	e := newEnv(t)
	for _, name := range []string{"github.com/fluxcd/kustomize-controller", sourceController} {
		var module struct{ Dir string }
		download := e.run("go", "-C", "tools/kustomize-controller", "mod", "download", "-json", name)
		require.NoError(e, json.Unmarshal([]byte(download), &module))
		e.run("bin/kubectl", "apply", "--server-side", "--filename", module.Dir+"/config/crd/bases")
	}
	e.established("kustomizations.kustomize.toolkit.fluxcd.io")
	e.established("gitrepositories.source.toolkit.fluxcd.io")
	f := &flux{env: e, repository: e.newRepository()}
	f.server = httptest.NewServer(http.FileServer(http.Dir(e.TempDir())))
	t.Cleanup(f.server.Close)
	f.startController()
	f.source = e.object(gitRepositoryKind, "source")
	f.source.Object["spec"] = map[string]any{"url": "https://example.com/test", "interval": "1h"}
	e.create(f.source)
	return f
}

func (f *flux) startController() {
	log, err := os.Create(filepath.Join(f.TempDir(), "kustomize-controller.log"))
	require.NoError(f, err)
	cmd := exec.Command("../../bin/kustomize-controller", "--enable-leader-election=false",
		"--interval-jitter-percentage=0", "--events-addr=",
		"--requeue-dependency=1s", "--watch-all-namespaces=false",
		"--metrics-addr="+freeAddress(f.T), "--health-addr="+freeAddress(f.T))
	cmd.Env = append(os.Environ(), "RUNTIME_NAMESPACE="+f.namespace)
	cmd.Stdout, cmd.Stderr = log, log
	// The process dies with the test, even if the test is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(f, cmd.Start())
	f.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		// No controller is left to remove the finalizers.
		left := &unstructured.UnstructuredList{}
		left.SetGroupVersionKind(kustomizationKind)
		_ = f.List(context.Background(), left, client.InNamespace(f.namespace))
		for _, k := range left.Items {
			_ = f.Patch(context.Background(), &k, client.RawPatch("application/merge-patch+json",
				[]byte(`{"metadata": {"finalizers": null}}`)))
		}
		if f.Failed() {
			text, _ := os.ReadFile(log.Name())
			f.Logf("the end of kustomize-controller's log:\n%s", text[max(0, len(text)-4000):])
		}
	})
}

func freeAddress(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().String()
}

// push commits files and announces the commit to Flux, which then reconciles.
func (f *flux) push(files map[string]string) (revision string) {
	f.Helper()
	revision = "main@sha1:" + f.commit(files)
	archive := filepath.Join(f.TempDir(), "archive.tar.gz")
	f.git("archive", "--format=tar.gz", "--output="+archive, "HEAD")
	text, err := os.ReadFile(archive)
	require.NoError(f, err)
	f.serve(text, revision)
	return revision
}

// serve makes an archive the artifact of the source.
func (f *flux) serve(archive []byte, revision string) {
	f.Helper()
	f.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.Copy(w, bytes.NewReader(archive))
	})
	source := f.get(f.source)
	now := time.Now().UTC().Format(time.RFC3339)
	status, err := json.Marshal(map[string]any{"status": map[string]any{
		"observedGeneration": source.GetGeneration(),
		"conditions": []any{map[string]any{"type": "Ready", "status": "True", "reason": "Succeeded", "message": "stored",
			"observedGeneration": source.GetGeneration(), "lastTransitionTime": now}},
		"artifact": map[string]any{"path": "archive.tar.gz", "url": f.server.URL + "/archive.tar.gz", "revision": revision,
			"digest": fmt.Sprintf("sha256:%x", sha256.Sum256(archive)), "size": len(archive), "lastUpdateTime": now},
	}})
	require.NoError(f, err)
	require.NoError(f, f.Status().Patch(f.Context(), source, client.RawPatch("application/merge-patch+json", status)))
}

// kustomization returns a Kustomization for a folder of the repository, with all settings of
// config/gitops/flux/caches.yaml.
func (f *flux) kustomization(name, path string) *unstructured.Unstructured {
	k := readObject(f.T, root+"/config/gitops/flux/caches.yaml")
	k.SetNamespace(f.namespace)
	k.SetName(name)
	spec := k.Object["spec"].(map[string]any)
	spec["path"], spec["targetNamespace"] = path, f.namespace
	spec["sourceRef"] = map[string]any{"kind": "GitRepository", "name": f.source.GetName()}
	delete(spec, "dependsOn")
	return k
}

// applied returns a check that a Kustomization is ready with a revision.
func applied(revision string) func(event) string {
	return func(got event) string {
		generation, _, _ := unstructured.NestedInt64(got.Object, "status", "observedGeneration")
		last, _, _ := unstructured.NestedString(got.Object, "status", "lastAppliedRevision")
		if ready := conditions(got.Unstructured)["Ready"]; generation != got.GetGeneration() || last != revision ||
			!strings.HasPrefix(ready, "Ready=True/") {
			return fmt.Sprintf("%s at %s, generation %d of %d", ready, last, generation, got.GetGeneration())
		}
		return ""
	}
}

// sync makes Flux reconcile again, and waits until it has.
func (f *flux) sync(k *unstructured.Unstructured) {
	f.Helper()
	f.synced++
	token := fmt.Sprintf("sync-%d", f.synced)
	f.patch(k, "flux", fmt.Sprintf(`{"metadata": {"annotations": {"reconcile.fluxcd.io/requestedAt": %q}}}`, token))
	f.await(k, func(got event) string {
		handled, _, _ := unstructured.NestedString(got.Object, "status", "lastHandledReconcileAt")
		if ready := conditions(got.Unstructured)["Ready"]; handled != token || !strings.HasPrefix(ready, "Ready=True/") {
			return fmt.Sprintf("%s, handled %s of %s", ready, handled, token)
		}
		return ""
	})
}

// complete returns a check that a Deployment has this number of replicas, all updated and available.
func complete(replicas int64) func(event) string {
	return func(got event) string {
		number := func(path ...string) int64 {
			n, _, _ := unstructured.NestedInt64(got.Object, path...)
			return n
		}
		if number("status", "observedGeneration") == got.GetGeneration() && number("spec", "replicas") == replicas &&
			number("status", "updatedReplicas") == replicas && number("status", "replicas") == replicas &&
			number("status", "availableReplicas") == replicas {
			return ""
		}
		return fmt.Sprintf("status %v", got.Object["status"])
	}
}

const cacheYAML = `apiVersion: cache.example.com/v1alpha1
kind: Memcached
metadata:
  name: cache
spec:
  containerPort: 11211
`

// TestFlux creates a cache from git, changes it, reverts drift, prunes it and creates it again.
func TestFlux(t *testing.T) {
	f := newFlux(t)
	kustomizations := f.observe(kustomizationKind, f.namespace)
	deployments := f.observe(deploymentKind, f.namespace)
	memcacheds := f.observe(memcachedKind, f.namespace)
	k := f.kustomization("caches", "./caches")
	// readyAfter waits until the revision is applied, and checks that the servers became ready before the Memcached, and
	// the Memcached before the Kustomization.
	readyAfter := func(what string, replicas int64, files map[string]string) {
		t.Helper()
		start := time.Now()
		revision := f.push(files)
		if what == "create" {
			f.create(k)
		}
		ready := kustomizations.until("caches", applied(revision))
		servers := deployments.until("cache", complete(replicas))
		healthy := memcacheds.until("cache", func(got event) string {
			if n, _, _ := unstructured.NestedInt64(got.Object, "spec", "size"); n != replicas {
				return fmt.Sprintf("size is %d", n)
			}
			return rowOf("ready").check(got)
		})
		assert.Less(t, version(servers.Unstructured), version(healthy.Unstructured),
			"%s: the Memcached was Ready before its servers", what)
		assert.Less(t, version(healthy.Unstructured), version(ready.Unstructured),
			"%s: the Kustomization was Ready before the Memcached", what)
		f.measured("%-8s commit to Ready: servers %.2f s, Memcached %.2f s, Kustomization %.2f s", what,
			servers.at.Sub(start).Seconds(), healthy.at.Sub(start).Seconds(), ready.at.Sub(start).Seconds())
	}
	git := func(spec string) map[string]string { return map[string]string{"caches/cache.yaml": cacheYAML + spec} }
	cache := f.object(memcachedKind, "cache")

	readyAfter("create", 3, git("  size: 3\n"))
	readyAfter("change", 5, git("  size: 5\n  memory: 128Mi\n"))

	// One person changes the object, another its children. Flux reverts the first change, the operator the second.
	generation := f.get(cache).GetGeneration()
	f.patch(cache, "kubectl-edit", `{"spec": {"memory": "256Mi"}}`)
	f.sync(k)
	memory, _, _ := unstructured.NestedString(f.get(cache).Object, "spec", "memory")
	assert.Equal(t, "128Mi", memory)
	assert.Equal(t, generation+2, f.get(cache).GetGeneration(), "one by the person, one by Flux, none by the operator")
	f.drift("cache", 5)
	f.sync(k)
	f.trackingStaysOnTheCR("cache")

	f.pruned(func() { f.push(map[string]string{"caches/kustomization.yaml": "resources: []\n"}) })
	readyAfter("recreate", 2, git("  size: 2\n"))

	// The deletion of the Kustomization completes only after the servers are gone.
	f.pruned(func() { f.delete(k, metav1.DeletePropagationBackground) })
	kustomizations.until("caches", func(got event) string {
		if got.EventType != "DELETED" {
			return "it still exists"
		}
		assert.Greater(t, version(got.Unstructured), version(last(memcacheds.all("cache"))),
			"the Kustomization was gone before the Memcached")
		return ""
	})
}

// fluxOf is Flux with one Kustomization.
type fluxOf struct {
	*flux
	k *unstructured.Unstructured
}

func (f *flux) engine() gitops {
	k := f.kustomization("caches", "./caches")
	f.push(map[string]string{"caches/kustomization.yaml": "resources: []\n"})
	f.create(k)
	return fluxOf{f, k}
}

func (f fluxOf) sync() { f.flux.sync(f.k) }

func (f fluxOf) push(files map[string]string) {
	f.Helper()
	f.await(f.k, applied(f.flux.push(files)))
}

func TestFluxAutoscaled(t *testing.T) {
	f := newFlux(t)
	f.autoscaledOutsideOfGit(f.engine())
}

func TestFluxHandOver(t *testing.T) {
	f := newFlux(t)
	f.handedOver(f.engine())
}

func last(events []event) *unstructured.Unstructured { return events[len(events)-1].Unstructured }

// drift changes or deletes every child of a Memcached, and waits until the operator has reverted that.
func (e *env) drift(name string, replicas int64) {
	e.Helper()
	e.patch(e.object(deploymentKind, name), "somebody",
		`{"spec": {"replicas": 1, "template": {"spec": {"containers": [{"name": "memcached", "image": "other"}]}}}}`)
	e.delete(e.object(serviceKind, name), metav1.DeletePropagationBackground)
	e.delete(e.object(pdbKind, name), metav1.DeletePropagationBackground)
	e.await(e.object(serviceKind, name), func(event) string { return "" })
	e.await(e.object(pdbKind, name), func(event) string { return "" })
	e.await(e.object(deploymentKind, name), complete(replicas))
	e.await(e.object(memcachedKind, name), rowOf("ready").check)
}

// trackingStaysOnTheCR checks that the children have no labels or annotations by which an engine would track them.
func (e *env) trackingStaysOnTheCR(name string) {
	e.Helper()
	for _, kind := range []schema.GroupVersionKind{deploymentKind, serviceKind, pdbKind} {
		child := e.get(e.object(kind, name))
		for key := range child.GetAnnotations() {
			assert.NotContains(e, key, "argoproj.io", kind.Kind)
			assert.NotContains(e, key, "fluxcd.io", kind.Kind)
		}
		for key := range child.GetLabels() {
			assert.NotContains(e, key, "argoproj.io", kind.Kind)
			assert.NotContains(e, key, "fluxcd.io", kind.Kind)
		}
	}
}

var childKinds = []schema.GroupVersionKind{deploymentKind, serviceKind, pdbKind, podKind}

// pruned calls remove to delete the Memcached cache. It checks that the Memcached is gone only after its servers, that
// nothing is left, and that nothing was created meanwhile.
func (e *env) pruned(remove func()) {
	e.Helper()
	start := time.Now()
	memcacheds := e.observe(memcachedKind, e.namespace)
	memcacheds.until("cache", func(event) string { return "" })
	var children []*observer
	existing := map[string]bool{}
	for _, kind := range childKinds {
		for _, child := range e.list(kind) {
			existing[string(child.GetUID())] = true
		}
		children = append(children, e.observe(kind, e.namespace))
	}
	remove()
	end := memcacheds.until("cache", func(got event) string {
		if got.EventType != "DELETED" {
			return "it still exists"
		}
		return ""
	})
	for i, kind := range childKinds {
		if kind == podKind {
			assert.Empty(e, e.list(kind), "servers are left")
		}
		for _, left := range e.list(kind) {
			children[i].until(left.GetName(), func(got event) string {
				if got.EventType != "DELETED" {
					return "it still exists"
				}
				return ""
			})
		}
		for _, got := range children[i].all("") {
			assert.True(e, existing[string(got.GetUID())], "%s %s was created while the Memcached was deleted", kind.Kind,
				got.GetName())
		}
	}
	e.measured("%-8s %.2f s, nothing left, nothing created", "prune", end.at.Sub(start).Seconds())
}
