package cluster

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// memcachedPins are the packages for the stand-in for the memcached image, and busybox for it and other images.
//
//go:embed node/memcached.sha256
var memcachedPins string

// memcachedSuite is the suite of Debian with the operator's default version of memcached. Like the official image, it
// has TLS, extstore and the built-in proxy.
const memcachedSuite = "forky"

var memcachedTag = regexp.MustCompile(`docker\.io/library/memcached:([\w.-]+)`)

// memcached returns an image with Debian's memcached and its libraries, as a stand-in for the official image. Two
// properties are the same, because they matter to an operator: the image has a shell, and it sets its user by name,
// which runAsNonRoot alone refuses. It has the tags of the operator's default image, of the releases, and further ones
// for tests that change the image.
func (n *node) memcached(ctx context.Context) (*image, error) {
	tags, err := n.memcachedTags("config/manager/memcached.Dockerfile", "catalog/memcached-operator/catalog.yaml")
	if err != nil {
		return nil, err
	}
	root, err := n.memcachedRoot(ctx)
	if err != nil {
		return nil, err
	}
	files := map[string]file{
		"usr/local/bin/memcached": {from: filepath.Join(root, "usr/bin/memcached"), mode: 0o755},
		"bin/sh":                  {from: filepath.Join(root, busyboxFile), mode: 0o755},
		"lib":                     {link: "usr/lib"},
		"lib64":                   {link: "usr/lib64"}, // amd64 programs look for their loader here
		"etc/passwd": {text: "root:x:0:0:root:/root:/bin/sh\nmemcache:x:11211:11211::/home/memcache:/bin/sh\n",
			mode: 0o644},
		"etc/group": {text: "root:x:0:\nmemcache:x:11211:\n", mode: 0o644},
		"tmp/":      {mode: 0o1777},
	}
	libraries, err := tree(root, func(name string) bool { return strings.Contains(path.Base(name), ".so") })
	maps.Copy(files, libraries)
	return &image{
		name: "docker.io/library/memcached", tags: append(tags, "1.6", "latest"), user: "memcache",
		cmd: []string{"memcached"}, env: defaultPath, files: files,
	}, err
}

// busyboxFile is the path of busybox in its package.
const busyboxFile = "usr/bin/busybox"

// busyboxProgram returns the path of a static busybox, with which images get a shell.
func (c *Cluster) busyboxProgram(ctx context.Context) (string, error) {
	root, err := c.memcachedRoot(ctx)
	return filepath.Join(root, busyboxFile), err
}

// memcachedRoot returns the folder with the unpacked packages. It downloads them the first time.
func (c *Cluster) memcachedRoot(ctx context.Context) (string, error) {
	digest := sha256.Sum256([]byte(memcachedPins))
	root := c.images(fmt.Sprintf("memcached-%x", digest[:6]))
	c.packages.Lock()
	defer c.packages.Unlock()
	if isDir(root) {
		return root, nil
	}
	mirror, err := debianMirror(ctx)
	if err != nil {
		return "", err
	}
	pins := pinned(runtime.GOARCH)
	if len(pins) == 0 {
		return "", fmt.Errorf("tests/cluster/node/memcached.sha256 has no packages for %s", runtime.GOARCH)
	}
	c.logf("downloading memcached, its libraries and busybox from Debian's suite %s", memcachedSuite)
	if err = c.unpack(ctx, mirror, pins, root); err == nil {
		return root, nil
	}
	c.logf("using the newest packages, because those of tests/cluster/node/memcached.sha256 cannot be downloaded: %v", err)
	newest, err := c.newest(ctx, mirror, runtime.GOARCH)
	if err != nil {
		return "", err
	}
	c.logf("memcached is from %s", path.Base(newest[0].path))
	return root, c.unpack(ctx, mirror, newest, root)
}

// MemcachedCommand returns a command that runs the image's memcached as a process of this machine. It downloads
// memcached the first time.
func (c *Cluster) MemcachedCommand(ctx context.Context) ([]string, error) {
	root, err := c.memcachedRoot(ctx)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, pattern := range []string{"usr/lib*/ld-linux-*.so.*", "usr/lib/*-linux-gnu"} {
		paths, _ := filepath.Glob(filepath.Join(root, pattern))
		if len(paths) == 0 {
			return nil, fmt.Errorf("%s has no %s", root, pattern)
		}
		found = append(found, paths[0])
	}
	return []string{found[0], "--library-path", found[1], filepath.Join(root, "usr/bin/memcached")}, nil
}

// memcachedTags returns the tags of the memcached image in these files.
func (c *Cluster) memcachedTags(names ...string) (tags []string, err error) {
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(c.root, name))
		if err != nil {
			return nil, err
		}
		for _, match := range memcachedTag.FindAllSubmatch(content, -1) {
			tags = append(tags, string(match[1]))
		}
	}
	slices.Sort(tags)
	return slices.Compact(tags), nil
}

// PinMemcached pins the newest packages of the suite: it writes them into node/memcached.sha256.
func (c *Cluster) PinMemcached(ctx context.Context) error {
	mirror, err := debianMirror(ctx)
	if err != nil {
		return err
	}
	head, _, _ := strings.Cut(memcachedPins, "\n")
	lines := []string{head}
	for _, arch := range []string{"amd64", "arm64"} {
		newest, err := c.newest(ctx, mirror, arch)
		if err != nil {
			return err
		}
		for _, p := range newest {
			lines = append(lines, p.sum+"  "+p.path)
		}
	}
	return os.WriteFile(filepath.Join(c.root, "tests/cluster/node/memcached.sha256"),
		[]byte(strings.Join(lines, "\n")+"\n"), 0o644)
}

// pin is a package: its path on a mirror, and its SHA256.
type pin struct{ sum, path string }

// name returns the name of the package, without version and architecture.
func (p pin) name() string {
	name, _, _ := strings.Cut(path.Base(p.path), "_")
	return name
}

// pinned returns the pins for an architecture.
func pinned(arch string) (pins []pin) {
	for line := range strings.Lines(memcachedPins) {
		if fields := strings.Fields(line); len(fields) == 2 && strings.HasSuffix(fields[1], "_"+arch+".deb") {
			pins = append(pins, pin{fields[0], fields[1]})
		}
	}
	return pins
}

// unpack downloads packages and unpacks them into dir.
func (c *Cluster) unpack(ctx context.Context, mirror string, pins []pin, dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	temporary, err := os.MkdirTemp(filepath.Dir(dir), "unpack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temporary)
	root := filepath.Join(temporary, "root")
	for _, p := range pins {
		archive := filepath.Join(temporary, p.name()+".deb")
		if _, err := run(ctx, debian, "/usr/lib/apt/apt-helper", "download-file", mirror+p.path, archive,
			"SHA256:"+p.sum); err != nil {
			return err
		}
		if _, err := run(ctx, nil, "dpkg-deb", "--extract", archive, root); err != nil {
			return err
		}
	}
	return os.Rename(root, dir)
}

// newest returns the pinned packages in the newest versions of the suite.
func (c *Cluster) newest(ctx context.Context, mirror, arch string) (pins []pin, err error) {
	options, err := c.suite(ctx, mirror, memcachedSuite, arch)
	if err != nil {
		return nil, err
	}
	for _, p := range pinned(arch) {
		shown, err := run(ctx, debian, "apt-cache", append(options, "show", "--no-all-versions", p.name())...)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(shown) {
			switch key, value, _ := strings.Cut(strings.TrimSpace(line), ": "); key {
			case "Filename":
				p.path = value
			case "SHA256":
				p.sum = value
			}
		}
		pins = append(pins, p)
	}
	return pins, nil
}
