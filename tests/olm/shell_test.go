package olm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// command runs a program in the root of the repository and returns its output. It kills the program when the time is
// up.
func command(within time.Duration, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return harness.Command{Dir: root}.Run(ctx, name, args...)
}

func kubectl(args ...string) (string, error) { return command(5*time.Minute, "kubectl", args...) }

// operatorSDK runs operator-sdk as users do, and shows its output.
func operatorSDK(args ...string) error {
	fmt.Println("$ operator-sdk", strings.Join(args, " "))
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "operator-sdk", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = work, os.Stdout, os.Stdout
	return cmd.Run()
}

// test is a test with helpers that end it after an error.
type test struct{ *testing.T }

func (t test) must(err error) {
	t.Helper()
	harness.Must(t, err)
}

func (t test) kubectl(args ...string) string {
	t.Helper()
	out, err := kubectl(args...)
	t.must(err)
	return out
}

// field returns a field of an object.
func (t test) field(path string, args ...string) string {
	t.Helper()
	return t.kubectl(append([]string{"get", "--output", "jsonpath=" + path}, args...)...)
}

// eventually calls try until it returns nil.
func (t test) eventually(what string, within time.Duration, try func() error) {
	t.Helper()
	harness.Eventually(t, what, within, try)
}

// becomes waits until a field of an object or a list has this value.
func (t test) becomes(want string, within time.Duration, path string, args ...string) {
	t.Helper()
	t.eventually(strings.Join(args, " "), within, func() error {
		got, err := kubectl(append([]string{"get", "--output", "jsonpath=" + path}, args...)...)
		if err == nil && got != want {
			err = fmt.Errorf("%s: want %q, got %q", path, want, got)
		}
		return err
	})
}

// timeline collects durations for a summary at the end.
type timeline struct {
	sync.Mutex
	lines []string
}

var milestones timeline

func (l *timeline) add(what string, since time.Time) {
	l.Lock()
	defer l.Unlock()
	l.lines = append(l.lines, fmt.Sprintf("%s\t%.0f s", what, time.Since(since).Seconds()))
}

// note adds an observation without a duration.
func (l *timeline) note(format string, args ...any) {
	l.Lock()
	defer l.Unlock()
	l.lines = append(l.lines, fmt.Sprintf("  "+format, args...))
}

func (l *timeline) String() string {
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\nOLM on a %s cluster\n%s\n\n", kind, strings.Join(l.lines, "\n"))
	_ = table.Flush()
	return out.String()
}
