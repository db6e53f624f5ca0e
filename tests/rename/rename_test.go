// Package rename tests a fork: a clone of the last commit, with the names that tools/rename gave it, passes the
// make targets that build, test, install and release, one after the other. `make rename-test` runs it.
package rename

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/tests/cluster"
)

// The names of the fork. In one piece, tools/rename would refuse the name of the repository, as used already.
const (
	owner, repository, group = "Fork-Team", "other-" + "memcached", "store.other.dev"
	registry                 = "registry.example.org/team/sub/" + repository
)

// TestFork runs each target as a subtest, which can run alone: make rename-test ARGS='-run TestFork/make_test'.
func TestFork(t *testing.T) {
	kind := cluster.Need(t, "rename-test")
	root, err := harness.Repository()
	require.NoError(t, err)
	dir := filepath.Join(root, ".cluster", "fork")
	require.NoError(t, os.RemoveAll(dir))
	// The fork has the settings of its own Makefile.
	environment := slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains([]string{"ARGS", "CLUSTER", "MAKEFLAGS", "MAKELEVEL", "VERSION"}, name)
	})
	environment = append(environment, "GIT_AUTHOR_NAME=test", "GIT_AUTHOR_EMAIL=test@example.com",
		"GIT_COMMITTER_NAME=test", "GIT_COMMITTER_EMAIL=test@example.com",
		"PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	run := func(t *testing.T, command ...string) {
		t.Helper()
		start := time.Now()
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), command[0], command[1:]...) // cleanups run too
		cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, environment, os.Stdout, os.Stderr
		require.NoError(t, cmd.Run())
		t.Logf("%.60s took %s", strings.Join(command, " "), time.Since(start).Round(time.Second))
	}
	clone, err := exec.CommandContext(t.Context(), "git", "clone", "--quiet", "--no-tags", root, dir).CombinedOutput()
	require.NoError(t, err, string(clone))
	require.NoError(t, harness.GiveTools(filepath.Join(root, "bin"), filepath.Join(dir, "bin"), os.Link))
	run(t, "go", "run", "./tools/rename", "-owner", owner, "-repository", repository, "-group", group,
		"-registry", registry)
	run(t, "git", "add", "--all")
	run(t, "git", "commit", "--quiet", "--message", "Rename")

	for _, target := range []string{"test", "verify", "install-e2e", "olmv1-e2e", "olm-e2e", "release-dry-run"} {
		t.Run("make "+target, func(t *testing.T) {
			switch target {
			case "olm-e2e":
				if !cluster.RealPods(kind) {
					t.Skip("OLM runs in pods: make rename-test CLUSTER=node, or kind")
				}
				t.Cleanup(func() { run(t, "make", "cluster-down", "CLUSTER="+kind) })
				run(t, "make", target, "CLUSTER="+kind)
			case "release-dry-run":
				run(t, "make", target, "PLATFORMS=linux/amd64")
			default:
				run(t, "make", target)
			}
		})
	}
	if !t.Failed() {
		require.NoError(t, os.RemoveAll(dir))
	}
}
