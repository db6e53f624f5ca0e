package proxy

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/internal/testing/harness"
)

// moverProcess returns a command that runs the mover in a process of its own, as an agent does. With a limit, the
// process has that part of a processor. A mover that does not end is killed, and the command fails.
func moverProcess(t testing.TB, s contract.Servers, limit float64) *exec.Cmd {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	text, err := json.Marshal(s.Files())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program)
	if limit > 0 {
		// The process joins the cgroup itself, so that no part of it runs outside.
		script := `echo $$ >"$0" && exec "$1"`
		cmd = exec.CommandContext(ctx, "/bin/sh", "-c", script, filepath.Join(cpuGroup(t, limit), "cgroup.procs"),
			program)
	}
	cmd.Env = append(os.Environ(), moveEnv+"="+string(text), "GOMAXPROCS=1",
		"GOMEMLIMIT="+contract.GoMemoryLimit(contract.MemoryLimit+4*largeItem))
	cmd.Stderr = os.Stderr
	return cmd
}

// cpuGroup creates a cgroup whose processes together may use a part of a processor, and deletes it when the test ends.
func cpuGroup(t testing.TB, limit float64) string {
	t.Helper()
	const period = 100000 // microseconds, as the kubelet sets it
	quota := strconv.Itoa(int(limit * period))
	parent, files := "/sys/fs/cgroup", map[string]string{"cpu.max": fmt.Sprintf("%s %d", quota, period)}
	if _, err := os.Stat(filepath.Join(parent, "cgroup.controllers")); err != nil { // cgroup v1
		files = map[string]string{"cpu.cfs_period_us": strconv.Itoa(period), "cpu.cfs_quota_us": quota}
		mounts, err := os.ReadFile("/proc/self/mounts")
		require.NoError(t, err)
		for line := range strings.Lines(string(mounts)) {
			fields := strings.Fields(line)
			if fields[2] == "cgroup" && slices.Contains(strings.Split(fields[3], ","), "cpu") {
				parent = fields[1]
			}
		}
	} else { // fails if it is enabled or may not be; then cpu.max is missing below
		_ = os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+cpu"), 0)
	}
	dir := filepath.Join(parent, "mover-"+rand.Text())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("the mover's processor time cannot be limited: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Rmdir(dir); err != nil { // os.RemoveAll would try to delete the files in it
			t.Errorf("delete cgroup %s: %v", dir, err)
		}
	})
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0))
	}
	return dir
}
