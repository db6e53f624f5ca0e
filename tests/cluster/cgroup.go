package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// All programs of a node cluster run in one cgroup, and so do all containers, through the kubelet's cgroupRoot. This is
// how the cluster finds and kills them, even if their parents are gone.

// cgroupDirs returns the folders of the cluster's cgroup: one with cgroup v2, one for each controller with v1.
func cgroupDirs() []string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return []string{filepath.Join("/sys/fs/cgroup", nodeCgroup)}
	}
	var dirs []string
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && (f[2] == "cgroup" || f[2] == "cgroup2") { // hybrid machines have both
			dirs = append(dirs, filepath.Join(f[1], nodeCgroup))
		}
	}
	return dirs
}

// createCgroup creates the cgroup with every controller of the machine, as the kubelet requires.
func createCgroup() error {
	controllers, _ := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	for _, name := range strings.Fields(string(controllers)) {
		// A controller that cannot be enabled is optional, or the kubelet names it in its log.
		_ = os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+"+name), 0)
	}
	var errs []error
	for _, dir := range cgroupDirs() {
		errs = append(errs, os.MkdirAll(filepath.Join(dir, "programs"), 0o755))
		if strings.Contains(dir, "cpuset") { // with v1 a new cpuset has no CPUs, so that no process can join it
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				value, err := os.ReadFile(filepath.Join(dir, "..", file))
				errs = append(errs, err,
					os.WriteFile(filepath.Join(dir, file), value, 0),
					os.WriteFile(filepath.Join(dir, "programs", file), value, 0))
			}
		}
	}
	return errors.Join(errs...)
}

// inCgroup wraps a command so that it and its children run in the cgroup from the start.
func inCgroup(command string, args ...string) (string, []string) {
	script := `for g in ` + strings.Join(cgroupDirs(), " ") +
		`; do echo $$ >$g/programs/cgroup.procs; done; exec "$0" "$@"`
	return "/bin/sh", append([]string{"-c", script, command}, args...)
}

// cgroupPIDs returns the processes in the cgroup and in the cgroups below it.
func cgroupPIDs() (pids []int) {
	for _, dir := range cgroupDirs() {
		_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, _ error) error {
			if filepath.Base(path) == "cgroup.procs" {
				text, _ := os.ReadFile(path)
				for field := range strings.FieldsSeq(string(text)) {
					if pid, err := strconv.Atoi(field); err == nil && pid > 1 {
						pids = append(pids, pid)
					}
				}
			}
			return nil
		})
	}
	return pids
}

// killCgroup kills all processes in the cgroup until none is left, and removes the cgroup.
func killCgroup(ctx context.Context) error {
	err := harness.Poll(ctx, func(context.Context) error {
		pids := cgroupPIDs()
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if len(pids) > 0 {
			return fmt.Errorf("processes %v do not exit", pids)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, dir := range cgroupDirs() {
		var dirs []string
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for i := len(dirs) - 1; i >= 0; i-- { // the innermost first
			// The folder is busy for a moment after a kill.
			err := harness.Poll(ctx, func(context.Context) error { return syscall.Rmdir(dirs[i]) })
			if err != nil {
				return fmt.Errorf("remove cgroup %s: %w", dirs[i], err)
			}
		}
	}
	return nil
}

// mayLowerOOMScore reports whether this process has CAP_SYS_RESOURCE. Without it, containers start only if they keep
// the OOM score that they inherit.
func mayLowerOOMScore() bool {
	const capSysResource = 24
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			bits, _ := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			return bits&(1<<capSysResource) != 0
		}
	}
	return false
}
