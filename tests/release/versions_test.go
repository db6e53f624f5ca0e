package release

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// project is a clone in which versions are released one after another, by the make targets of the workflows. Its
// registry has a path.
type project struct {
	*rehearsal
	*testing.T
	dir string
}

const projectBase = "registry.example.org/team/versions/operator"

// TestVersions releases five versions in order, and checks after each what the catalog in force offers to clusters.
func TestVersions(t *testing.T) {
	if mirror == "" {
		t.Skip("needs a registry: make release-dry-run")
	}
	t.Setenv("IMAGE_TAG_BASE", projectBase)
	platform, _, _ := strings.Cut(os.Getenv("PLATFORMS"), ",")
	t.Setenv("PLATFORMS", platform)
	t.Setenv("MAKEFLAGS", "")
	t.Setenv("ARGS", "")
	p := project{newRehearsal(t), t, ""}
	p.dir = p.clones[0]
	p.copyTools()
	p.run("tools/catalog", "empty", "catalog")
	p.commit("Start without releases")

	p.next("0.1.0", `
		from     candidate  stable
		install  0.1.0      0.1.0
		0.1.0    -          -`)

	p.next("0.2.0", `
		from     candidate  stable
		install  0.2.0      0.2.0
		0.1.0    0.2.0      0.2.0
		0.2.0    -          -`)

	p.branch("release-0.1", "v0.1.0")
	p.next("0.1.1", `
		from     candidate  stable
		install  0.2.0      0.2.0
		0.1.0    0.1.1      0.1.1
		0.1.1    0.2.0      0.2.0
		0.2.0    -          -`)

	// The release of this tag fails after the bundle has its tag. The tag stays.
	p.begin("0.3.0-rc.0")
	p.failing(`"tag `+mirror+`/"*-catalog@*`, func() {
		require.ErrorContains(t, p.tryRelease("0.3.0-rc.0"), "injected failure: tag ")
	})
	require.NotEmpty(t, p.run("crane", "digest", published(projectBase+"-bundle:v0.3.0-rc.0")))

	p.next("0.3.0-rc.1", `
		from        candidate   stable
		install     0.3.0-rc.1  0.2.0
		0.1.0       0.1.1       0.1.1
		0.1.1       0.2.0       0.2.0
		0.2.0       0.3.0-rc.1  -
		0.3.0-rc.1  -           -`)

	// The catalog of the release that mends v0.2.0 skips it.
	p.run("tools/catalog", "deprecate", "0.2.0", "It loses items: use v0.2.1.")
	p.make("catalog")
	p.commit("Deprecate v0.2.0")
	p.branch("release-0.2", "v0.2.0")
	p.next("0.2.1", `
		from        candidate   stable
		install     0.3.0-rc.1  0.2.1
		0.1.0       0.1.1       0.1.1
		0.1.1       0.2.1       0.2.1
		0.2.0       0.2.1       0.2.1
		0.2.1       0.3.0-rc.1  -
		0.3.0-rc.1  -           -`)

	t.Run("catalog alone", func(t *testing.T) { project{p.rehearsal, t, p.dir}.catalogAlone() })
	t.Run("without one that is published", func(t *testing.T) { project{p.rehearsal, t, p.dir}.incomplete() })
}

// catalogAlone publishes the catalog after a deprecation, without a release.
func (p project) catalogAlone() {
	digests := func() (list []string) {
		for tag := range strings.FieldsSeq(p.run("crane", "ls", published(projectBase+"-catalog"))) {
			if strings.HasPrefix(tag, "v") { // others are those of cosign
				list = append(list, tag+" "+p.run("crane", "digest", published(projectBase+"-catalog:"+tag)))
			}
		}
		return list
	}
	before, latest := digests(), p.latest(p.T, projectBase)
	p.run("tools/catalog", "deprecate", "0.3.0-rc.1", "It starts no server: use v0.2.1.")
	p.make("catalog")
	p.commit("Deprecate v0.3.0-rc.1")

	p.failing(`"tag `+mirror+`/"*-catalog@*`, func() {
		_, err := p.try(p.T, p.dir, "make", "catalog-release")
		require.ErrorContains(p, err, "injected failure: tag ")
		require.Equal(p, latest, p.latest(p.T, projectBase))
	})
	p.make("catalog-release")
	require.NotEqual(p, latest, p.latest(p.T, projectBase))
	require.Equal(p, before, digests(), "the tag of a version was moved, or is new")
	catalog := strings.TrimSpace(p.run("cat", "dist/images.txt"))
	require.Equal(p, projectBase+"-catalog@"+p.latest(p.T, projectBase), catalog)
	p.run("tools/sign", "verify", published(catalog), "dist/catalog.provenance.json", "dist/catalog.spdx.json")
	// The head of a channel stays the head until there is a later release.
	p.offered(`
		from        candidate   stable
		install     0.3.0-rc.1  0.2.1
		0.1.0       0.1.1       0.1.1
		0.1.1       0.2.1       0.2.1
		0.2.0       0.2.1       0.2.1
		0.2.1       0.3.0-rc.1  -
		0.3.0-rc.1  -           -`)
}

// incomplete tries to publish a catalog that lacks a published version.
func (p project) incomplete() {
	latest := p.latest(p.T, projectBase)
	p.standIn(p.T, published(projectBase+"-catalog:v0.4.0"))
	_, err := p.try(p.T, p.dir, "make", "catalog-release")
	require.ErrorContains(p, err, "published, but not in catalog/: 0.4.0")
	// It was published after the build.
	_, err = p.try(p.T, p.dir, "tools/release", "publish", "catalog")
	require.ErrorContains(p, err, "published, but not in catalog/: 0.4.0")
	require.Equal(p, latest, p.latest(p.T, projectBase))
}

func (p project) run(command ...string) string {
	p.Helper()
	return p.rehearsal.run(p.T, p.dir, command...)
}

func (p project) make(args ...string) {
	p.Helper()
	start := time.Now()
	p.run(append([]string{"make"}, args...)...)
	p.Logf("make %s took %s", strings.Join(args, " "), time.Since(start).Round(time.Second))
}

func (p project) commit(message string) {
	p.Helper()
	p.run("git", "add", "--all")
	p.run("git", "commit", "--quiet", "--allow-empty", "--message", message)
}

// branch starts the branch of a minor version, with the catalog of main.
func (p project) branch(name, start string) {
	p.Helper()
	p.run("git", "checkout", "--quiet", "-b", name, start)
	p.run("git", "checkout", "main", "--", "catalog")
	p.commit("Take the catalog from main")
}

// begin writes a version into the sources.
func (p project) begin(version string) {
	p.Helper()
	p.make("bundle", "VERSION="+version)
	p.run("grep", "--quiet", "--fixed-strings", ":v"+version+" ", "README.md") // its commands install config/
	p.run("sed", "-i", `s/^\(VERSION  *?=\) .*/\1 `+version+"/", "Makefile")
	p.commit("Begin v" + version)
}

func (p project) tryRelease(version string) error {
	p.run("git", "tag", "v"+version)
	for _, target := range []string{"release-build", "release-publish"} {
		start := time.Now()
		if _, err := p.try(p.T, p.dir, "make", target, "VERSION="+version); err != nil {
			return err
		}
		p.Logf("make %s VERSION=%s took %s", target, version, time.Since(start).Round(time.Second))
	}
	return nil
}

// next releases a version, adds it to the catalog, and checks what the catalog in force offers then.
func (p project) next(version, offers string) {
	p.Helper()
	p.begin(version)
	require.NoError(p, p.tryRelease(version))
	p.add(version)
	p.offered(offers)
}

// add adds a release to the catalog on main, as the workflow proposes it.
func (p project) add(version string) {
	p.Helper()
	bundle := imagesOf(p.T, p.dir)["bundle"]
	p.run("git", "checkout", "--quiet", "main")
	p.make("catalog-add", "VERSION="+version, "BUNDLE="+bundle)
	p.commit("Catalog v" + version)
	p.run("tools/catalog", "verify")
}

// offered checks what the catalog in force offers: a table of what a cluster that installs the operator, or has a
// version, is offered in each channel.
func (p project) offered(want string) {
	p.Helper()
	table := [][]string{{"from", "candidate", "stable"}, {"install"}}
	rows := map[string]int{"head": 1}
	for line := range strings.Lines(p.offers(p.T, projectBase+"-catalog:latest")) {
		fields := strings.Fields(line)
		if _, found := rows[fields[1]]; !found {
			rows[fields[1]] = len(table)
			table = append(table, []string{fields[1]})
		}
		row := &table[rows[fields[1]]]
		*row = append(*row, fields[2])
	}
	var got strings.Builder
	for _, row := range table {
		fmt.Fprintf(&got, "\n%-10s  %-10s  %-10s", row[0], row[1], row[2])
	}
	p.Logf("the catalog offers%s", got.String())
	require.Equal(p, strings.Fields(want), strings.Fields(got.String()))
}

// failing runs f while crane fails with arguments like these.
func (p project) failing(arguments string, f func()) {
	p.Helper()
	crane := filepath.Join(p.dir, "bin", "crane")
	require.NoError(p, os.Remove(crane))
	script := fmt.Sprintf(`#!/bin/sh
case "$*" in %s) echo "injected failure: $*" >&2; exit 1 ;; esac
exec %s "$@"
`, arguments, filepath.Join(p.root, "bin", "crane"))
	require.NoError(p, os.WriteFile(crane, []byte(script), 0o755))
	f()
	require.NoError(p, os.Remove(crane))
	require.NoError(p, os.Symlink(filepath.Join(p.root, "bin", "crane"), crane))
}

// copyTools gives the clone the tools of this repository.
func (p project) copyTools() {
	from, to := filepath.Join(p.root, "bin"), filepath.Join(p.dir, "bin")
	require.NoError(p, os.Remove(to)) // the link
	require.NoError(p, harness.GiveTools(from, to, os.Symlink))
}
