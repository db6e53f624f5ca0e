// Package images tests that builds of the operator's image are reproducible: the image depends only on the commit,
// whether it is built from the Dockerfile or by tools/image, which builds releases.
package images

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Set by `make verify-images`.
var (
	registry  = os.Getenv("REGISTRY")
	platforms = os.Getenv("PLATFORMS")
	version   = os.Getenv("VERSION")
)

// ways are the two ways to build an image from a clone of the repository.
var ways = map[string]func(t *testing.T, clone, image string){
	"dockerfile": func(t *testing.T, clone, image string) {
		run(t, clone, "env", "VERSION=v"+version, "bin/cluster", "buildx", image)
	},
	"release": func(t *testing.T, clone, image string) {
		run(t, clone, "tools/image", "operator", ".", image, version)
	},
}

// TestImages builds the last commit twice in each way, each time in a clone at another path. Two builds in the same way
// have the same digest. The two ways have different layers and histories, but the same program, entrypoint, user and
// labels.
func TestImages(t *testing.T) {
	if registry == "" {
		t.Skip("needs a registry: make verify-images")
	}
	commit := run(t, ".", "git", "rev-parse", "HEAD")
	for _, tag := range []string{"1", "2"} {
		dir := clone(t, commit)
		for way, build := range ways {
			build(t, dir, name(way, tag))
		}
	}
	for way := range ways {
		first, second := run(t, ".", "crane", "digest", name(way, "1")), run(t, ".", "crane", "digest", name(way, "2"))
		require.Equal(t, first, second, "two builds by %s", way)
		t.Logf("%-10s twice %s", way, first)
	}
	for platform := range strings.SplitSeq(platforms, ",") {
		t.Run(platform, func(t *testing.T) {
			a, b := name("dockerfile", "1"), name("release", "1")
			require.Equal(t, readConfig(t, a, platform), readConfig(t, b, platform))
			require.Equal(t, program(t, a, platform), program(t, b, platform))
			t.Logf("the same program in both: sha256 %s", program(t, b, platform))
		})
	}
}

func name(way, tag string) string { return registry + "/" + way + "/memcached-operator:" + tag }

// clone clones a commit and links the tools and images of this checkout into the clone.
func clone(t *testing.T, commit string) string {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	run(t, root, "git", "clone", "--quiet", root, dir)
	run(t, dir, "git", "checkout", "--quiet", "--detach", commit)
	for _, linked := range []string{"bin", ".cluster"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, linked), 0o755))
		require.NoError(t, os.Symlink(filepath.Join(root, linked), filepath.Join(dir, linked)))
	}
	return dir
}

type config struct {
	Architecture, OS string
	Config           struct {
		User            string
		Entrypoint, Cmd []string
		Labels          map[string]string
	}
}

func readConfig(t *testing.T, image, platform string) (c config) {
	require.NoError(t, json.Unmarshal([]byte(run(t, ".", "crane", "config", "--platform", platform, image)), &c))
	delete(c.Config.Labels, "io.buildah.version")
	require.Equal(t, platform, c.OS+"/"+c.Architecture)
	return c
}

// program returns the checksum of the only file in an image.
func program(t *testing.T, image, platform string) string {
	content := tar.NewReader(strings.NewReader(run(t, ".", "crane", "export", "--platform", platform, image, "-")))
	sum := ""
	for {
		header, err := content.Next()
		if errors.Is(err, io.EOF) {
			return sum
		}
		require.NoError(t, err)
		if header.Typeflag != tar.TypeReg {
			continue
		}
		require.Equal(t, "/manager", path.Join("/", header.Name))
		require.Empty(t, sum)
		hash := sha256.New()
		_, err = io.Copy(hash, content)
		require.NoError(t, err)
		sum = hex.EncodeToString(hash.Sum(nil))
	}
}

func run(t *testing.T, dir, command string, args ...string) string {
	cmd := exec.Command(command, args...)
	var stderr bytes.Buffer
	cmd.Dir, cmd.Stderr = dir, &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s %s: %s", command, strings.Join(args, " "), &stderr)
	return strings.TrimSuffix(string(out), "\n")
}
