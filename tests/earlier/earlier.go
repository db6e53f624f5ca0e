// Package earlier has the version from which tests of upgrades upgrade, and what an upgrade must keep.
//
// It is the release that the tested version replaces, built from its tag. Before the first release, it is the same code
// as v0.0.0, which nobody has, with differences as between two releases: another default image, another image of the
// agent (which is the operator's own), another builder of pod templates, and a CRD that lacks a field.
package earlier

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// Version is a version of the operator.
type Version struct {
	// Version is such as 0.1.0.
	Version string
	// Source is a folder with the source.
	Source string
}

// Released reports whether the version is a release, rather than v0.0.0.
func (v Version) Released() bool { return v.Version != "0.0.0" }

const (
	csvFile = "bundle/manifests/memcached-operator.clusterserviceversion.yaml"
	// defaultImage is the default image of v0.0.0. In one piece, make manifests would replace it.
	defaultImage = "docker.io/library/memcached:" + "1.6.39"
	// graceSeconds is the grace period of servers of v0.0.0.
	graceSeconds = "29"
	// newField is a field of the spec that the CRD of v0.0.0 lacks.
	newField = "paused"
)

// differences replace regular expressions in files of v0.0.0.
var differences = []struct{ file, old, new string }{
	{"controllers/desired/template.go", `WithTerminationGracePeriodSeconds\(30\)`,
		"WithTerminationGracePeriodSeconds(" + graceSeconds + ")"},
	{"config/manager/manager.yaml", `docker\.io/library/memcached:\S+`, defaultImage},
	{"config/manager/kustomization.yaml", `newTag: v\S+`, "newTag: v0.0.0"},
	{csvFile, `(\s)docker\.io/library/memcached:\S+\n`, "${1}" + defaultImage + "\n"},
	{csvFile, `([.:])v\d+\.\d+\.\d+\S*\n`, "${1}v0.0.0\n"}, // its name, and the operator's image
	{csvFile, `\n  version: \S+\n`, "\n  version: 0.0.0\n"},
}

// crdFiles are the files from which the new field is removed.
var crdFiles = []string{"config/crd/bases/cache.example.com_memcacheds.yaml",
	"bundle/manifests/cache.example.com_memcacheds.yaml"}

// Before writes the source of the version that a version replaces to a new folder.
func Before(ctx context.Context, version, folder string) (Version, error) {
	if err := os.Mkdir(folder, 0o755); err != nil {
		return Version{}, err
	}
	released, err := Release(ctx, version, folder)
	if err != nil || released.Version != "" {
		return released, err
	}
	root, err := harness.Repository()
	if err != nil {
		return Version{}, err
	}
	v := Version{Version: "0.0.0", Source: folder}
	// Files that are not committed are part of it, without a change of what is to be committed.
	index := folder + ".index"
	defer os.Remove(index)
	_, err = harness.Command{Dir: root, Env: []string{"GIT_INDEX_FILE=" + index}}.Run(ctx, "bash", "-c",
		`set -euo pipefail; git add --all; git archive "$(git write-tree)" | tar --extract --directory "$0"`, folder)
	if err != nil {
		return v, err
	}
	return v, v.differ(ctx)
}

// Release writes the source of the release that a version replaces to a folder. Without one, the result is empty.
func Release(ctx context.Context, version, folder string) (Version, error) {
	root, err := harness.Repository()
	if err == nil && version == "" {
		err = errors.New("VERSION is not set: run the tests by their make target")
	}
	if err != nil {
		return Version{}, err
	}
	command := harness.Command{Dir: root}
	released, err := command.Run(ctx, "tools/catalog", "before", version)
	released = strings.TrimSpace(released)
	if err != nil || released == "" {
		return Version{}, err
	}
	// A shallow clone may lack the tag.
	_, err = command.Run(ctx, "bash", "-c", `set -euo pipefail
		git rev-parse --quiet --verify "$0^{commit}" >&2 || git fetch --quiet origin tag "$0"
		git archive "$0" | tar --extract --directory "$1"`, "v"+released, folder)
	return Version{Version: released, Source: folder}, err
}

// differ makes the differences in a copy of the source.
func (v Version) differ(ctx context.Context) error {
	for _, d := range differences {
		if err := v.edit(d.file, func(text string) (string, error) {
			return regexp.MustCompile(d.old).ReplaceAllString(text, d.new), nil
		}); err != nil {
			return fmt.Errorf("%w: %s", err, d.old)
		}
	}
	for _, file := range crdFiles {
		if err := v.edit(file, func(string) (string, error) {
			return harness.Command{Dir: v.Source}.Run(ctx, "yq",
				"del(.spec.versions[].schema.openAPIV3Schema.properties.spec.properties."+newField+")", file)
		}); err != nil {
			return fmt.Errorf("%w: %s", err, newField)
		}
	}
	return nil
}

// edit changes a file. It fails if nothing changes: then the code no longer has what v0.0.0 is to have otherwise.
func (v Version) edit(file string, change func(text string) (string, error)) error {
	path := filepath.Join(v.Source, file)
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	changed, err := change(string(old))
	if err == nil && changed == string(old) {
		err = fmt.Errorf("tests/earlier cannot make v0.0.0 differ: %s no longer has what it replaces", file)
	}
	return errors.Join(err, os.WriteFile(path, []byte(changed), 0o644))
}

// Build builds the operator for this machine, and returns the path of the program.
func (v Version) Build(ctx context.Context) (manager string, err error) {
	manager = filepath.Join(v.Source, "bin", "manager")
	_, err = harness.Command{Dir: v.Source}.Run(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags",
		"-s -w -X main.version=v"+v.Version, "-o", manager, ".")
	return manager, err
}
