package olm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/example/memcached-operator/tests/cluster"
	"github.com/example/memcached-operator/tests/earlier"
)

// release is a version of the operator, with its images by digest, as a released catalog names them.
type release struct{ version, operator, bundle string }

func (r release) csv() string { return "memcached-operator.v" + r.version }

// buildReleases builds the version from which to upgrade and the next one from the working tree, with the tools and
// files of a release. It pushes one catalog without the next version and one with it.
func buildReleases(ctx context.Context) (err error) {
	defer milestones.add("two releases built", time.Now())
	version := os.Getenv("VERSION")
	if source, err = earlier.Before(ctx, version, filepath.Join(work, "earlier")); err != nil {
		return err
	}
	if from, err = build(source.Version, source.Source); err != nil {
		return err
	}
	if to, err = build(version, root); err != nil {
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
	part := "-" + what
	if what == "operator" {
		part = ""
	}
	pushed, err := command(15*time.Minute, "tools/image", what, source, pushedImage(part)+":v"+version, version)
	public, _ := cluster.ImageBase()
	return strings.Replace(strings.TrimSpace(pushed), registry, public, 1), err
}

// pushedImage is the name of the operator's image, or that of a part of the release, in the registry of the cluster.
func pushedImage(part string) string { return imageIn(registry, part) }

// imageIn is that name in the registry at another address.
func imageIn(address, part string) string {
	_, path := cluster.ImageBase()
	return address + "/" + path + part
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
	_, err := command(time.Minute, "crane", "tag", pushedImage("-catalog")+":v"+newest.version, "latest")
	return err
}

// copyFiles copies config/gitops/operator, which users apply. The copy makes OLM poll the catalog every 10 seconds
// instead of every 30 minutes, and subscribes to the channel that has the version.
func copyFiles() error {
	files = filepath.Join(work, "operator")
	if err := os.CopyFS(files, os.DirFS(filepath.Join(root, "config", "gitops", "operator"))); err != nil {
		return err
	}
	for file, change := range map[string][2]string{
		"catalogsource.yaml": {"interval: 30m", "interval: 10s"},
		"subscription.yaml":  {"channel: stable", "channel: " + channel()},
	} {
		path := filepath.Join(files, file)
		text, err := os.ReadFile(path)
		if err == nil && !bytes.Contains(text, []byte(change[0])) {
			err = errors.New(path + " has no " + change[0])
		}
		if err != nil {
			return err
		}
		text = bytes.Replace(text, []byte(change[0]), []byte(change[1]), 1)
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// channel is the channel of releases or, for a pre-release, the one that also has pre-releases.
func channel() string {
	if strings.Contains(os.Getenv("VERSION"), "-") {
		return "candidate"
	}
	return "stable"
}

// memcachedImage returns the default image of a release, by the digest of its tag. On a node cluster, the registry has
// no real images: that of the earlier version gets a digest of its own.
func memcachedImage(source string) (string, error) {
	tag, err := command(time.Minute, "yq", `.spec.relatedImages[] | select(.name == "memcached") | .image`,
		filepath.Join(source, "bundle", "manifests", "memcached-operator.clusterserviceversion.yaml"))
	if err != nil {
		return "", err
	}
	tag = strings.TrimSpace(tag)
	pulled := tag
	if kind == "node" {
		pulled = strings.Replace(tag, "docker.io", registry, 1)
		if source != root {
			latest := registry + "/library/memcached:latest"
			if _, err := command(time.Minute, "crane", "mutate", latest, "--label", "test=earlier", "--tag",
				pulled); err != nil {
				return "", err
			}
		}
	}
	digest, err := command(time.Minute, "crane", "digest", pulled)
	name, _, _ := strings.Cut(tag, ":")
	return name + "@" + strings.TrimSpace(digest), err
}
