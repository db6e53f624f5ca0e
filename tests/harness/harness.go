// Package harness is what the tests on clusters have in common: they run commands, and wait.
package harness

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Patience bounds each wait for what takes seconds on an idle machine.
const Patience = 2 * time.Minute

// Command says how a command runs. The zero value runs it here.
type Command struct {
	Dir string
	Env []string // added to that of this process
}

// Run runs a command to its end and returns what it printed to its standard output. The error says all that it printed.
func (c Command) Run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Env = c.Dir, append(os.Environ(), c.Env...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err,
			strings.TrimSpace(stderr.String()+stdout.String()))
	}
	return stdout.String(), nil
}

// Repository is the nearest folder upwards that holds the root module.
func Repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return filepath.EvalSymlinks(d)
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("%s is not inside the repository", dir)
		}
	}
}

// Poll tries every 100 ms until it works. When the time is up it returns the last error.
func Poll(ctx context.Context, try func(context.Context) error) error {
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// T is a test, as far as it can be ended.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Must ends a test that failed.
func Must(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// Eventually tries until it works, and ends the test if it does not within that time.
func Eventually(t T, what string, within time.Duration, try func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(context.Background(), within, fmt.Errorf("not within %s", within))
	defer cancel()
	if err := Poll(ctx, func(context.Context) error { return try() }); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// FreeAddress is one of this machine on which nobody listens.
func FreeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}
