package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// run prints a kubectl command as a user would type it, runs it and shows its output.
func (d *demo) run(ctx context.Context, args ...string) error {
	if !slices.Contains(args, "-n") {
		args = append(strings.Fields(d.namespaceFlag()), args...)
	}
	fmt.Printf("%s kubectl %s\n", bold("$"), quote(args))
	cmd := exec.CommandContext(ctx, d.kubectl, args...)
	cmd.Env = os.Environ()
	if d.kubeconfig != "" {
		cmd.Env = append(cmd.Env, "KUBECONFIG="+d.kubeconfig)
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return err
		}
		return fmt.Errorf("kubectl %s: %w", quote(args), err)
	}
	return nil
}

func (d *demo) namespaceFlag() string {
	if d.namespace == "default" {
		return ""
	}
	return " -n " + d.namespace
}

// quote joins arguments into a line that can be pasted into a shell.
func quote(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		if strings.ContainsAny(a, ` "'{}[]*$\;&|<>`) {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		quoted[i] = a
	}
	return strings.Join(quoted, " ")
}

func heading(text string) { fmt.Printf("\n%s\n", bold("── "+text+" ──")) }

// bold returns text unchanged if the output is not a terminal or NO_COLOR is set.
func bold(text string) string {
	info, err := os.Stdout.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 || os.Getenv("NO_COLOR") != "" {
		return text
	}
	return "\x1b[1m" + text + "\x1b[0m"
}
