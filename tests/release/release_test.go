package release

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/example/memcached-operator/internal/testing/harness"
)

func TestRelease(t *testing.T) {
	require.NotEmpty(t, mirror, "run this test by make release-dry-run")
	r := newRehearsal(t)
	r.images = r.build(t, r.clones[0])
	// Two builds of a commit are equal: every image, SBOM, provenance and file.
	r.build(t, r.clones[1])
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
	for _, image := range r.images {
		t.Log(image)
	}
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

	old := r.latest(t)
	for err := r.publish(t, r.clones[0]); err != nil; err = r.publish(t, r.clones[0]) {
		require.ErrorContains(t, err, "injected failure: ")
		if tags := r.tags(t); len(tags) > 0 {
			require.NoError(t, r.verify(t), "%v have the tag of the version", tags)
		} else {
			require.Equal(t, old, r.latest(t), "latest was moved before the release was complete")
		}
	}
	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink(programs, link))
	writes, err := os.ReadDir(failures)
	require.NoError(t, err)
	require.Greater(t, len(writes), 4*len(kinds)) // each is pushed, signed, attested and tagged
	t.Logf("completed after it failed at each of %d writes", len(writes))
	require.Len(t, r.tags(t), len(kinds))
	require.Equal(t, r.images[2], strings.Split(r.images[2], "@")[0]+"@"+r.latest(t))
}

// again releases the version once more, after a later one. That does not move latest back.
func (r *rehearsal) again(t *testing.T) {
	r.standIn(t, r.name+"-catalog:v99.0.0")
	r.standIn(t, r.name+"-catalog:latest")
	later := r.latest(t)
	require.NoError(t, r.publish(t, r.clones[0]))
	require.Equal(t, later, r.latest(t))
	r.run(t, r.work, "crane", "delete", mirror+"/"+r.name+"-catalog:v99.0.0")
	r.run(t, r.work, "crane", "tag", published(r.images[2]), "latest")
}

// chart pulls the chart with Helm. It is the file of the release.
func (r *rehearsal) chart(t *testing.T) {
	repository, _, _ := strings.Cut(published(r.images[4]), "@")
	r.run(t, r.work, "helm", "pull", "--plain-http", "oci://"+repository, "--version", version)
	name := "memcached-operator-" + version + ".tgz"
	r.run(t, r.work, "cmp", name, filepath.Join(r.clones[0], "dist", name))
}

// altered tests that altered images and files do not verify.
func (r *rehearsal) altered(t *testing.T) {
	image := r.run(t, r.work, "crane", "mutate", published(r.images[1]), "--label", "altered=yes")
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
	r.build(t, r.clones[0], "REVISION=altered")
	require.ErrorContains(t, r.publish(t, r.clones[0]), "is published as")
	repository, digest, _ := strings.Cut(r.images[0], "@")
	require.Equal(t, digest, r.run(t, r.work, "crane", "digest", published(repository)+":v"+version))
}

// operatorHub adds the release to a repository like that of OperatorHub. It is refused while maintainers are missing.
func (r *rehearsal) operatorHub(t *testing.T) {
	hub := filepath.Join(r.work, "hub")
	folder := filepath.Join(hub, "operators", "memcached-operator")
	r.run(t, r.work, "git", "init", "--quiet", hub)
	r.run(t, hub, "git", "config", "user.name", "test")
	r.run(t, hub, "git", "config", "user.email", "test@example.com")
	require.NoError(t, os.MkdirAll(folder, 0o755))
	r.write(t, filepath.Join(folder, "ci.yaml"), "reviewers: [somebody]\n")
	if _, err := r.try(t, r.root, "tools/operatorhub", hub, version, published(r.images[1])); err != nil {
		require.ErrorContains(t, err, "replace OWNER")
	} else {
		require.Contains(t, r.run(t, hub, "git", "log", "--format=%s"), "operator memcached-operator ("+version+")")
	}
	r.run(t, r.work, "operator-sdk", "bundle", "validate", filepath.Join(folder, version), "--select-optional",
		"suite=operatorframework")
}

// served serves the catalog and queries it as OLM does: what is in a channel, and which bundle is that?
func (r *rehearsal) served(t *testing.T) {
	archive, content := filepath.Join(r.work, "catalog.tar"), filepath.Join(r.work, "catalog")
	platform, _, _ := strings.Cut(os.Getenv("PLATFORMS"), ",")
	require.NoError(t, os.MkdirAll(content, 0o755))
	r.run(t, r.work, "crane", "export", "--platform", platform, published(r.images[2]), archive)
	r.run(t, content, "tar", "-xf", archive)
	address, err := harness.FreeAddress()
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	server := exec.CommandContext(t.Context(), "opm", "serve", filepath.Join(content, "configs"), "--port", port,
		"--pprof-addr", "", "--cache-dir", filepath.Join(r.work, "cache"), "--cache-enforce-integrity=false",
		"--termination-log", filepath.Join(r.work, "log"))
	require.NoError(t, server.Start())
	t.Cleanup(func() { _ = server.Wait() }) // the context of the test has ended it

	ask := func(method string, request map[string]string) (answer struct{ CsvName, BundlePath string }, err error) {
		query, err := json.Marshal(request)
		require.NoError(t, err)
		out, err := r.try(t, r.work, "grpcurl", "-plaintext", "-d", string(query), address, "api.Registry/"+method)
		if err == nil {
			err = json.Unmarshal([]byte(out), &answer)
		}
		return answer, err
	}
	harness.Eventually(t, "the catalog is served", harness.Patience, func() error {
		_, err := ask("GetPackage", map[string]string{"name": "memcached-operator"})
		return err
	})
	channels := []string{"candidate", "stable"}
	if strings.Contains(version, "-") {
		channels = channels[:1]
	}
	for _, channel := range channels {
		last := r.run(t, r.root, "tools/catalog", "last", channel)
		request := map[string]string{"pkgName": "memcached-operator", "channelName": channel}
		head, err := ask("GetBundleForChannel", request)
		require.NoError(t, err)
		if isBackport(last) {
			require.Equal(t, "memcached-operator.v"+last, head.CsvName)
			continue
		}
		require.Equal(t, "memcached-operator.v"+version, head.CsvName)
		require.Equal(t, r.images[1], head.BundlePath)
		if last != "" {
			request["csvName"] = "memcached-operator.v" + last
			upgrade, err := ask("GetBundleThatReplaces", request)
			require.NoError(t, err)
			require.Equal(t, head, upgrade)
		}
	}
}
