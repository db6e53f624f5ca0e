package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// isolation makes buildah run as root with only a chroot.
var isolation = []string{"BUILDAH_ISOLATION=chroot"}

// engine builds and stores images. It is the tool that CONTAINER_TOOL names; otherwise Docker if its daemon answers,
// podman if installed, or buildah, which needs no daemon.
type engine struct {
	*Cluster
	command string
	options []string // before the subcommand
}

func (c *Cluster) engine() *engine {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	tool := os.Getenv("CONTAINER_TOOL")
	if tool == "" {
		tool = "buildah"
		if _, err := run(ctx, nil, "docker", "info"); err == nil {
			tool = "docker"
		} else if _, err := exec.LookPath("podman"); err == nil {
			tool = "podman"
		}
	}
	e := &engine{c, tool, nil}
	if tool == "buildah" { // its own storage, because of the stand-in for the base image
		e.options = []string{"--root", c.images("storage"), "--runroot", c.images("run")}
	}
	return e
}

// BuildImage builds an image from a file of the repository, by default from Dockerfile, for this machine's platform.
func (c *Cluster) BuildImage(ctx context.Context, image, dockerfile, version string) error {
	e := c.engine()
	args, err := e.buildArgs(ctx, cmp.Or(dockerfile, "Dockerfile"), version)
	if err != nil {
		return err
	}
	if err := e.build(ctx, append(args, "--tag", image)...); err != nil || e.command != "buildah" {
		return err
	}
	_, err = e.run(ctx, "rmi", "--prune") // removes the image that had this name before
	return err
}

// BuildAndPushImage builds the operator's image for several platforms, such as linux/amd64,linux/arm64, and pushes them
// under one name. It pushes at once, because not every local store can hold an image for several platforms.
func (c *Cluster) BuildAndPushImage(ctx context.Context, image, version, platforms string) error {
	e := c.engine()
	args, err := e.buildArgs(ctx, "Dockerfile", version)
	if err != nil {
		return err
	}
	if e.command == "docker" {
		return e.buildx(ctx, image, append(args, "--platform", platforms)...)
	}
	_, _ = e.run(ctx, "manifest", "rm", image)               // the index of an earlier build would keep its entries
	for platform := range strings.SplitSeq(platforms, ",") { // one after the other, so that their order is fixed
		if err := e.build(ctx, append(args, "--platform", platform, "--manifest", image)...); err != nil {
			return fmt.Errorf("%s: %w", platform, err)
		}
	}
	push := []string{"manifest", "push", "--all"}
	if local(image) {
		push = append(push, "--tls-verify=false")
	}
	_, err = e.run(ctx, append(push, image, "docker://"+image)...)
	return err
}

// build runs the engine's build command in the repository.
func (e *engine) build(ctx context.Context, args ...string) error {
	args = append(append([]string{"build"}, args...), e.root)
	if e.command == "buildah" {
		return e.progress(ctx, isolation, "building the image with buildah", e.command, append(e.options, args...)...)
	}
	return e.show(ctx, args...)
}

// buildx builds for several platforms with Docker, and sets the time of all files in layers to that of the commit. The
// default builder supports neither, so buildx creates its own. Attestations are not part of the index, where they look
// like platforms; they are attached to a released image.
func (e *engine) buildx(ctx context.Context, image string, args ...string) (err error) {
	builder := fmt.Sprintf("memcached-operator-%d", os.Getpid())
	create := []string{"buildx", "create", "--name", builder}
	if local(image) {
		create = append(create, "--driver-opt", "network=host")
	}
	if _, err := e.run(ctx, create...); err != nil {
		return err
	}
	defer func() {
		_, rmErr := e.run(context.WithoutCancel(ctx), "buildx", "rm", builder)
		err = errors.Join(err, rmErr)
	}()
	return e.show(ctx, append(append([]string{"buildx", "build", "--builder", builder}, args...), "--provenance=false",
		"--output", "type=image,name="+image+",push=true,oci-mediatypes=true,rewrite-timestamp=true", e.root)...)
}

// buildArgs returns the arguments of every build: everything that an image depends on besides the source.
func (e *engine) buildArgs(ctx context.Context, dockerfile, version string) ([]string, error) {
	epoch, err := e.epoch(ctx)
	if err != nil {
		return nil, err
	}
	args := []string{"--file", filepath.Join(e.root, dockerfile)}
	if e.command == "buildah" {
		standIn, err := e.prepareBuildah(ctx, dockerfile)
		if err != nil {
			return nil, err
		}
		args = append(args, standIn...)
	}
	// The revision says if the tree has changes; it is empty without git.
	revision, _ := e.git(ctx, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")
	values := []string{"VERSION=" + version, "REVISION=" + revision, "CREATED=" +
		time.Unix(epoch, 0).UTC().Format(time.RFC3339)}
	for _, name := range []string{"GOPROXY", "GOSUMDB"} {
		value, err := run(ctx, nil, "go", "env", name)
		if err != nil {
			return nil, err
		}
		values = append(values, name+"="+strings.TrimSpace(value))
	}
	if e.command == "docker" { // the timestamp of all that Docker creates
		values = append(values, fmt.Sprint("SOURCE_DATE_EPOCH=", epoch))
	} else {
		args = append(args, "--timestamp", strconv.FormatInt(epoch, 10))
		values = append(values, "BUILDPLATFORM=linux/"+runtime.GOARCH) // buildah 1.28 does not set it itself
	}
	for _, value := range values {
		args = append(args, "--build-arg", value)
	}
	return args, nil
}

// prepareBuildah installs buildah, and returns the options that a stand-in for the base image needs.
func (e *engine) prepareBuildah(ctx context.Context, dockerfile string) (options []string, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("building an image needs Docker, podman, or root for buildah")
	}
	if err := e.installPackages(ctx, "buildah"); err != nil {
		return nil, err
	}
	if options, err = e.standIn(ctx, dockerfile); err != nil {
		return nil, fmt.Errorf("stand-in for the base image: %w", err)
	}
	return options, nil
}

// epoch returns the timestamp for everything in an image: that of the commit, so that equal commits give equal images.
func (e *engine) epoch(ctx context.Context) (int64, error) {
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	if epoch == "" {
		var err error
		if epoch, err = e.git(ctx, "log", "-1", "--format=%ct"); err != nil {
			return 0, nil // not a checkout
		}
	}
	return strconv.ParseInt(epoch, 10, 64)
}

func (e *engine) git(ctx context.Context, args ...string) (string, error) {
	out, err := run(ctx, nil, "git", append([]string{"-C", e.root}, args...)...)
	return strings.TrimSpace(out), err
}

// PushImage pushes a built image to its registry.
func (c *Cluster) PushImage(ctx context.Context, image string) error {
	e := c.engine()
	args := []string{"push", image}
	if local(image) && e.command != "docker" { // Docker itself uses plain HTTP for these
		args = []string{"push", "--tls-verify=false", image}
	}
	_, err := e.run(ctx, args...)
	return err
}

// local reports whether an image is in a registry on this machine.
func local(image string) bool {
	host, _, _ := strings.Cut(image, "/")
	name, _, _ := strings.Cut(host, ":")
	return name == "localhost" || name == "127.0.0.1"
}

// show runs the engine and shows its output.
func (e *engine) show(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, e.command, append(e.options, args...)...)
	cmd.Stdout, cmd.Stderr = e.Log, e.Log
	return cmd.Run()
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
	return run(ctx, isolation, e.command, append(e.options, args...)...)
}
