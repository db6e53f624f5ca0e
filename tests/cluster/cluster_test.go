package cluster

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func TestCanonical(t *testing.T) {
	for ref, want := range map[string]string{
		"busybox:1.36":                  "docker.io/library/busybox:1.36",
		"bitnami/memcached:1":           "docker.io/bitnami/memcached:1",
		"docker.io/library/memcached:1": "docker.io/library/memcached:1",
		"example.com/a/b:v1":            "example.com/a/b:v1",
		"localhost/a:v1":                "localhost/a:v1",
		"registry:5000/a@sha256:00":     "registry:5000/a@sha256:00",
	} {
		if got := canonical(ref); got != want {
			t.Errorf("canonical(%q) = %q, want %q", ref, got, want)
		}
	}
}

// TestImageArchiveIsReproducible: the same content gives the same archive. Otherwise each start would push and pull the
// images again and replace all servers.
func TestImageArchiveIsReproducible(t *testing.T) {
	dir := t.TempDir()
	img := &image{name: "a", tags: []string{"1"}, files: map[string]file{
		"b/c": {text: "x", mode: 0o644}, "b/l": {link: "c"}, "tmp/": {mode: 0o1777}, "a": {from: "cluster_test.go",
			mode: 0o755},
	}}
	var archives []string
	for _, name := range []string{"1.tar", "2.tar"} {
		path := filepath.Join(dir, name)
		if err := img.write(path); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		archives = append(archives, string(text))
	}
	if archives[0] != archives[1] {
		t.Error("two archives of one image differ")
	}
	built, err := tarball.ImageFromPath(filepath.Join(dir, "1.tar"), nil)
	if err != nil {
		t.Fatal(err)
	}
	content := mutate.Extract(built)
	defer content.Close()
	var names []string
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, fmt.Sprintf("%s %o %s", header.Name, header.Mode, header.Linkname))
	}
	if got, want := strings.Join(names, ", "), "a 755 , b/c 644 , b/l 777 c, tmp 1777 "; got != want {
		t.Errorf("the image has %s, want %s", got, want)
	}
}

// TestMemcachedPins: the stand-in for the memcached image has the version of the operator's default image.
func TestMemcachedPins(t *testing.T) {
	c, err := New("node")
	if err != nil {
		t.Fatal(err)
	}
	tags, err := c.memcachedTags("config/manager/memcached.Dockerfile")
	if err != nil || len(tags) != 1 {
		t.Fatalf("config/manager/memcached.Dockerfile has tags %v, %v", tags, err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		pins := pinned(arch)
		if len(pins) != 10 {
			t.Fatalf("want memcached, 8 libraries and busybox for %s, got %v", arch, pins)
		}
		if !strings.HasPrefix(filepath.Base(pins[0].path), "memcached_"+tags[0]+"-") {
			t.Errorf("%s is not memcached %s: run `make memcached-packages` once Debian has that version", pins[0].path, tags[0])
		}
	}
}

// TestCompiler: the image is built with the Go that go.mod names, which CI installs.
func TestCompiler(t *testing.T) {
	module, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	dockerfile, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	image := baseImage.FindStringSubmatch(string(dockerfile))
	if image == nil {
		t.Fatal("the Dockerfile names no image of Go")
	}
	if !strings.Contains(string(module), "\ntoolchain go"+image[2]+"\n") {
		t.Errorf("go.mod does not have the toolchain of %s, which the Dockerfile names", image[1])
	}
}

// TestKillSparesStrangers: kill does not kill a foreign process. After a crash, another process may have the number
// that a pid file records.
func TestKillSparesStrangers(t *testing.T) {
	c := &Cluster{Kind: "kwok", dir: t.TempDir(), Log: io.Discard}
	stranger := exec.Command("sleep", "60")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stranger.Process.Kill(); _ = stranger.Wait() })
	if err := c.start("own", nil, "sh", "-c", "sleep 60; :", c.path("x")); err != nil {
		t.Fatal(err)
	}
	pidFile := c.path("pids", "stranger.pid")
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(stranger.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	own, ok := c.alive(c.path("pids", "own.pid"))
	if !ok {
		t.Fatal("alive does not find a process that start started")
	}
	if _, ok := c.alive(pidFile); ok {
		t.Error("alive takes a foreign process for one of the cluster")
	}
	if err := c.checkProcesses(); err == nil || !strings.Contains(err.Error(), "stranger") {
		t.Errorf("checkProcesses returns %v, want the error that stranger is gone", err)
	}
	if err := c.kill(t.Context(), c.pidFiles()...); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/proc/" + strconv.Itoa(stranger.Process.Pid)); err != nil {
		t.Error("the foreign process was killed")
	}
	if len(c.pidFiles()) > 0 {
		t.Errorf("these pid files are left: %v", c.pidFiles())
	}
	if line, err := os.ReadFile("/proc/" + strconv.Itoa(own) + "/cmdline"); err == nil && len(line) > 0 {
		t.Errorf("process %d still runs", own)
	}
}
