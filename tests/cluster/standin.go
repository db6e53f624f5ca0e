package cluster

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

var baseImage = regexp.MustCompile(`(?m)^FROM (?:--\S+ )*(\S+/golang:([\d.]+)\S*)`)

// standIn builds a stand-in for the base image of a build if that image cannot be pulled. The stand-in has only a
// shell; the returned options mount this machine's Go and its caches. So the tests build the same Dockerfile as users.
// The stand-in has no certificates and no settings of this machine, so standIn downloads the modules first.
func (e *engine) standIn(ctx context.Context, dockerfile string) (options []string, err error) {
	content, err := os.ReadFile(filepath.Join(e.root, dockerfile))
	if err != nil {
		return nil, err
	}
	match := baseImage.FindSubmatch(content)
	if match == nil {
		return nil, nil // the image is not built from a Go program
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

	shell, err := e.busyboxProgram(ctx)
	if err != nil {
		return nil, err
	}
	name, tag := strings.Split(base, ":")[0], string(match[2])
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
	// The compiler of the base image; Go downloads it if the machine has another version.
	compiler := []string{"GOTOOLCHAIN=go" + tag}
	err = e.progress(ctx, compiler, "downloading the operator's Go modules", "go", "-C", e.root, "mod", "download")
	if err != nil {
		return nil, err
	}
	// The Dockerfile names the base image by its digest, which the stand-in cannot have.
	args := []string{"--pull=false", "--build-context", base + "=container-image://" + name + ":" + tag}
	for _, mount := range [][2]string{{"GOROOT", "/usr/local/go:ro"}, {"GOMODCACHE", "/cache/mod"},
		{"GOCACHE", "/cache/build"}} {
		dir, err := run(ctx, compiler, "go", "env", mount[0])
		if err != nil {
			return nil, err
		}
		args = append(args, "--volume", strings.TrimSpace(dir)+":"+mount[1])
	}
	return args, nil
}
