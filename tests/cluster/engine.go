package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// engine builds and stores images: Docker where it answers, else podman, else buildah, which needs no daemon and, as
// root, no more than a chroot.
type engine struct {
	*Cluster
	command string
	options []string // before the subcommand
}

func (c *Cluster) engine() *engine {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := run(ctx, nil, "docker", "info"); err == nil {
		return &engine{c, "docker", nil}
	}
	if _, err := exec.LookPath("podman"); err == nil {
		return &engine{c, "podman", nil}
	}
	// A storage of its own, because of the stand-in for the base image.
	return &engine{c, "buildah", []string{"--root", c.images("storage"), "--runroot", c.images("run")}}
}

// BuildImage builds the operator's image from the repository's Dockerfile.
func (c *Cluster) BuildImage(ctx context.Context, image, version string) error {
	e := c.engine()
	start := time.Now()
	args := []string{"build", "--tag", image, "--build-arg", "VERSION=" + version}
	for _, name := range []string{"GOPROXY", "GOSUMDB"} {
		value, err := goenv(ctx, name)
		if err != nil {
			return err
		}
		args = append(args, "--build-arg", name+"="+value)
	}
	if e.command == "buildah" {
		if os.Geteuid() != 0 {
			return errors.New("building an image needs Docker, podman, or root for buildah")
		}
		if err := e.installPackages(ctx, "buildah"); err != nil {
			return err
		}
		standIn, err := e.standIn(ctx)
		if err != nil {
			return fmt.Errorf("stand-in for the base image: %w", err)
		}
		args = append(args, standIn...)
	}
	args = append(args, "--file", filepath.Join(c.root, "Dockerfile"), c.root)
	if e.command != "buildah" {
		cmd := exec.CommandContext(ctx, e.command, args...)
		cmd.Stdout, cmd.Stderr = c.Log, c.Log
		return cmd.Run()
	}
	if _, err := e.run(ctx, args...); err != nil {
		return err
	}
	c.logf("built %s with buildah in %.1f s", image, time.Since(start).Seconds())
	_, err := e.run(ctx, "rmi", "--prune") // the image that had this name before
	return err
}

// PushImage pushes a built image to its registry.
func (c *Cluster) PushImage(ctx context.Context, image string) error {
	_, err := c.engine().run(ctx, "push", image)
	return err
}

// save writes an image to a docker archive.
func (e *engine) save(ctx context.Context, image, archive string) error {
	if e.command == "buildah" {
		_, err := e.run(ctx, "push", image, "docker-archive:"+archive+":"+image)
		return err
	}
	_, err := e.run(ctx, "save", "--output", archive, image)
	return err
}

func (e *engine) run(ctx context.Context, args ...string) (string, error) {
	return run(ctx, []string{"BUILDAH_ISOLATION=chroot"}, e.command, append(e.options, args...)...)
}

var baseImage = regexp.MustCompile(`(?m)^FROM (?:--\S+ )*(\S+/golang:\S+)`)

// standIn makes a stand-in for the Dockerfile's base image where that cannot be pulled: a shell, and the machine's own
// Go and its caches, which the options that it returns mount. So the very Dockerfile that users build is what is tested.
func (e *engine) standIn(ctx context.Context) (options []string, err error) {
	dockerfile, err := os.ReadFile(filepath.Join(e.root, "Dockerfile"))
	if err != nil {
		return nil, err
	}
	match := baseImage.FindSubmatch(dockerfile)
	if match == nil {
		return nil, errors.New("the Dockerfile has no FROM …/golang:…")
	}
	base := string(match[1])
	if err := e.needTools("crane"); err != nil {
		return nil, err
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := run(short, nil, filepath.Join(e.bin, "crane"), "digest", base); err == nil {
		return nil, nil
	}
	e.logf("%s cannot be pulled: building with this machine's own Go in its place", base)

	shell, err := e.debianFile(ctx, "busybox-static", "bin/busybox")
	if err != nil {
		return nil, err
	}
	name, tag, _ := strings.Cut(base, ":")
	archive := e.images("golang.tar")
	err = (&image{
		name: name, tags: []string{tag}, cmd: []string{"sh"},
		env:   []string{"PATH=/usr/local/go/bin:/bin", "GOPATH=/go", "GOTOOLCHAIN=local"},
		files: map[string]file{"bin/sh": {from: shell, mode: 0o755}, "tmp/": {mode: 0o1777}},
	}).write(archive)
	if err != nil {
		return nil, err
	}
	if _, err := e.run(ctx, "pull", "--quiet", "docker-archive:"+archive); err != nil {
		return nil, err
	}
	args := []string{"--pull=false", "--platform", "linux/" + runtime.GOARCH}
	for _, mount := range [][2]string{{"GOROOT", "/usr/local/go:ro"}, {"GOMODCACHE", "/cache/mod"}, {"GOCACHE", "/cache/build"}} {
		dir, err := goenv(ctx, mount[0])
		if err != nil {
			return nil, err
		}
		args = append(args, "--volume", dir+":"+mount[1])
	}
	return args, nil
}

func goenv(ctx context.Context, name string) (string, error) {
	out, err := run(ctx, nil, "go", "env", name)
	return strings.TrimSpace(out), err
}
