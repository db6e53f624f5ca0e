package main

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
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
			if err := flags.Parse(tt.args); err != nil || !slices.Equal(names(o.namespaces), tt.want) {
				t.Errorf("got %q, %v, want %q", names(o.namespaces), err, tt.want)
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

// TestMissingCertificate: without the certificate of --metrics-cert-dir the operator does not start.
func TestMissingCertificate(t *testing.T) {
	t.Setenv("RELATED_IMAGE_MEMCACHED", "memcached:1")
	o := options{}
	o.manager.Metrics.CertDir = t.TempDir()
	if err := run(t.Context(), &o); err == nil || !strings.Contains(err.Error(), "--metrics-cert-dir") {
		t.Errorf("got %v", err)
	}
}

// TestMemoryLimit: the operator uses nine tenths of the memory limit of its container, unless GOMEMLIMIT is set.
func TestMemoryLimit(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	for name, tt := range map[string]struct {
		limit, goLimit string
		want           int64
	}{
		"in a container": {"536870912", "", 483183819},
		"GOMEMLIMIT":     {"536870912", "100MiB", 1},
		"outside":        {"", "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("MEMORY_LIMIT", tt.limit)
			t.Setenv("GOMEMLIMIT", tt.goLimit)
			debug.SetMemoryLimit(1)
			if err := limitMemory(); err != nil {
				t.Error(err)
			}
			if got := debug.SetMemoryLimit(-1); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
	t.Setenv("MEMORY_LIMIT", "512Mi")
	if err := limitMemory(); err == nil || !strings.Contains(err.Error(), "MEMORY_LIMIT") {
		t.Errorf("got %v", err)
	}
}

// TestRuntimeLimits: the operator knows the memory limit of its container, and the benchmark runs the operator with the
// same limits of memory and processors.
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
	limit := &corev1.ResourceFieldSelector{ContainerName: container.Name, Resource: "limits.memory"}
	if !slices.ContainsFunc(container.Env, func(e corev1.EnvVar) bool {
		return e.Name == "MEMORY_LIMIT" && e.ValueFrom != nil && reflect.DeepEqual(e.ValueFrom.ResourceFieldRef, limit)
	}) {
		t.Error("config/manager/manager.yaml: MEMORY_LIMIT is not the memory limit of the container")
	}
	if !slices.Contains(container.Env, corev1.EnvVar{Name: "GOMAXPROCS", Value: subject.Env["GOMAXPROCS"]}) {
		t.Error("config/manager/manager.yaml and tests/bench/operator.yaml have another GOMAXPROCS")
	}
	want := strconv.FormatInt(container.Resources.Limits.Memory().Value(), 10)
	if subject.Env["MEMORY_LIMIT"] != want {
		t.Errorf("tests/bench/operator.yaml: MEMORY_LIMIT is %q, not %s", subject.Env["MEMORY_LIMIT"], want)
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
