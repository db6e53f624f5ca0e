package release

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiversion "k8s.io/apimachinery/pkg/util/version"
)

func TestRelease(t *testing.T) {
	if mirror == "" {
		t.Skip("needs a registry: make release-dry-run")
	}
	r := newRehearsal(t)
	t.Run("refused", r.refused)
	require.NoError(t, r.build(t, r.clones[0]))
	r.images = imagesOf(t, r.clones[0])
	// Two builds of a commit are equal: every image, SBOM, provenance and file.
	require.NoError(t, r.build(t, r.clones[1]))
	r.run(t, r.work, "diff", "-r", "first/dist", "second/dist")
	r.interrupted(t)
	require.NoError(t, r.publish(t, r.clones[0]), "once more, which changes nothing")
	require.NoError(t, r.verify(t))
	t.Run("again after a later version", r.again)
	t.Run("chart", r.chart)
	t.Run("altered", r.altered)
	t.Run("replaced", r.replaced)
	t.Run("OperatorHub", r.operatorHub)
	t.Run("served", r.served)
	for _, kind := range kinds {
		t.Log(r.images[kind])
	}
}

// refused tries to release what must not be released. All of that is refused before anything is built.
func (r *rehearsal) refused(t *testing.T) {
	catalog := published(base + "-catalog:v99.0.0")
	r.standIn(t, catalog)
	require.ErrorContains(t, r.build(t, r.clones[0]), "published, but not in catalog/: 99.0.0")
	r.run(t, r.work, "crane", "delete", catalog)
	require.ErrorContains(t, r.build(t, r.clones[0], "MIRROR=127.0.0.1:1"), "cannot tell which versions are published")

	nobody := base + "-bundle@sha256:" + strings.Repeat("0", 64)
	r.run(t, r.clones[0], "tools/catalog", "add", "0.0.1", nobody)
	require.ErrorContains(t, r.build(t, r.clones[0]), "the checkout has changes")
	r.run(t, r.clones[0], "git", "commit", "--quiet", "--all", "--message", "Add a bundle that nobody has")
	require.ErrorContains(t, r.build(t, r.clones[0]), "the catalog has a bundle that nobody can pull: "+nobody)
	r.run(t, r.clones[0], "git", "reset", "--quiet", "--hard", "HEAD~")
	require.NoDirExists(t, filepath.Join(r.clones[0], "dist"))
}

// interrupted publishes with programs that fail once at each write. Until everything is published, signed and verified,
// nothing has a tag that anybody uses.
func (r *rehearsal) interrupted(t *testing.T) {
	programs, failing := filepath.Join(r.root, "bin"), filepath.Join(r.work, "bin")
	failures := filepath.Join(r.work, "failures")
	t.Setenv("PROGRAMS", programs)
	t.Setenv("FAILURES", failures)
	require.NoError(t, os.MkdirAll(failures, 0o755))
	require.NoError(t, os.MkdirAll(failing, 0o755))
	tools, err := os.ReadDir(programs)
	require.NoError(t, err)
	test, err := os.Executable()
	require.NoError(t, err)
	for _, tool := range tools {
		target := filepath.Join(programs, tool.Name())
		if tool.Name() == "crane" || tool.Name() == "cosign" {
			target = test
		}
		require.NoError(t, os.Symlink(target, filepath.Join(failing, tool.Name())))
	}
	link := filepath.Join(r.clones[0], "bin")
	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink(failing, link))

	old := r.latest(t, base)
	for err := r.publish(t, r.clones[0]); err != nil; err = r.publish(t, r.clones[0]) {
		require.ErrorContains(t, err, "injected failure: ")
		if tags := r.tags(t); len(tags) > 0 {
			require.NoError(t, r.verify(t), "%v have the tag of the version", tags)
		} else {
			require.Equal(t, old, r.latest(t, base), "latest was moved before the release was complete")
		}
	}
	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink(programs, link))
	writes, err := os.ReadDir(failures)
	require.NoError(t, err)
	require.Greater(t, len(writes), 4*len(kinds)) // each is pushed, signed, attested and tagged
	t.Logf("completed after it failed at each of %d writes", len(writes))
	require.Len(t, r.tags(t), len(kinds))
	require.Equal(t, r.images["catalog"], base+"-catalog@"+r.latest(t, base))
}

// again releases the version once more, after a later one. That does not move latest back.
func (r *rehearsal) again(t *testing.T) {
	r.standIn(t, published(base+"-catalog:v99.0.0"))
	r.standIn(t, published(base+"-catalog:latest"))
	later := r.latest(t, base)
	require.NoError(t, r.publish(t, r.clones[0]))
	require.Equal(t, later, r.latest(t, base))
	r.run(t, r.work, "crane", "delete", published(base+"-catalog:v99.0.0"))
	r.run(t, r.work, "crane", "tag", published(r.images["catalog"]), "latest")
}

// chart pulls the chart with Helm. It is the file of the release.
func (r *rehearsal) chart(t *testing.T) {
	repository, _, _ := strings.Cut(published(r.images["chart"]), "@")
	r.run(t, r.work, "helm", "pull", "--plain-http", "oci://"+repository, "--version", version)
	name := "memcached-operator-" + version + ".tgz"
	r.run(t, r.work, "cmp", name, filepath.Join(r.clones[0], "dist", name))
}

// altered tests that altered images and files do not verify.
func (r *rehearsal) altered(t *testing.T) {
	image := r.run(t, r.work, "crane", "mutate", published(r.images["bundle"]), "--label", "altered=yes")
	_, err := r.try(t, r.root, "tools/sign", "verify", image)
	require.ErrorContains(t, err, "does not verify")

	dist := filepath.Join(r.clones[0], "dist")
	sums := filepath.Join(dist, "SHA256SUMS")
	verify := []string{"cosign", "verify-blob", "--key", filepath.Join(r.work, "key.pub"), "--insecure-ignore-tlog",
		"--bundle", sums + ".sigstore.json", sums}
	r.run(t, dist, verify...)
	r.write(t, filepath.Join(dist, "install.yaml"), "altered")
	_, err = r.try(t, dist, "sha256sum", "--check", "SHA256SUMS")
	require.ErrorContains(t, err, "install.yaml: FAILED")
	require.ErrorContains(t, r.publish(t, r.clones[0]), "install.yaml: FAILED")
	r.write(t, sums, "altered")
	_, err = r.try(t, dist, verify...)
	require.Error(t, err)
}

// replaced tries to release another image of the same version, with the label of another commit.
func (r *rehearsal) replaced(t *testing.T) {
	t.Setenv("PLATFORMS", "linux/amd64")
	require.NoError(t, r.build(t, r.clones[0], "REVISION=altered"))
	require.ErrorContains(t, r.publish(t, r.clones[0]), "is published as")
	repository, digest, _ := strings.Cut(r.images["operator"], "@")
	require.Equal(t, digest, r.run(t, r.work, "crane", "digest", published(repository)+":v"+version))
}

// operatorHub adds the release to a repository like that of OperatorHub.
func (r *rehearsal) operatorHub(t *testing.T) {
	hub := filepath.Join(r.work, "hub")
	folder := filepath.Join(hub, "operators", "memcached-operator")
	r.run(t, r.work, "git", "init", "--quiet", hub)
	r.run(t, hub, "git", "config", "user.name", "test")
	r.run(t, hub, "git", "config", "user.email", "test@example.com")
	add := []string{"tools/operatorhub", hub, version, published(r.images["bundle"])}

	// The pipeline of OperatorHub has a file with a reviewer that nobody replaced.
	require.NoError(t, os.MkdirAll(folder, 0o755))
	r.write(t, filepath.Join(folder, "ci.yaml"), "reviewers: [OWNER]\n")
	_, err := r.try(t, r.clones[1], add...)
	require.ErrorContains(t, err, "replace OWNER")
	_, err = r.try(t, hub, "git", "log")
	require.ErrorContains(t, err, "does not have any commits")

	require.NoError(t, os.RemoveAll(folder))
	r.run(t, r.clones[1], add...)
	require.Equal(t, "operator memcached-operator ("+version+")", r.run(t, hub, "git", "log", "--format=%s"))
	require.Empty(t, r.run(t, hub, "git", "status", "--porcelain"))
	require.FileExists(t, filepath.Join(folder, "ci.yaml"))
	r.run(t, r.work, "operator-sdk", "bundle", "validate", filepath.Join(folder, version), "--select-optional",
		"suite=operatorframework")
}

// served serves the catalog and queries it as OLM does: what is in a channel, and which bundle is that?
func (r *rehearsal) served(t *testing.T) {
	lines := strings.Split(r.offers(t, r.images["catalog"]), "\n")
	isHighest := true
	for earlier := range strings.FieldsSeq(r.run(t, r.root, "tools/catalog", "versions")) {
		isHighest = isHighest && apiversion.MustParseSemantic(earlier).LessThan(apiversion.MustParseSemantic(version))
	}
	channels := []string{"candidate", "stable"}
	if strings.Contains(version, "-") {
		channels = channels[:1]
	}
	for _, channel := range channels {
		if isHighest {
			require.Contains(t, lines, channel+" head "+version+" "+r.images["bundle"])
		}
		if before := r.run(t, r.root, "tools/catalog", "before", version, channel); before != "" {
			require.Contains(t, lines, channel+" "+before+" "+version)
		}
	}
}
