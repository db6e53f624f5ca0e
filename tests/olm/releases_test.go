package olm

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// release is a version of the operator, with its images named as in a released catalog: example.com/...@sha256:...
type release struct{ version, operator, bundle string }

func (r release) csv() string { return "memcached-operator.v" + r.version }

// buildReleases builds the last release from its commit and the next one from the working tree, with the tools and
// files of a release. It pushes one catalog without the next release and one with it.
func buildReleases() (err error) {
	defer milestones.add("two releases built", time.Now())
	old := filepath.Join(work, "released")
	if to.version = os.Getenv("VERSION"); to.version == "" {
		return errors.New("VERSION is not set: use make olm-e2e")
	}
	graph, err := os.ReadFile(filepath.Join(root, "catalog", "catalog-template.yaml"))
	if err != nil {
		return err
	}
	for _, released := range regexp.MustCompile(`- name: memcached-operator\.v(.*)`).FindAllSubmatch(graph, -1) {
		if version := string(released[1]); version != to.version {
			from.version = version // the last one of the last channel, which is stable
		}
	}
	commit, err := command(time.Minute, "tools/release-commit", from.version)
	if err != nil {
		return err
	}
	if _, err := command(time.Minute, "bash", "-c", `mkdir "$0" && git archive "$1" | tar -x -C "$0"`, old,
		strings.TrimSpace(commit)); err != nil {
		return err
	}
	if from, err = build(from.version, old); err != nil {
		return err
	}
	if to, err = build(to.version, root); err != nil {
		return err
	}
	return errors.Join(pushCatalog(from), pushCatalog(from, to), copyFiles())
}

// build builds the operator and the bundle of a version, to save time only for this machine's architecture.
func build(version, source string) (release, error) {
	operator, err := image("operator", source, version)
	if err != nil {
		return release{}, err
	}
	memcached, err := memcachedImage(source)
	if err != nil {
		return release{}, err
	}
	bundle := filepath.Join(work, "bundle-"+version)
	if _, err := command(time.Minute, "tools/bundle-by-digest", filepath.Join(source, "bundle"), bundle, operator,
		memcached); err != nil {
		return release{}, err
	}
	pushed, err := image("bundle", bundle, version)
	return release{version, operator, pushed}, err
}

// image builds and pushes an image, and returns its public name with its digest.
func image(what, source, version string) (string, error) {
	name := "memcached-operator"
	if what != "operator" {
		name += "-" + what
	}
	pushed, err := command(15*time.Minute, "tools/image", what, source, registry+"/"+name+":v"+version, version)
	return strings.Replace(strings.TrimSpace(pushed), registry, "example.com", 1), err
}

// pushCatalog pushes a catalog with these releases, each added as a release adds itself to catalog/.
func pushCatalog(releases ...release) error {
	version := releases[len(releases)-1].version
	dir := filepath.Join(work, "catalog-"+version)
	if _, err := command(time.Minute, "tools/catalog", "empty", dir); err != nil {
		return err
	}
	for _, r := range releases {
		if _, err := command(time.Minute, "tools/catalog", "add", r.version, r.bundle, dir); err != nil {
			return err
		}
	}
	if _, err := command(time.Minute, "env", "MIRROR="+registry, "tools/catalog", "render", dir); err != nil {
		return err
	}
	_, err := image("catalog", filepath.Join(dir, "memcached-operator"), version)
	return err
}

// moveCatalog moves the tag latest, which CatalogSources poll, to the catalog with this newest release.
func moveCatalog(newest release) error {
	_, err := command(time.Minute, "crane", "tag", registry+"/memcached-operator-catalog:v"+newest.version, "latest")
	return err
}

// copyFiles copies config/gitops/operator, which users apply. The copy makes OLM poll the catalog every 10 seconds
// instead of every 30 minutes.
func copyFiles() error {
	files = filepath.Join(work, "operator")
	if err := os.CopyFS(files, os.DirFS(filepath.Join(root, "config", "gitops", "operator"))); err != nil {
		return err
	}
	source := filepath.Join(files, "catalogsource.yaml")
	text, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	text = bytes.Replace(text, []byte("interval: 30m"), []byte("interval: 10s"), 1)
	return os.WriteFile(source, text, 0o644)
}

// memcachedImage returns the default image of a release, by the digest of its tag in the registry.
func memcachedImage(source string) (string, error) {
	tag, err := command(time.Minute, "sed", "-n", "s/^  - image: //p",
		filepath.Join(source, "bundle", "manifests", "memcached-operator.clusterserviceversion.yaml"))
	if err != nil {
		return "", err
	}
	tag = strings.TrimSpace(tag)
	from := tag
	if kind == "node" {
		from = strings.Replace(tag, "docker.io", registry, 1)
	}
	digest, err := command(time.Minute, "crane", "digest", from)
	name, _, _ := strings.Cut(tag, ":")
	return name + "@" + strings.TrimSpace(digest), err
}
