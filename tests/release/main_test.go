// Package release rehearses a release of the last commit to a registry in memory, with a key created for the run.
// `make release-dry-run` runs it.
package release

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// Set by `make release-dry-run`.
var (
	mirror  = os.Getenv("MIRROR") // the registry to which images for that in IMAGE_TAG_BASE are published
	base    = os.Getenv("IMAGE_TAG_BASE")
	version = os.Getenv("VERSION")
)

// kinds are what a release pushes to the registry, in the order of images.txt.
var kinds = []string{"operator", "bundle", "manifests", "chart", "catalog"}

// rehearsal is a release of the last commit.
type rehearsal struct {
	root, work string
	images     map[string]string // by kind, as they are named in public
	clones     []string
}

func TestMain(m *testing.M) {
	if program := filepath.Base(os.Args[0]); program == "crane" || program == "cosign" {
		os.Exit(failOnce(program, os.Args[1:]))
	}
	os.Exit(m.Run())
}

// failOnce runs crane or cosign, but fails once at each write to the registry, every other time after it wrote.
// PROGRAMS is the folder of the real programs. FAILURES is a folder, which has a file for each write that failed.
func failOnce(program string, args []string) int {
	parts := []string{program}
	for _, arg := range args {
		parts = append(parts, filepath.Base(arg)) // without the names of temporary folders
	}
	name := strings.Join(parts, " ")
	failures := os.Getenv("FAILURES")
	fails := false
	if slices.Contains([]string{"push", "tag", "sign", "sign-blob", "attest"}, args[0]) {
		file, err := os.OpenFile(filepath.Join(failures, name), os.O_CREATE|os.O_EXCL, 0o644)
		fails = err == nil && file.Close() == nil
	}
	if earlier, _ := os.ReadDir(failures); !fails || len(earlier)%2 == 0 {
		cmd := exec.Command(filepath.Join(os.Getenv("PROGRAMS"), program), args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return 1
		}
	}
	if fails {
		fmt.Fprintln(os.Stderr, "injected failure:", name)
		return 1
	}
	return 0
}

func newRehearsal(t *testing.T) *rehearsal {
	root, err := harness.Repository()
	require.NoError(t, err)
	r := &rehearsal{root: root, work: t.TempDir()}
	t.Setenv("PATH", filepath.Join(root, "bin")+":"+os.Getenv("PATH"))
	t.Setenv("COSIGN_PASSWORD", "")
	r.run(t, r.work, "cosign", "generate-key-pair", "--output-key-prefix", "key")
	t.Setenv("SIGNING_KEY", filepath.Join(r.work, "key.key"))
	if status := r.run(t, root, "git", "status", "--porcelain"); status != "" {
		t.Log("the last commit is released, without the changes that are not committed")
	}

	// Upstream's opm serves the catalog. If it cannot be pulled, an image of one file replaces it.
	dockerfile, err := os.ReadFile(filepath.Join(root, "catalog.Dockerfile"))
	require.NoError(t, err)
	image := string(regexp.MustCompile(`(?m)^FROM (\S+)`).FindSubmatch(dockerfile)[1])
	standIn := r.standIn(t, mirror+"/stand-in:opm")
	if _, err := r.try(t, root, "timeout", "20", "crane", "digest", image); err != nil {
		t.Setenv("OPM_IMAGE", standIn)
		t.Logf("%s cannot be pulled: the catalog has another digest than in a real release", image)
	}

	// The bundles of earlier releases.
	for image := range strings.FieldsSeq(r.run(t, root, "tools/catalog", "bundles")) {
		r.run(t, root, "crane", "copy", image, published(image))
	}
	for _, clone := range []string{"first", "second"} {
		r.clones = append(r.clones, r.clone(t, clone))
	}
	return r
}

// try runs a command and returns its standard output.
func (r *rehearsal) try(t *testing.T, dir string, command ...string) (string, error) {
	out, err := harness.Command{Dir: dir}.Run(t.Context(), command[0], command[1:]...)
	return strings.TrimSpace(out), err
}

func (r *rehearsal) run(t *testing.T, dir string, command ...string) string {
	t.Helper()
	out, err := r.try(t, dir, command...)
	require.NoError(t, err)
	return out
}

// standIn pushes an image of one file.
func (r *rehearsal) standIn(t *testing.T, image string) string {
	t.Helper()
	file, err := os.Create(filepath.Join(r.work, "layer.tar"))
	require.NoError(t, err)
	layer := tar.NewWriter(file)
	require.NoError(t, layer.WriteHeader(&tar.Header{Name: "stand-in", Mode: 0o644}))
	require.NoError(t, layer.Close())
	require.NoError(t, file.Close())
	return r.run(t, r.work, "crane", "append", "--oci-empty-base", "--new_layer", file.Name(), "--new_tag",
		image)
}

// clone clones the last commit, with the tools of this repository, and gives the clone real maintainers. All clones are
// equal.
func (r *rehearsal) clone(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(r.work, name)
	r.run(t, r.root, "git", "clone", "--quiet", "--no-tags", r.root, dir)
	r.run(t, dir, "git", "checkout", "--quiet", "-B", "main", r.run(t, r.root, "git", "rev-parse", "HEAD"))
	r.write(t, filepath.Join(dir, ".git", "info", "exclude"), "/bin\n")
	require.NoError(t, os.Symlink(filepath.Join(r.root, "bin"), filepath.Join(dir, "bin")))
	for key, value := range map[string]string{"user.name": "test", "user.email": "test@example.com"} {
		r.run(t, dir, "git", "config", key, value)
	}
	r.run(t, dir, "bash", "-c", "grep -rl OWNER config bundle | xargs --no-run-if-empty sed -i s/OWNER/maintainer/")
	date := r.run(t, dir, "git", "log", "-1", "--format=%cI")
	r.run(t, dir, "env", "GIT_AUTHOR_DATE="+date, "GIT_COMMITTER_DATE="+date, "git", "commit", "--quiet", "--all",
		"--allow-empty", "--message", "Name the maintainers")
	return dir
}

func (r *rehearsal) write(t *testing.T, file, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
}

// build builds a release in a clone.
func (r *rehearsal) build(t *testing.T, clone string, environment ...string) error {
	t.Helper()
	start := time.Now()
	command := append([]string{"env"}, environment...)
	_, err := r.try(t, clone, append(command, "tools/with-registry", "STAGE", "tools/release", "build", version)...)
	t.Logf("built in %s", time.Since(start).Round(time.Second))
	return err
}

// imagesOf returns the images in dist, by kind.
func imagesOf(t *testing.T, clone string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(clone, "dist", "images.txt"))
	require.NoError(t, err)
	names := strings.Fields(string(text))
	require.Len(t, names, len(kinds))
	images := map[string]string{}
	for i, kind := range kinds {
		images[kind] = names[i]
	}
	return images
}

func (r *rehearsal) publish(t *testing.T, clone string) error {
	_, err := r.try(t, clone, "tools/release", "publish", version)
	return err
}

// published returns the name of an image in the mirror.
func published(image string) string {
	_, name, _ := strings.Cut(image, "/")
	return mirror + "/" + name
}

// verify verifies the signatures and attestations of all images, and the checksums of all files.
func (r *rehearsal) verify(t *testing.T) error {
	dist := filepath.Join(r.clones[0], "dist")
	for _, kind := range kinds {
		sboms, err := filepath.Glob(filepath.Join(dist, kind+"*.spdx.json"))
		require.NoError(t, err)
		command := append([]string{"tools/sign", "verify", published(r.images[kind]), kind + ".provenance.json"}, sboms...)
		if _, err := r.try(t, r.root, command...); err != nil {
			return err
		}
	}
	_, err := r.try(t, dist, "sha256sum", "--check", "SHA256SUMS")
	return err
}

// tags returns which images have the tag of the version.
func (r *rehearsal) tags(t *testing.T) (tagged []string) {
	for _, image := range r.images {
		repository, _, _ := strings.Cut(image, "@")
		tags, _ := r.try(t, r.work, "crane", "ls", published(repository)) // fails if there is no image yet
		if fields := strings.Fields(tags); slices.Contains(fields, "v"+version) || slices.Contains(fields, version) {
			tagged = append(tagged, repository)
		}
	}
	return tagged
}

// latest returns the digest of the catalog that is in force, or nothing before the first release.
func (r *rehearsal) latest(t *testing.T, base string) string {
	t.Helper()
	digest, err := r.try(t, r.work, "crane", "digest", published(base+"-catalog:latest"))
	if err != nil {
		require.Regexp(t, "NAME_UNKNOWN|MANIFEST_UNKNOWN|404", err.Error())
	}
	return digest
}

// offers serves a catalog, as its image does, and returns what it offers to clusters in each channel: lines of
// `channels offers`.
func (r *rehearsal) offers(t *testing.T, catalog string) string {
	t.Helper()
	content := t.TempDir()
	platform, _, _ := strings.Cut(os.Getenv("PLATFORMS"), ",")
	r.run(t, content, "bash", "-c", `crane export --platform "$0" "$1" - | tar --extract --preserve-permissions`, platform,
		published(catalog))
	address, err := harness.FreeAddress()
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var log bytes.Buffer
	server := exec.CommandContext(ctx, "opm", "serve", filepath.Join(content, "configs"), "--port", port, "--pprof-addr",
		"", "--cache-dir", filepath.Join(content, "tmp", "cache"), "--cache-enforce-integrity", "--termination-log",
		filepath.Join(content, "termination.log"))
	server.Stdout, server.Stderr = &log, &log
	require.NoError(t, server.Start())
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Log("opm serve:", err) // it was ended
		}
	}()
	var lines string
	harness.Eventually(t, "the catalog is served", harness.Patience, func() error {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("opm serve ended: %v: %s", err, &log)
		default:
		}
		var err error
		lines, err = r.try(t, r.work, "channels", "offers", address)
		return err
	})
	return lines
}
