package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

var debian = []string{"DEBIAN_FRONTEND=noninteractive"}

// installPackages installs the Debian packages of missing commands, after it said which. A package that is not
// called like its command is written command:package.
func (c *Cluster) installPackages(ctx context.Context, commands ...string) error {
	var missing []string
	for _, name := range commands {
		command, pkg, ok := strings.Cut(name, ":")
		if !ok {
			pkg = command
		}
		if _, err := exec.LookPath(command); err != nil {
			missing = append(missing, pkg)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	c.logf("installing Debian packages: %s", strings.Join(missing, " "))
	return c.apt(ctx, append([]string{"install", "-y", "-q", "--no-install-recommends"}, missing...)...)
}

// debianFile returns a file of a Debian package, which it fetches the first time. Several images share one package.
func (c *Cluster) debianFile(ctx context.Context, pkg, name string) (string, error) {
	c.packages.Lock()
	defer c.packages.Unlock()
	dir := c.images("debian", pkg)
	if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
		return filepath.Join(dir, name), nil
	}
	return filepath.Join(dir, name), c.download(ctx, dir, pkg)
}

// download fetches the packages that this machine lacks to run that one, and unpacks them below dir instead of
// installing them: a memcached that is installed would run as a service.
func (c *Cluster) download(ctx context.Context, dir, pkg string) error {
	c.logf("downloading Debian package %s (not installed, its files go into test images)", pkg)
	archives, err := filepath.Abs(dir + ".deb")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(archives, "partial"), 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(archives)
	err = c.apt(ctx, "install", "-y", "-q", "--no-install-recommends", "--download-only", "--reinstall", "-o",
		"Dir::Cache::archives="+archives, pkg)
	if err != nil {
		return err
	}
	packages, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err != nil || len(packages) == 0 {
		return errors.Join(err, fmt.Errorf("apt-get downloaded nothing for %s", pkg))
	}
	for _, file := range packages {
		if _, err := run(ctx, nil, "dpkg-deb", "--extract", file, dir); err != nil {
			return err
		}
	}
	return nil
}

// apt runs apt-get, and once more after an update: the lists of a fresh machine are missing or old.
func (c *Cluster) apt(ctx context.Context, args ...string) error {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("this needs Debian's `apt-get %s`, or the same programs installed by hand", strings.Join(args, " "))
	}
	if _, err := run(ctx, debian, "apt-get", args...); err == nil {
		return nil
	}
	if _, err := run(ctx, debian, "apt-get", "update", "-q"); err != nil {
		return err
	}
	_, err := run(ctx, debian, "apt-get", args...)
	return err
}
