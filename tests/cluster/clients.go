package cluster

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
)

// ClientsImage is the image with the programs of tests/clients, and the client libraries that they need.
const ClientsImage = "example.com/memcached-operator-clients:test"

// clientsSuite is a stable suite of Debian, so that its packages always fit together.
const clientsSuite = "trixie"

var clientsPackages = []string{
	"nodejs", "php-cli", "php-memcached", "python3-pylibmc", "python3-pymemcache", "ruby", "ruby-dalli",
}

var notNeeded = regexp.MustCompile(`^usr/(sbin|share/(doc|locale|man))/`)

// LoadClients builds ClientsImage again and makes it available to the nodes.
func (c *Cluster) LoadClients(ctx context.Context) error {
	root, err := c.debianRoot(ctx, clientsSuite, clientsPackages...)
	if err != nil {
		return err
	}
	programs := c.images("clients")
	if _, err = run(ctx, []string{"CGO_ENABLED=0"}, "go", "build", "-C", filepath.Join(c.root, "tests"), "-trimpath",
		"-ldflags=-s -w", "-o", programs+"/", "./clients/gomemcache..."); err != nil {
		return err
	}
	if _, err = run(ctx, []string{"CGO_ENABLED=0"}, "go", "build", "-C", filepath.Join(c.root, "tests/thanos"),
		"-trimpath", "-ldflags=-s -w", "-o", programs+"/thanos"); err != nil {
		return err
	}
	files, err := tree(root, func(name string) bool { return !notNeeded.MatchString(name) })
	if err != nil {
		return err
	}
	maps.Copy(files, map[string]file{
		"usr/local/bin/gomemcache":     {from: filepath.Join(programs, "gomemcache"), mode: 0o755},
		"usr/local/bin/thanos":         {from: filepath.Join(programs, "thanos"), mode: 0o755},
		"usr/local/bin/gomemcache-tls": {from: filepath.Join(programs, "gomemcache-tls"), mode: 0o755},
		// What the installation scripts of the packages would do.
		"usr/local/bin/php": {link: "/usr/bin/php.default"},
		"etc/php/clients/memcached.ini": {mode: 0o644,
			text: "extension=igbinary\nextension=msgpack\nextension=memcached\n"},
		"lib":   {link: "usr/lib"},
		"lib64": {link: "usr/lib64"},
		"tmp/":  {mode: 0o1777},
	})
	scripts, err := filepath.Glob(filepath.Join(c.root, "tests", "clients", "*", "main.*"))
	if err != nil {
		return err
	}
	for _, script := range scripts {
		name, err := filepath.Rel(filepath.Join(c.root, "tests"), script)
		if err != nil {
			return err
		}
		files[name] = file{from: script, mode: 0o644}
	}
	modules, err := npmFiles(ctx, filepath.Join(c.root, "tests/clients/memcache"))
	if err != nil {
		return err
	}
	for name, text := range modules {
		files["clients/memcache/"+name] = file{text: text, mode: 0o644}
	}
	archive := c.images("clients.tar")
	defer os.Remove(archive)
	img := &image{name: "example.com/memcached-operator-clients", tags: []string{"test"}, files: files,
		env: append([]string{"PHP_INI_SCAN_DIR=/etc/php/clients"}, defaultPath...)}
	if err := img.write(archive); err != nil {
		return err
	}
	return c.driver.loadArchive(ctx, archive, ClientsImage)
}

// ClientsRoot returns a folder with the interpreters and client libraries of ClientsImage, which it downloads the first
// time. A process that has the folder as its root can run them without a container.
func (c *Cluster) ClientsRoot(ctx context.Context) (string, error) {
	root, err := c.debianRoot(ctx, clientsSuite, clientsPackages...)
	if err != nil {
		return "", err
	}
	for _, name := range []string{"lib", "lib64"} { // programs look for their loader there, as in the image
		err := os.Symlink("usr/"+name, filepath.Join(root, name))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	return root, nil
}
