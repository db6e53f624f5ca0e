package gitops

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Names in config/default, and the tags of two releases.
const (
	operatorNamespace = "memcached-operator-system"
	operatorName      = "memcached-operator-controller-manager"
	olderTag          = "v0.0.0-older"
	tag               = "v0.0.0-newer"
)

var (
	operatorDeployment = object(deploymentKind, operatorNamespace, operatorName)
	memcachedCRD       = object(crdKind, "", "memcacheds.cache.example.com")
	imageTag           = regexp.MustCompile(`newTag: \S+`)
	releaseTag         = regexp.MustCompile(`ref=\S+`)
)

// releases makes a git repository that stands for that on GitHub: the tag has this config/, and the older tag one whose
// CRD lacks spec.proxy, and whose image is older. All git commands of the test, and of the programs that it starts, use
// that repository.
func releases(t *testing.T) {
	t.Helper()
	e := &env{T: t}
	dir := filepath.Join(t.TempDir(), "remote")
	require.NoError(t, os.CopyFS(filepath.Join(dir, "config"), os.DirFS(root+"/config")))
	r := &repository{e, dir}
	r.git("init", "--quiet")
	save := func(tag string) {
		r.git("add", "--all")
		r.git("commit", "--quiet", "--message="+tag)
		r.git("tag", tag)
	}
	change := func(name string, change func(string) string) {
		path := filepath.Join(dir, name)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		changed := change(string(text))
		require.NotEqual(t, string(text), changed, name)
		require.NoError(t, os.WriteFile(path, []byte(changed), 0o644))
	}
	setImageTag := func(tag string) {
		change("config/manager/kustomization.yaml", func(text string) string {
			return imageTag.ReplaceAllString(text, "newTag: "+tag)
		})
	}
	setImageTag(tag)
	save(tag)
	setImageTag(olderTag)
	change("config/crd/bases/cache.example.com_memcacheds.yaml", func(text string) string {
		crd := fromYAML(t, text)
		versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
		require.NoError(t, err)
		spec := []string{"schema", "openAPIV3Schema", "properties", "spec"}
		schema := versions[0].(map[string]any)
		unstructured.RemoveNestedField(schema, append(spec, "properties", "proxy")...)
		unstructured.RemoveNestedField(schema, append(spec, "x-kubernetes-validations")...)
		require.NoError(t, unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"))
		return toYAML(t, crd.Object)
	})
	save(olderTag)
	t.Setenv("GIT_CONFIG_COUNT", "1")
	t.Setenv("GIT_CONFIG_KEY_0", "url.file://"+dir+".insteadOf")
	t.Setenv("GIT_CONFIG_VALUE_0", "https://github.com/example/memcached-operator")
}

// withoutOperator removes what `make operator-start` installed, with the CRD, until the test ends.
func (e *env) withoutOperator() {
	e.Helper()
	e.run("bin/kubectl", "delete", "memcacheds", "--all", "--all-namespaces") // of earlier tests
	e.stopOperator()
	manifests := e.run("bin/kustomize", "build", "config/default")
	e.runWith(manifests, "bin/kubectl", "delete", "--ignore-not-found", "--timeout=60s", "--filename=-")
}

func gone(got event) string {
	if got.EventType != "DELETED" {
		return "it still exists"
	}
	return ""
}

// runOperator runs the operator as the Deployment on the cluster says, and returns its image.
func (e *env) runOperator() (image string) {
	e.Helper()
	e.await(operatorDeployment, complete(1))
	e.run("bin/cluster", "-kind", "kwok", "operator-run")
	return e.operatorImage()
}

func (e *env) operatorImage() string {
	e.Helper()
	containers, _, err := unstructured.NestedSlice(e.get(operatorDeployment).Object, "spec", "template", "spec",
		"containers")
	require.NoError(e, err)
	return containers[0].(map[string]any)["image"].(string)
}

func (e *env) exitOperator() { e.Helper(); e.run("bin/cluster", "-kind", "kwok", "operator-stop") }

// knowsProxy reports whether the CRD has the field that the older one lacks.
func (e *env) knowsProxy() bool {
	e.Helper()
	return strings.Contains(toYAML(e.T, e.get(memcachedCRD).Object["spec"]), "\n            proxy:\n")
}

// servers returns the uids of the servers in a namespace.
func (e *env) servers(namespace string) (uids []string) {
	e.Helper()
	pods := &unstructured.UnstructuredList{}
	pods.SetGroupVersionKind(podKind)
	require.NoError(e, e.List(e.Context(), pods, client.InNamespace(namespace)))
	for _, pod := range pods.Items {
		uids = append(uids, string(pod.GetUID()))
	}
	require.Len(e, uids, 3)
	return uids
}

// userRepository returns config/gitops as a user copies it, with the operator of this tag, and the caches in a
// namespace of the test.
func (e *env) userRepository(tag, caches string) map[string]string {
	e.Helper()
	files := map[string]string{}
	for _, folder := range []string{"operator-without-olm", "argocd/app-without-olm", "caches"} {
		paths, err := filepath.Glob(root + "/config/gitops/" + folder + "/*.yaml")
		require.NoError(e, err)
		require.NotEmpty(e, paths)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			require.NoError(e, err)
			renamed := strings.NewReplacer("name: caches", "name: "+caches, "namespace: caches", "namespace: "+caches).
				Replace(string(text))
			files[strings.TrimPrefix(path, root+"/")] = releaseTag.ReplaceAllString(renamed, "ref="+tag)
		}
	}
	return files
}

// withoutDeployment waits until the operator's Deployment is deleted.
func (e *env) withoutDeployment() {
	e.Helper()
	e.run("bin/kubectl", "wait", "--for=delete", "--timeout=60s", "--namespace", operatorNamespace,
		"deployment/"+operatorName)
}

// kept checks that neither the CRD nor the namespaces of operator and caches are deleted.
func (e *env) kept(caches string) {
	e.Helper()
	for _, obj := range []*unstructured.Unstructured{memcachedCRD, object(namespaceKind, "", operatorNamespace),
		object(namespaceKind, "", caches)} {
		assert.Nil(e, e.get(obj).GetDeletionTimestamp(), obj.GetName())
	}
}

const (
	operatorFile = "config/gitops/operator-without-olm/kustomization.yaml"
	cachesFile   = "config/gitops/caches/kustomization.yaml"
	nothing      = "resources: []\n"
)

// TestFluxWithoutOLM installs the operator and a cache from git, by config/gitops/flux-without-olm, upgrades the
// operator, removes it from git and adds it again, and removes everything.
func TestFluxWithoutOLM(t *testing.T) {
	releases(t)
	f := newFlux(t)
	f.withoutOperator()
	caches := f.namespace + "-caches"
	t.Cleanup(func() { _ = f.Delete(context.Background(), object(namespaceKind, "", caches)) })
	sample := object(memcachedKind, caches, "memcached-sample")
	kustomizations := f.observe(kustomizationKind, f.namespace)
	start := time.Now()
	revision := f.push(f.userRepository(olderTag, caches))
	ks := map[string]*unstructured.Unstructured{}
	for text := range strings.SplitSeq(f.run("bin/kustomize", "build", "config/gitops/flux-without-olm"), "\n---\n") {
		if k := fromYAML(t, text); k.GetKind() == "Kustomization" {
			k.SetNamespace(f.namespace)
			require.NoError(t, unstructured.SetNestedField(k.Object, f.source.GetName(), "spec", "sourceRef", "name"))
			f.create(impatient(k))
			ks[k.GetName()] = k
		}
	}
	require.Len(t, ks, 2)
	assert.Contains(t, f.runOperator(), olderTag)
	installed := kustomizations.until("memcached-operator", applied(revision))
	ready := kustomizations.until("memcached", applied(revision))
	created := f.get(sample)
	assert.Empty(t, rowOf("ready").mismatch(created))
	assert.Less(t, version(installed.Unstructured), version(ready.Unstructured))
	assert.False(t, f.knowsProxy())
	f.measured("install: commit to ready %.1f s", time.Since(start).Seconds())
	servers := f.servers(caches)

	// A commit with the new tag brings the new CRD and the new operator, and replaces no server.
	files := f.userRepository(tag, caches)
	f.exitOperator()
	revision = f.push(files)
	kustomizations.until("memcached-operator", applied(revision))
	assert.Contains(t, f.runOperator(), tag)
	f.await(ks["memcached"], applied(revision))
	assert.True(t, f.knowsProxy())
	assert.ElementsMatch(t, servers, f.servers(caches))

	// The namespace of the caches and the whole operator are removed from git: CRD, namespaces and caches stay.
	withoutOperator := f.userRepository(tag, caches)
	withoutOperator[operatorFile] = nothing
	withoutOperator[cachesFile] = strings.ReplaceAll(withoutOperator[cachesFile], "- namespace.yaml\n", "")
	f.exitOperator()
	revision = f.push(withoutOperator)
	f.await(ks["memcached-operator"], applied(revision))
	f.withoutDeployment()
	f.kept(caches)
	assert.Equal(t, created.GetUID(), f.get(sample).GetUID())

	// The operator that is added again takes them over.
	revision = f.push(files)
	f.runOperator()
	f.await(ks["memcached"], applied(revision))
	assert.ElementsMatch(t, servers, f.servers(caches))

	// Removal: first the caches, then the operator.
	memcacheds := f.observe(memcachedKind, caches)
	f.delete(ks["memcached"], metav1.DeletePropagationBackground)
	kustomizations.until("memcached", gone)
	memcacheds.until(sample.GetName(), gone)
	f.delete(ks["memcached-operator"], metav1.DeletePropagationBackground)
	kustomizations.until("memcached-operator", gone)
	f.exitOperator()
	f.kept(caches)
	f.run("bin/kubectl", "delete", "--timeout=60s", "crd/"+memcachedCRD.GetName(), "namespace/"+operatorNamespace,
		"namespace/"+caches)
}

// TestFluxOCI installs the operator from the OCI artifact of a release, by config/gitops/flux-oci.
func TestFluxOCI(t *testing.T) {
	f := newFlux(t)
	f.established("ocirepositories.source.toolkit.fluxcd.io")
	f.withoutOperator()
	image := "registry.example.com/memcached-operator@sha256:" + strings.Repeat("1", 64)
	layer := filepath.Join(t.TempDir(), "manifests.tar")
	f.run("tools/manifests", "config", image, layer)
	archive := f.run("tools/with-registry", "REGISTRY", "bash", "-c", `crane append --oci-empty-base --new_layer "$0" \
		--new_tag $REGISTRY/memcached-operator-manifests:v0.1.0 >/dev/null &&
		crane blob $REGISTRY/memcached-operator-manifests@"$(crane manifest $REGISTRY/memcached-operator-manifests:v0.1.0 |
		sed 's/.*"layers":\[{[^}]*"digest":"\([^"]*\)".*/\1/')"`, layer)
	var k *unstructured.Unstructured
	for text := range strings.SplitSeq(f.run("bin/kustomize", "build", "config/gitops/flux-oci"), "\n---\n") {
		switch obj := fromYAML(t, text); {
		case obj.GetKind() == "OCIRepository":
			obj.SetNamespace(f.namespace)
			f.create(obj)
			f.source = obj
		case obj.GetName() == "memcached-operator":
			obj.SetNamespace(f.namespace)
			k = impatient(obj)
		}
	}
	revision := "v0.1.0@sha256:" + strings.Repeat("2", 64)
	f.serve([]byte(archive), revision)
	f.create(k)
	f.await(k, applied(revision))
	assert.Equal(t, image, f.operatorImage())
	assert.Equal(t, image, f.runOperator())
	f.exitOperator()
	kustomizations := f.observe(kustomizationKind, f.namespace)
	f.delete(k, metav1.DeletePropagationBackground)
	kustomizations.until("memcached-operator", gone)
}
