// Package rename tests a fork: a clone of the last commit, with the names that tools/rename gave it, passes make test
// and rehearses its first two releases. `make rename-test` runs it.
package rename

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// The names of the fork. In one piece, tools/rename would refuse the name of the repository, as used already.
const owner, repository = "Fork-Team", "other-" + "memcached"

// releases rehearses the releases of two versions with the same registry: the second one has the first in its catalog.
const releases = `
set -euo pipefail
commit() { git add --all && git commit --quiet --message "$1"; }
VERSION=$first go test -v -count=1 -timeout=30m ./tests/release | tee dist/log
git tag v$first
tools/catalog add $first $(grep -o '[^ ]*-bundle@sha256:[0-9a-f]*$' dist/log | tail -n 1)
tools/catalog render
commit "Catalog v$first"
make bundle VERSION=$second
sed -i "s/^\(VERSION  *?=\) .*/\1 $second/" Makefile
commit "Release v$second"
VERSION=$second go test -v -count=1 -timeout=30m ./tests/release
`

func TestFork(t *testing.T) {
	root, err := harness.Repository()
	require.NoError(t, err)
	dir := filepath.Join(root, ".cluster", "fork")
	require.NoError(t, os.RemoveAll(dir))
	run := func(t *testing.T, command ...string) {
		t.Helper()
		start := time.Now()
		cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stdout, os.Stderr
		cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=test", "GIT_AUTHOR_EMAIL=test@example.com",
			"GIT_COMMITTER_NAME=test", "GIT_COMMITTER_EMAIL=test@example.com", "MAKEFLAGS=", "ARGS=",
			"first=0.1.0", "second=0.1.1", "PLATFORMS=linux/amd64",
			"IMAGE_TAG_BASE=ghcr.io/"+strings.ToLower(owner)+"/"+repository,
			"PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
		require.NoError(t, cmd.Run())
		t.Logf("%.60s took %s", strings.Join(command, " "), time.Since(start).Round(time.Second))
	}
	clone, err := exec.CommandContext(t.Context(), "git", "clone", "--quiet", "--no-tags", root, dir).CombinedOutput()
	require.NoError(t, err, string(clone))
	linkTools(t, filepath.Join(root, "bin"), filepath.Join(dir, "bin"))

	run(t, "go", "run", "./tools/rename", "-owner", owner, "-repository", repository, "-group", "store.other.dev")
	run(t, "make", "bundle", "VERSION=0.1.0")
	run(t, "sed", "-i", `s/^\(VERSION  *?=\) .*/\1 0.1.0/`, "Makefile")
	run(t, "git", "add", "--all")
	run(t, "git", "commit", "--quiet", "--message", "Release v0.1.0")
	t.Run("make test", func(t *testing.T) { run(t, "make", "test") })
	t.Run("releases", func(t *testing.T) {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "dist"), 0o755))
		run(t, "tools/with-registry", "MIRROR", "bash", "-c", releases)
	})
	if !t.Failed() {
		require.NoError(t, os.RemoveAll(dir))
	}
}

// linkTools gives the clone the tools of this repository, which are current. It writes their stamps anew, because the
// clone's files are newer than the tools.
func linkTools(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(from, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, file)
		target := filepath.Join(to, name)
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			return os.MkdirAll(target, 0o755)
		case strings.HasPrefix(name, ".built"):
			return os.WriteFile(target, nil, 0o644)
		}
		return os.Link(file, target)
	}))
}
