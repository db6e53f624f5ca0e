package main

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestFlags(t *testing.T) {
	tests := map[string]struct {
		env  string // WATCH_NAMESPACE
		args []string
		want string // namespaces, or part of the error
	}{
		"none":              {"", nil, ""},
		"namespaces of OLM": {"b,a", nil, "a b"},
		"flag wins":         {"a", []string{"--watch-namespaces=c, c,d"}, "c d"},
		"flag clears":       {"a", []string{"--watch-namespaces="}, ""},
		"not a namespace":   {"", []string{"--watch-namespaces=a,B_"}, `"B_" is not a namespace`},
		"bad environment":   {"*", nil, `WATCH_NAMESPACE): "*" is not a namespace`},
		"no reconciles": {"", []string{"--max-concurrent-reconciles=0"},
			"--max-concurrent-reconciles is 0, must be at least 1"},
		"not a number":         {"", []string{"--max-concurrent-reconciles=x"}, "max-concurrent-reconciles"},
		"unknown flag":         {"", []string{"--enable-webhooks"}, "enable-webhooks"},
		"argument":             {"", []string{"start"}, `unexpected argument "start"`},
		"standard log options": {"", []string{"--zap-devel", "--zap-log-level=debug"}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("WATCH_NAMESPACE", tt.env)
			o, err := parse(append([]string{"manager"}, tt.args...), io.Discard)
			got := ""
			if err != nil {
				got = err.Error()
			} else {
				got = strings.Join(o.watched(), " ")
			}
			if err == nil && got != tt.want || err != nil && (tt.want == "" || !strings.Contains(got, tt.want)) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	t.Setenv("RELATED_IMAGE_MEMCACHED", "")
	var out strings.Builder
	if err := run(t.Context(), []string{"manager", "--version"}, &out); err != nil || out.String() != "dev\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

func TestNoDefaultImage(t *testing.T) {
	t.Setenv("RELATED_IMAGE_MEMCACHED", "")
	if err := run(t.Context(), []string{"manager"}, io.Discard); err == nil ||
		!strings.Contains(err.Error(), "RELATED_IMAGE_MEMCACHED is not set") {
		t.Errorf("got %v", err)
	}
}

// One file names the default image for all: the one that the dependency bot raises.
func TestOneDefaultImage(t *testing.T) {
	image := regexp.MustCompile(`docker\.io/library/memcached:\d+\.\d+\.\d+`)
	source, err := os.ReadFile("config/manager/memcached.Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	want, found := image.FindString(string(source)), 0
	err = filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch name := entry.Name(); {
		case err != nil:
			return err
		case entry.IsDir() && (len(name) > 1 && name[0] == '.' || name == "bin" || name == "dist" ||
			name == "catalog"): // releases keep theirs
			return filepath.SkipDir
		case entry.IsDir():
			return nil
		}
		content, err := os.ReadFile(path)
		for _, got := range image.FindAllString(string(content), -1) {
			found++
			if got != want {
				t.Errorf("%s names %s, not %s: run `make bundle` and commit what it wrote", path, got, want)
				break
			}
		}
		return err
	})
	if err != nil || found < 5 {
		t.Errorf("found the default image %d times: %v", found, err)
	}
}
