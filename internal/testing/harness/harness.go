// Package harness has helpers of the tests on clusters: running commands, and waiting.
package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Patience is how long tests wait for something that takes seconds, or while items move a minute, on an idle machine.
const Patience = 4 * time.Minute

// Command says where and with which environment a command runs. The zero value uses those of this process.
type Command struct {
	Dir string
	Env []string // added to the environment of this process
}

// Run runs a command until it exits and returns its standard output. An error contains all output of the command.
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

// Repository returns the root of the repository: the nearest folder upwards with the file PROJECT of operator-sdk.
func Repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "PROJECT")); err == nil {
			return filepath.EvalSymlinks(d)
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("%s is not inside the repository", dir)
		}
	}
}

// Built returns an error that names the make target unless these programs are in bin/ of the repository.
func Built(target string, names ...string) error {
	root, err := Repository()
	for _, name := range names {
		if err == nil {
			_, err = os.Stat(filepath.Join(root, "bin", name))
		}
	}
	if err != nil {
		return fmt.Errorf("needs programs in bin/: make %s (%w)", target, err)
	}
	return nil
}

// Module downloads a module in the version of the go.mod file in a folder, and returns where it is, and its version. A
// machine that has the programs of a module need not have the module.
func Module(ctx context.Context, mod, path string) (dir, version string, err error) {
	text, err := Command{Dir: mod}.Run(ctx, "go", "mod", "download", "-json", path)
	if err != nil {
		return "", "", err
	}
	var module struct{ Dir, Version string }
	err = json.Unmarshal([]byte(text), &module)
	return module.Dir, module.Version, err
}

// Poll calls try every 100 ms until it returns nil. When ctx is done, Poll returns the last error with the cause.
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

// T is the part of testing.TB that Must and Eventually use.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Must ends the test if err is not nil.
func Must(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// Eventually calls try until it returns nil, and ends the test if that takes longer than within.
func Eventually(t T, what string, within time.Duration, try func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(context.Background(), within, fmt.Errorf("not within %s", within))
	defer cancel()
	if err := Poll(ctx, func(context.Context) error { return try() }); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// Sum returns the sum of the samples in metrics whose name and labels match a regular expression.
func Sum(metrics, series string) (sum float64) {
	for _, match := range regexp.MustCompile(`(?m)^(?:`+series+`) (\S+)$`).FindAllStringSubmatch(metrics, -1) {
		value, _ := strconv.ParseFloat(match[1], 64) // the format has only numbers here
		sum += value
	}
	return sum
}

// FreePort returns a free port outside of the ranges of node ports and of outgoing connections.
func FreePort() (int, error) {
	for range 100 {
		port := 20000 + rand.IntN(10000)
		if listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			return port, listener.Close()
		}
	}
	return 0, errors.New("no free port between 20000 and 29999")
}

// FreeAddress returns a loopback address with a free port.
func FreeAddress() (string, error) {
	port, err := FreePort()
	return fmt.Sprintf("127.0.0.1:%d", port), err
}

// GiveTools gives a clone the tools of a repository, each by link, such as os.Link. It writes their stamps anew: make
// would build the tools again, because the files of the clone are newer.
func GiveTools(from, to string, link func(from, to string) error) error {
	return filepath.WalkDir(from, func(file string, entry fs.DirEntry, err error) error {
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
		return link(file, target)
	})
}
