// Package install tests that every way to install the operator without OLM installs the same objects.
package install

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/internal/testing/harness"
)

const (
	namespace = "memcached-operator-system"
	version   = "0.1.0-test"
	// Names that tools/rename changes.
	repositoryURL = "https://github.com/example/memcached-operator"
	imageName     = "example.com/memcached-operator"
	mirrorName    = "registry.example.com/memcached-operator"
)

// image is an image by digest, as a release names its own.
var image = mirrorName + "@sha256:" + strings.Repeat("0", 64)

func TestMain(m *testing.M) {
	if err := harness.Built("install-test", "kustomize", "yq", "helm"); err != nil {
		fmt.Println("skipped:", err)
		return
	}
	m.Run()
}

var command = harness.Command{Dir: "../.."}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := command.Run(t.Context(), name, args...)
	require.NoError(t, err)
	return out
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

// installYAML returns install.yaml, as tools/release makes it.
func installYAML(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(dir, "config"), os.DirFS("../../config")))
	return run(t, "tools/install-yaml", filepath.Join(dir, "overlay/install"), image)
}

// chart packages the chart that installs the objects of manifests, and returns the path of the archive.
func chart(t *testing.T, manifests string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "install.yaml"), manifests)
	run(t, "tools/chart", version, filepath.Join(dir, "install.yaml"), dir)
	return filepath.Join(dir, "memcached-operator-"+version+".tgz")
}

func template(t *testing.T, chart string, args ...string) string {
	t.Helper()
	return run(t, "helm", append([]string{"template", "memcached-operator", chart, "--namespace", namespace,
		"--kube-version", "1.30.0", "--include-crds"}, args...)...)
}

// page returns the first YAML below a heading of a page of docs/how-to that starts with this comment.
func page(t *testing.T, name, heading, comment string) string {
	t.Helper()
	return block(t, name, heading, "yaml", "# "+comment+"\n")
}

// block returns the first block of code below a heading of a page of docs/how-to that starts with this text.
func block(t *testing.T, name, heading, language, start string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/how-to/" + name)
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n"+heading+"\n")
	require.True(t, found, "%s has no heading %s", name, heading)
	code := regexp.MustCompile("(?s)\n```" + language + "\n" + regexp.QuoteMeta(start) + "(.*?)\n```\n").
		FindStringSubmatch(section)
	require.NotNil(t, code, "%s has no such block of %s below %s", name, language, heading)
	return code[1] + "\n"
}

// kustomization builds a kustomization of docs/how-to/kustomize.md with these further files. A git repository with this
// config/ replaces that on GitHub.
func kustomization(t *testing.T, text string, files map[string]string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	remote := filepath.Join(dir, "remote")
	require.NoError(t, os.CopyFS(filepath.Join(remote, "config"), os.DirFS("../../config")))
	tag := regexp.MustCompile(`\?ref=(\S+)`).FindStringSubmatch(text + "?ref=none")[1]
	for _, args := range [][]string{{"init", "--quiet"}, {"add", "--all"}, {"commit", "--quiet", "--message=test"},
		{"tag", tag}} {
		run(t, "git", append([]string{"-C", remote, "-c", "user.name=test", "-c", "user.email=test@example.com"}, args...)...)
	}
	write(t, filepath.Join(dir, "kustomization.yaml"), text)
	for name, text := range files {
		write(t, filepath.Join(dir, name), text)
	}
	kustomize := command
	kustomize.Env = []string{"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url.file://" + remote + ".insteadOf",
		"GIT_CONFIG_VALUE_0=" + repositoryURL}
	return kustomize.Run(t.Context(), "kustomize", "build", dir)
}

// objects decodes manifests, by kind, namespace and name. It removes what Helm alone sets or does not install: two
// labels, and the Namespace, which `helm install --create-namespace` creates.
func objects(t *testing.T, manifests string) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for text := range strings.SplitSeq(manifests, "\n---\n") {
		u := &unstructured.Unstructured{}
		require.NoError(t, yaml.Unmarshal([]byte(text), &u.Object))
		labels := u.GetLabels()
		delete(labels, "app.kubernetes.io/managed-by")
		delete(labels, "helm.sh/chart")
		u.SetLabels(labels)
		key := fmt.Sprintf("%s %s/%s", u.GetKind(), u.GetNamespace(), u.GetName())
		require.NotContains(t, all, key)
		all[key] = u.Object
	}
	delete(all, "Namespace /"+namespace)
	return all
}

// same compares two sets of manifests, object by object.
func same(t *testing.T, want, got string) {
	t.Helper()
	wanted, all := objects(t, want), objects(t, got)
	assert.Equal(t, slices.Sorted(maps.Keys(wanted)), slices.Sorted(maps.Keys(all)))
	for key, object := range wanted {
		wantText, err := yaml.Marshal(object)
		require.NoError(t, err)
		gotText, err := yaml.Marshal(all[key])
		require.NoError(t, err)
		assert.Equal(t, string(wantText), string(gotText), key)
	}
}

// TestSameObjects: the chart without values, install.yaml and config/default are the same, except for the image.
func TestSameObjects(t *testing.T) {
	t.Parallel()
	manifests := installYAML(t)
	assert.Len(t, objects(t, manifests), 16)
	rendered := template(t, chart(t, manifests))
	same(t, manifests, rendered)
	assert.Contains(t, rendered, image)

	config := run(t, "kustomize", "build", "config/default")
	ours := regexp.MustCompile("image: " + regexp.QuoteMeta(imageName) + ":v.*")
	require.Len(t, ours.FindAllString(config, -1), 1)
	same(t, ours.ReplaceAllString(config, "image: "+image), manifests)
}

// permissions returns the file that the page shows for namespaced-permissions, and the same for the second namespace.
func permissions(t *testing.T) map[string]string {
	t.Helper()
	const file = "permissions.yaml"
	shop := page(t, "kustomize.md", "### Permissions in some namespaces only", file)
	forum := strings.Replace(shop, "namespace: shop\n", "namespace: forum\n", 1)
	return map[string]string{file: shop + "---\n" + forum}
}

// TestSameSettings: the kustomization and the values on the pages set the same.
func TestSameSettings(t *testing.T) {
	t.Parallel()
	built, err := kustomization(t, page(t, "kustomize.md", "## Settings", "kustomization.yaml"), permissions(t))
	require.NoError(t, err)
	values := filepath.Join(t.TempDir(), "values.yaml")
	write(t, values, page(t, "helm.md", "## Values", "values.yaml"))
	// The mirror on the page has the image without the owner's part of its name, if there is one.
	_, path, _ := strings.Cut(imageName, "/")
	want := strings.Replace(built, "image: "+mirrorName, "image: registry.example.com/"+path, 1)
	same(t, want, template(t, chart(t, run(t, "kustomize", "build", "config/default")), "--values", values))
	assert.Len(t, objects(t, built), 18, "one ClusterRoleBinding less; two RoleBindings and a PodDisruptionBudget more")
	for _, setting := range []string{"replicas: 2", "kind: PodDisruptionBudget", "--watch-namespaces=shop,forum",
		"--zap-log-level=debug", "--zap-encoder=console", "cpu: 100m", "memory: 256Mi", "memory: 1Gi", "- name: registry",
		"--image-pull-secrets=registry",
		"secretName: memcached-operator-metrics", "--metrics-cert-dir=/etc/memcached-operator/metrics",
		"value: registry.example.com/library/memcached:1.6.45",
		"image: " + mirrorName + ":"} {
		assert.Contains(t, built, setting)
	}
	assert.NotContains(t, built, "kind: ConfigMap")
}

// TestInstall: the first kustomization on the page changes only the image.
func TestInstall(t *testing.T) {
	t.Parallel()
	built, err := kustomization(t, page(t, "kustomize.md", "## Install", "kustomization.yaml"), nil)
	require.NoError(t, err)
	assert.Equal(t, strings.Replace(run(t, "kustomize", "build", "config/default"), "image: "+imageName,
		"image: "+mirrorName, 1), built)
}

// TestSettingMissing: a component whose setting is missing fails, rather than to set nothing.
func TestSettingMissing(t *testing.T) {
	t.Parallel()
	text := regexp.MustCompile(regexp.QuoteMeta(repositoryURL)+`//(\S+)\?ref=\S+`).ReplaceAllString(
		page(t, "kustomize.md", "## Settings", "kustomization.yaml"), "remote/$1") // cloning once for each URL takes long
	settings := regexp.MustCompile(`(?m)^ {2}- (\w+)=.*\n`).FindAllStringSubmatch(text, -1)
	require.Len(t, settings, 9)
	for _, setting := range settings {
		_, err := kustomization(t, strings.Replace(text, setting[0], "", 1), permissions(t))
		require.ErrorContains(t, err, setting[1])
	}
	_, err := kustomization(t, text, permissions(t))
	require.NoError(t, err)
}

// TestValues: what each value changes, beyond those on the page, and what is refused.
func TestValues(t *testing.T) {
	t.Parallel()
	archive := chart(t, installYAML(t))
	for name, tt := range map[string]struct {
		set  string
		want []string
	}{
		"images": {"image=other/operator:1,memcachedImage=other/memcached:1",
			[]string{"image: other/operator:1", "value: other/memcached:1"}},
		"mirror": {"registry=mirror:5000/path",
			[]string{"image: mirror:5000/path/memcached-operator@sha256:", "value: mirror:5000/path/library/memcached:"}},
		"mirror and tag": {"registry=mirror,image=library/operator:1", []string{"image: mirror/library/operator:1"}},
		"nodes": {"nodeSelector.disk=ssd,tolerations[0].key=infra",
			[]string{"disk: ssd", "kubernetes.io/os: linux", "- key: infra"}},
		"no replica": {"replicas=0", []string{"replicas: 0"}},
		"pull secrets": {"imagePullSecrets[0].name=a,imagePullSecrets[1].name=b",
			[]string{"- name: a\n", "- name: b\n", "- --image-pull-secrets=a,b\n"}},
		"log level 2":  {"log.level=2", []string{"--zap-log-level=2"}},
		"limit of cpu": {"resources.limits.cpu=1", []string{"cpu: 1", "memory: 512Mi", "memory: 64Mi"}},
	} {
		rendered := template(t, archive, "--set", tt.set)
		for _, want := range tt.want {
			assert.Contains(t, rendered, want, name)
		}
		objects(t, rendered)
	}
	other := template(t, archive, "--namespace", "other")
	assert.NotContains(t, other, "namespace: "+namespace)
	assert.Equal(t, strings.Count(template(t, archive), "namespace: "+namespace), strings.Count(other, "namespace: other"))

	for set, message := range map[string]string{
		"replica=2":              "replica",
		"replicas=-1":            "replicas",
		"log.format=text":        "log.format",
		"log.level=loud":         "log.level",
		"watchNamespaces[0]=A":   "watchNamespaces",
		"registry=mirror/":       "registry",
		"metrics.certificate=no": "metrics",
		"resources.memory=1Gi":   "resources",
	} {
		_, err := command.Run(t.Context(), "helm", "template", "x", archive, "--kube-version", "1.30.0", "--set", set)
		require.ErrorContains(t, err, message, set)
	}
	_, err := command.Run(t.Context(), "helm", "template", "x", archive, "--kube-version", "1.29.0")
	require.ErrorContains(t, err, "1.30")
}

// umbrella writes the chart of docs/how-to/helm.md that depends on this one, and returns its folder.
func umbrella(t *testing.T, archive string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"Chart.yaml", "templates/sessions.yaml"} {
		text := page(t, "helm.md", "## As a dependency", name)
		write(t, filepath.Join(dir, name), regexp.MustCompile(`(version:) 0\.1\.0`).ReplaceAllString(text, "$1 "+version))
	}
	content, err := os.ReadFile(archive)
	require.NoError(t, err)
	write(t, filepath.Join(dir, "charts", filepath.Base(archive)), string(content))
	return dir
}

// TestUmbrella: a chart that depends on this one has the CRD where Helm installs it before all objects.
func TestUmbrella(t *testing.T) {
	t.Parallel()
	dir := umbrella(t, chart(t, installYAML(t)))
	all := objects(t, template(t, dir))
	assert.Len(t, all, 17, "the objects of the operator, and a Memcached")
	assert.Contains(t, all, "Memcached /sessions")
	without := run(t, "helm", "template", "shop", dir, "--kube-version", "1.30.0")
	assert.NotContains(t, without, "kind: CustomResourceDefinition", "the CRD is no template")
	assert.Contains(t, run(t, "helm", "show", "crds", dir), "name: memcacheds.cache.example.com")
}

// TestReproducible: the archive depends on nothing but its input: not on the time, and not on who packages it.
func TestReproducible(t *testing.T) {
	t.Parallel()
	file, err := os.Open(chart(t, installYAML(t)))
	require.NoError(t, err)
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	require.NoError(t, err)
	assert.True(t, unzipped.ModTime.IsZero())
	assert.Empty(t, unzipped.Name)
	var names []string
	for archive := tar.NewReader(unzipped); ; {
		header, err := archive.Next()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		names = append(names, header.Name)
		assert.Equal(t, time.Unix(0, 0), header.ModTime)
		assert.Equal(t, "0 0", fmt.Sprint(header.Uid, header.Gid, header.Uname, header.Gname))
	}
	assert.Contains(t, names, "memcached-operator/files/install.yaml")
	assert.Contains(t, names, "memcached-operator/crds/memcacheds.yaml")
	assert.True(t, slices.IsSorted(names))
}
