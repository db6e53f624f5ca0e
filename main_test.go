package main

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

func TestWatchNamespaces(t *testing.T) {
	for name, tt := range map[string]struct {
		env  string // WATCH_NAMESPACE
		args []string
		want []string
	}{
		"none":              {"", nil, nil},
		"namespaces of OLM": {"b,a", nil, []string{"a", "b"}},
		"flag wins":         {"a", []string{"--watch-namespaces=c, c,d"}, []string{"c", "d"}},
		"flag clears":       {"a", []string{"--watch-namespaces="}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("WATCH_NAMESPACE", tt.env)
			o, flags := options{}, flag.NewFlagSet("manager", flag.ContinueOnError)
			o.bindFlags(flags)
			if err := flags.Parse(tt.args); err != nil || !slices.Equal(o.watchNamespaces(), tt.want) {
				t.Errorf("got %q, %v, want %q", o.watchNamespaces(), err, tt.want)
			}
		})
	}
}

func TestNoDefaultImage(t *testing.T) {
	t.Setenv("RELATED_IMAGE_MEMCACHED", "")
	if err := run(t.Context(), &options{}); err == nil ||
		!strings.Contains(err.Error(), "RELATED_IMAGE_MEMCACHED is not set") {
		t.Errorf("got %v", err)
	}
}

// TestRuntimeLimits: GOMEMLIMIT is nine tenths of the container's memory limit, and the benchmark runs the operator
// with the same GOMEMLIMIT and GOMAXPROCS.
func TestRuntimeLimits(t *testing.T) {
	var manager appsv1.Deployment
	var subject struct{ Env map[string]string }
	for file, into := range map[string]any{"config/manager/manager.yaml": &manager,
		"tests/bench/operator.yaml": &subject} {
		text, err := os.ReadFile(file)
		if err == nil {
			err = yaml.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	container := manager.Spec.Template.Spec.Containers[0]
	want := map[string]string{"GOMAXPROCS": "1",
		"GOMEMLIMIT": fmt.Sprintf("%dMiB", container.Resources.Limits.Memory().Value()*9/10>>20)}
	for name, value := range want {
		if !slices.Contains(container.Env, corev1.EnvVar{Name: name, Value: value}) {
			t.Errorf("config/manager/manager.yaml: %s is not %s", name, value)
		}
		if subject.Env[name] != value {
			t.Errorf("tests/bench/operator.yaml: %s is %q, not %s", name, subject.Env[name], value)
		}
	}
}

// TestOneDefaultImage: every file names the same default image as config/manager/memcached.Dockerfile, which Dependabot
// updates.
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
			name == "catalog"): // a release in the catalog keeps its own default image
			return filepath.SkipDir
		case entry.IsDir():
			return nil
		}
		content, err := os.ReadFile(path)
		for _, got := range image.FindAllString(string(content), -1) {
			found++
			if got != want {
				t.Errorf("%s names %s, not %s: run `make bundle` and commit the result", path, got, want)
				break
			}
		}
		return err
	})
	if err != nil || found < 5 {
		t.Errorf("found the default image %d times: %v", found, err)
	}
}
