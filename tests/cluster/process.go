package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// start runs a program that outlives this process: in its own session, with its output in logs/<name>.log. The
// arguments must name a file in the cluster's folder, by which alive recognizes the program.
func (c *Cluster) start(name string, env []string, command string, args ...string) error {
	return c.startAs(c.path("pids", name+".pid"), name, env, command, args...)
}

// startAs also chooses the file with the process ID. In a folder below pids, checkProcesses ignores it: the cluster is
// up without the operator and the programs that run beside it.
func (c *Cluster) startAs(pidFile, name string, env []string, command string, args ...string) error {
	if err := errors.Join(os.MkdirAll(c.path("logs"), 0o755), os.MkdirAll(filepath.Dir(pidFile), 0o755)); err != nil {
		return err
	}
	log, err := os.OpenFile(c.path("logs", name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	if c.Kind == "node" {
		command, args = inCgroup(command, args...)
	}
	cmd := exec.Command(command, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.dir, log, log
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	// Without Wait, a program that exits before this process would stay a zombie and look alive.
	go func() { _ = cmd.Wait() }()
	// alive reads the command line, which the kernel sets a moment after Start returns. It stays empty if the program has
	// already exited.
	for deadline := time.Now().Add(time.Second); isDir("/proc/self") &&
		time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid)); len(line) > 0 {
			break
		}
	}
	return os.WriteFile(pidFile, []byte(strconv.Itoa(cmd.Process.Pid)), 0o644)
}

// allPIDFiles returns the pid files of the cluster's components, of the operator, and of programs that beside runs.
func (c *Cluster) allPIDFiles() []string {
	others, _ := filepath.Glob(c.path("pids", "*", "*.pid"))
	return append(c.pidFiles(), others...)
}

// pidFiles returns the pid files of start and of kwokctl, which have the same format.
func (c *Cluster) pidFiles() []string {
	own, _ := filepath.Glob(c.path("pids", "*.pid"))
	kwokctl, _ := filepath.Glob(c.path("clusters", "*", "pids", "*.pid"))
	return append(own, kwokctl...)
}

// logs returns the log files of start and of kwokctl.
func (c *Cluster) logs() []string {
	own, _ := filepath.Glob(c.path("logs", "*.log"))
	kwokctl, _ := filepath.Glob(c.path("clusters", "*", "logs", "*.log"))
	return append(own, kwokctl...)
}

// alive returns the process ID in a pid file, and whether that process runs. After a crash or a reboot another process
// may have this ID, so its command line must name the cluster's folder.
func (c *Cluster) alive(pidFile string) (pid int, ok bool) {
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return 0, false
	}
	if pid, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
		return 0, false
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if errors.Is(err, os.ErrNotExist) && !isDir("/proc/self") { // not Linux
		line, _ = exec.Command("ps", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	}
	return pid, strings.Contains(string(line), c.dir+"/")
}

// checkProcesses returns an error that names the recorded programs that no longer run.
func (c *Cluster) checkProcesses() error {
	if len(c.pidFiles()) == 0 {
		return errors.New("not running")
	}
	if gone := c.gone(); len(gone) > 0 {
		return fmt.Errorf("gone: %s", strings.Join(gone, ", "))
	}
	return nil
}

// gone returns the names of the recorded programs that no longer run.
func (c *Cluster) gone() (names []string) {
	for _, f := range c.pidFiles() {
		if _, ok := c.alive(f); !ok {
			names = append(names, strings.TrimSuffix(filepath.Base(f), ".pid"))
		}
	}
	return names
}

// kill kills the recorded programs at once. They need not save anything, because nothing of theirs is kept.
func (c *Cluster) kill(ctx context.Context, pidFiles ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, f := range pidFiles {
		if err := c.signal(ctx, f, syscall.SIGKILL); err != nil {
			return err
		}
	}
	return nil
}

// signal sends a signal to a recorded program, waits until it exits and removes its pid file.
func (c *Cluster) signal(ctx context.Context, pidFile string, s syscall.Signal) error {
	if pid, ok := c.alive(pidFile); ok {
		_ = syscall.Kill(pid, s)
	}
	err := harness.Poll(ctx, func(context.Context) error {
		if pid, ok := c.alive(pidFile); ok {
			return fmt.Errorf("process %d of %s does not exit", pid, pidFile)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := os.Remove(pidFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Freeze stops a program of the cluster, such as etcd, kubelet or operator-1, until continues is called. The error is
// os.ErrNotExist if the cluster has no such program.
func (c *Cluster) Freeze(name string) (continues func() error, err error) {
	_, pid, err := c.program(name)
	if err != nil {
		return nil, err
	}
	continues = func() error {
		if err := syscall.Kill(pid, syscall.SIGCONT); !errors.Is(err, syscall.ESRCH) {
			return err
		}
		return nil // somebody has killed it
	}
	return continues, syscall.Kill(pid, syscall.SIGSTOP)
}

// Kill kills a program of the cluster with SIGKILL. Until Repair, it does not run. The error is os.ErrNotExist if the
// cluster has no such program.
func (c *Cluster) Kill(ctx context.Context, name string) error {
	file, _, err := c.program(name)
	if err != nil {
		return err
	}
	return c.signal(ctx, file, syscall.SIGKILL)
}

// Repair starts the programs of the control plane that do not run.
func (c *Cluster) Repair(ctx context.Context) error {
	_, err := c.kwokctl(ctx, "start", "cluster", "--wait", "60s")
	return err
}

// program returns the pid file and the process ID of a running program.
func (c *Cluster) program(name string) (pidFile string, pid int, err error) {
	for _, file := range c.allPIDFiles() {
		if pid, ok := c.alive(file); ok && filepath.Base(file) == name+".pid" {
			return file, pid, nil
		}
	}
	return "", 0, os.ErrNotExist
}

// tail adds the end of a component's log to its error.
func (c *Cluster) tail(err error, component string) error {
	if err == nil {
		return nil
	}
	for _, log := range c.logs() {
		if filepath.Base(log) != component+".log" {
			continue
		}
		text, _ := os.ReadFile(log)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		return fmt.Errorf("%w\nthe end of %s:\n  %s", err, log, strings.Join(lines[max(0, len(lines)-15):], "\n  "))
	}
	return err
}

// run runs a command until it exits and returns its output. An error contains all output.
func run(ctx context.Context, env []string, command string, args ...string) (string, error) {
	return harness.Command{Env: env}.Run(ctx, command, args...)
}

// progress runs a command that may take minutes, and shows that it is still running.
func (c *Cluster) progress(ctx context.Context, env []string, text, command string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(c.root, "tools", "progress"),
		append([]string{text, command}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = c.Log, c.Log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // so that tools/progress can stop the command
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", text, err)
	}
	return nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
