package cluster

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sync/errgroup"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// pauseImage is the image of the pod sandbox. It is in the local registry, as all images.
const pauseImage = "registry.k8s.io/pause:local"

// file is one entry of an image: a file with the content of a file of this machine or with a text, a link, or an empty
// folder.
type file struct {
	from, link string
	mode       int64
	text       string
}

// image describes an image that is built here without the help of an image registry.
type image struct {
	name  string
	tags  []string
	user  string
	cmd   []string
	env   []string
	files map[string]file

	labels map[string]string
}

var defaultPath = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

// serveImages starts the registry on loopback and pushes the images that tests use: pause, and memcached and busybox
// under their upstream names. The registry starts empty each time; .cluster/images keeps the archives.
func (n *node) serveImages(ctx context.Context, o *nodeOptions) error {
	err := n.start("registry", nil, filepath.Join(n.bin, "crane"), "registry", "serve", "--address", o.Registry, "--disk",
		n.path("registry"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(n.path("registry"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(n.path("registry.address"), []byte(o.Registry), 0o644); err != nil {
		return err
	}
	var all errgroup.Group
	for _, build := range []func(context.Context) (*image, error){n.pause, n.busybox, n.memcached} {
		all.Go(func() error {
			img, err := build(ctx)
			if err != nil {
				return err
			}
			return n.publish(ctx, img)
		})
	}
	return n.tail(all.Wait(), "registry")
}

// publish pushes an image and adds its other tags.
func (n *node) publish(ctx context.Context, img *image) error {
	archive := n.images(path.Base(img.name) + ".tar")
	if err := img.write(archive); err != nil {
		return fmt.Errorf("image %s: %w", img.name, err)
	}
	if err := n.loadArchive(ctx, archive, img.name+":"+img.tags[0]); err != nil {
		return err
	}
	for _, tag := range img.tags[1:] {
		if _, err := n.crane(ctx, "tag", n.local(img.name+":"+img.tags[0]), tag); err != nil {
			return err
		}
	}
	return nil
}

// loadArchive pushes the image of a docker archive to the registry as ref. It also removes an earlier image of this
// name from containerd: otherwise pods with the pull policy IfNotPresent would use the earlier one.
func (n *node) loadArchive(ctx context.Context, archive, ref string) error {
	if _, running := n.alive(n.path("pids", "containerd.pid")); running {
		if _, err := n.ctr(ctx, "images", "remove", "--sync", canonical(ref)); err != nil {
			return err
		}
	}
	return harness.Poll(ctx, func(ctx context.Context) error { // the registry may just be starting
		_, err := n.crane(ctx, "push", archive, n.local(ref))
		return err
	})
}

// canonical returns the full name, with its registry, of a short name.
func canonical(ref string) string {
	host, _, ok := strings.Cut(ref, "/")
	switch {
	case !ok:
		return "docker.io/library/" + ref
	case !strings.ContainsAny(host, ".:") && host != "localhost":
		return "docker.io/" + ref
	}
	return ref
}

// local returns the name of ref in the local registry, where containerd pulls it.
func (n *node) local(ref string) string {
	_, rest, _ := strings.Cut(canonical(ref), "/")
	registry, _ := os.ReadFile(n.path("registry.address"))
	return string(registry) + "/" + rest
}

func (n *node) crane(ctx context.Context, args ...string) (string, error) {
	return run(ctx, nil, filepath.Join(n.bin, "crane"), args...)
}

// images returns a path in the folder of files that are kept when clusters are removed.
func (c *Cluster) images(elem ...string) string {
	return filepath.Join(append([]string{c.root, ".cluster", "images"}, elem...)...)
}

func (n *node) pause(ctx context.Context) (*image, error) {
	binary := n.images("pause")
	_, err := run(ctx, []string{"CGO_ENABLED=0"}, "go", "build", "-C", filepath.Join(n.root, "tests"), "-trimpath",
		"-ldflags=-s -w", "-o", binary, "./cluster/pause")
	return &image{
		name: strings.Split(pauseImage, ":")[0], tags: []string{"local"}, user: "65535:65535",
		cmd: []string{"/pause"}, files: map[string]file{"pause": {from: binary, mode: 0o755}},
	}, err
}

// busybox returns the image of test clients. Like upstream's image, it sets no user.
func (n *node) busybox(ctx context.Context) (*image, error) {
	binary, err := n.busyboxProgram(ctx)
	if err != nil {
		return nil, err
	}
	applets, err := run(ctx, nil, binary, "--list")
	if err != nil {
		return nil, err
	}
	files := map[string]file{
		"bin/busybox": {from: binary, mode: 0o755},
		"etc/passwd":  {text: "root:x:0:0:root:/root:/bin/sh\n", mode: 0o644},
		"tmp/":        {mode: 0o1777},
	}
	for name := range strings.FieldsSeq(applets) {
		if name != "busybox" {
			files["bin/"+name] = file{link: "busybox"}
		}
	}
	return &image{name: "docker.io/library/busybox", tags: []string{"1.36", "latest"}, cmd: []string{"sh"},
		env: defaultPath, files: files}, nil
}

// tree returns the files and links below usr in root for which keep returns true, by name.
func tree(root string, keep func(name string) bool) (map[string]file, error) {
	files := map[string]file{}
	err := fs.WalkDir(os.DirFS(root), "usr", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !keep(name) {
			return err
		}
		if entry.Type() == fs.ModeSymlink {
			link, err := os.Readlink(filepath.Join(root, name))
			files[name] = file{link: link}
			return err
		}
		info, err := entry.Info()
		if err == nil {
			files[name] = file{from: filepath.Join(root, name), mode: int64(info.Mode().Perm())}
		}
		return err
	})
	return files, err
}

// write writes a docker archive of the image; equal content gives equal bytes.
func (img *image) write(archive string) error {
	content, err := img.layer()
	if err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}, tarball.WithCompressionLevel(gzip.NoCompression))
	if err != nil {
		return err
	}
	built, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	config, err := built.ConfigFile()
	if err != nil {
		return err
	}
	config.Architecture, config.OS = runtime.GOARCH, "linux"
	config.Config = v1.Config{User: img.user, Cmd: img.cmd, Env: img.env, Labels: img.labels}
	if built, err = mutate.ConfigFile(built, config); err != nil {
		return err
	}
	tag, err := name.NewTag(img.name + ":" + img.tags[0])
	if err != nil {
		return err
	}
	return tarball.WriteToFile(archive, tag, built)
}

// layer returns the files of the image as a tar archive.
func (img *image) layer() ([]byte, error) {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, name := range slices.Sorted(maps.Keys(img.files)) {
		f := img.files[name]
		content := []byte(f.text)
		if f.from != "" {
			var err error
			if content, err = os.ReadFile(f.from); err != nil {
				return nil, err
			}
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: f.mode, Size: int64(len(content))}
		switch {
		case f.link != "":
			header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, f.link, 0o777
		case strings.HasSuffix(name, "/"):
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return layer.Bytes(), err
}
