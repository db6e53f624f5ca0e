// Package run runs the commands of README.md and docs/ on the cluster that CLUSTER and KUBECONFIG name.
package run

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/tests/cluster"
	"github.com/example/memcached-operator/tests/docs/blocks"
)

// placeholder is what a reader replaces; the entry of the block sets a variable of that name.
var placeholder = regexp.MustCompile(`\b(NAMESPACE|NAME|NODE|POD)\b`)

// TestRun runs the blocks in the order of the list, in one folder that has all files of the repository and those that
// the blocks write.
func TestRun(t *testing.T) {
	chosen := cluster.Need(t, "docs-e2e")
	root, err := harness.Repository()
	require.NoError(t, err)
	list, err := blocks.List(root)
	require.NoError(t, err)
	kind := "real"
	if chosen == "kwok" {
		kind = "simulated"
	}
	dir := t.TempDir()
	files, err := os.ReadDir(root)
	require.NoError(t, err)
	for _, file := range files {
		require.NoError(t, os.Symlink(filepath.Join(root, file.Name()), filepath.Join(dir, file.Name())))
	}
	for _, entry := range list {
		if entry.Run != kind && entry.Run != "any" {
			continue
		}
		t.Run(entry.Page+" "+entry.Begins, func(t *testing.T) {
			all, err := blocks.Read(root, entry.Page)
			require.NoError(t, err)
			i := slices.IndexFunc(all, entry.IsOf)
			require.GreaterOrEqual(t, i, 0, "there is no such block")
			commands, err := all[i].Commands()
			require.NoError(t, err)
			commands = slices.DeleteFunc(commands, func(c string) bool { return entry.Skips(c) != "" })
			script := placeholder.ReplaceAllString(strings.Join(commands, "\n"), `"$$$1"`) + "\n"
			if all[i].Language == "console" { // may show a command that fails
				script += "true\n"
			} else {
				script = "set -euo pipefail\n" + script
			}
			script = entry.Before + "\n" + script

			ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "bash", "-c", script)
			cmd.Dir, cmd.WaitDelay = dir, time.Second // a forwarded port may outlive the shell
			output, err := cmd.CombinedOutput()
			require.NoErrorf(t, err, "%s\n%s", script, output)
			assert.Regexp(t, entry.Output, string(output))
		})
	}
}
