package cluster

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/term"
)

var debian = []string{"DEBIAN_FRONTEND=noninteractive"}

// installPackages installs the Debian packages of missing commands, and logs their names. At a terminal it asks first,
// because the machine may be somebody's own; INSTALL_PACKAGES=yes is the answer in advance. If a package is not named
// like its command, write command:package.
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
	list := strings.Join(missing, " ")
	if term.IsTerminal(int(os.Stdin.Fd())) && os.Getenv("INSTALL_PACKAGES") != "yes" {
		fmt.Fprintf(c.Log, "This needs Debian packages that are missing: %s\nInstall them on this machine? [y/N] ", list)
		answer, err := bufio.NewReader(os.Stdin).ReadString('\n')
		if answer = strings.ToLower(strings.TrimSpace(answer)); err != nil || answer != "y" && answer != "yes" {
			return fmt.Errorf("install these Debian packages first, or set INSTALL_PACKAGES=yes: %s", list)
		}
	}
	c.logf("installing Debian packages: %s", list)
	return c.apt(ctx, append([]string{"install", "-y", "-q", "--no-install-recommends"}, missing...)...)
}

// debianRoot returns a folder with packages of a suite and all their dependencies, which it downloads the first time.
// Nothing is installed, and no script of a package runs.
func (c *Cluster) debianRoot(ctx context.Context, suite string, packages ...string) (string, error) {
	c.packages.Lock()
	defer c.packages.Unlock()
	digest := sha256.Sum256([]byte(strings.Join(packages, " ")))
	root := c.images("debian", fmt.Sprintf("%s-%x", suite, digest[:6]))
	if isDir(root) {
		return root, nil
	}
	c.logf("downloading packages of Debian's suite %s (not installed, their files go into a test image): %s", suite,
		strings.Join(packages, " "))
	mirror, err := debianMirror(ctx)
	if err != nil {
		return "", err
	}
	options, err := c.suite(ctx, mirror, suite, runtime.GOARCH)
	if err != nil {
		return "", err
	}
	temporary := root + ".part"
	defer os.RemoveAll(temporary)
	archives := filepath.Join(temporary, "archives")
	if err := os.MkdirAll(filepath.Join(archives, "partial"), 0o755); err != nil {
		return "", err
	}
	_, err = run(ctx, debian, "apt-get", slices.Concat(options, []string{"-o", "Dir::Cache::archives=" + archives,
		"install", "-y", "-q", "--no-install-recommends", "--download-only"}, packages)...)
	if err != nil {
		return "", err
	}
	unpacked := filepath.Join(temporary, "root")
	all, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err != nil || len(all) == 0 {
		return "", errors.Join(err, errors.New("apt-get downloaded nothing"))
	}
	for _, archive := range all {
		if _, err := run(ctx, nil, "dpkg-deb", "--extract", archive, unpacked); err != nil {
			return "", err
		}
	}
	return root, os.Rename(unpacked, root)
}

const debianKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// suite returns the options with which apt uses one suite of Debian and nothing else, and updates the lists. Its lists
// and sources are separate from the machine's, and signed by Debian. They need neither root nor the locks of dpkg.
func (c *Cluster) suite(ctx context.Context, mirror, suite, arch string) ([]string, error) {
	if _, err := os.Stat(debianKeyring); err != nil {
		return nil, fmt.Errorf("packages of Debian are downloaded, so install debian-archive-keyring: %w", err)
	}
	dir := c.images("apt", suite+"-"+arch)
	if err := os.MkdirAll(filepath.Join(dir, "lists", "partial"), 0o755); err != nil {
		return nil, err
	}
	source := fmt.Sprintf("deb [signed-by=%s target=Packages] %s %s main\n", debianKeyring, mirror, suite)
	if err := os.WriteFile(filepath.Join(dir, "sources.list"), []byte(source), 0o644); err != nil {
		return nil, err
	}
	options := []string{
		"-o", "Dir::Etc::SourceList=" + filepath.Join(dir, "sources.list"), "-o", "Dir::Etc::SourceParts=-",
		"-o", "Dir::State::Lists=" + filepath.Join(dir, "lists"), "-o", "Dir::State::Status=/dev/null", "-o", "Dir::Cache=" +
			dir,
		"-o", "Debug::NoLocking=true", "-o", "APT::Architecture=" + arch, "-o", "APT::Architectures=" + arch,
		"-o", "Acquire::Languages=none",
	}
	_, err := run(ctx, debian, "apt-get", append(options, "update", "--error-on=any")...)
	return options, err
}

// apt runs apt-get. If that fails, it updates the lists, which are missing or old on a fresh machine, and tries again.
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

// debianMirror returns DEBIAN_MIRROR, or the mirror of Debian in the configuration of apt, or Debian's own. What is
// downloaded is pinned by its hash or signed by Debian.
func debianMirror(ctx context.Context) (string, error) {
	if mirror := os.Getenv("DEBIAN_MIRROR"); mirror != "" {
		return strings.TrimSuffix(mirror, "/") + "/", nil
	}
	mirror, err := configuredMirror(ctx)
	if err == nil && mirror == "" && os.Geteuid() == 0 {
		if _, err := run(ctx, debian, "apt-get", "update", "-q"); err != nil { // the lists of a fresh machine are missing
			return "", err
		}
		mirror, err = configuredMirror(ctx)
	}
	return cmp.Or(mirror, "http://deb.debian.org/debian/"), err
}

// configuredMirror returns the mirror in the configuration of apt, or "" if apt has no lists yet or those of another
// distribution.
func configuredMirror(ctx context.Context) (string, error) {
	out, err := run(ctx, debian, "apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages",
		"Origin: Debian", "Label: Debian")
	mirror, _, _ := strings.Cut(out, "\n")
	return mirror, err
}
