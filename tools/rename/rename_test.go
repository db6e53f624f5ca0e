package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// fork has other names in every part. The repository must not contain them, and neither may this file.
var fork = names{"Else", strings.ToLower("MC-FORK"), strings.ToLower("code.FORK.dev/else/MC-GO"),
	strings.ToLower("store.FORK.dev"), strings.ToLower("images.FORK.dev/else/MC-IMAGE")}

// TestRename renames a copy of this repository, and renames the result back. No trace of the names before is left. The
// domain example.com stays where it is any domain: in names of labels and hosts in docs and tests.
func TestRename(t *testing.T) {
	dir := t.TempDir()
	before := copyTo(t, root(t), dir)
	r := commit(t, dir)
	original := r.names
	if original != root(t).names {
		t.Fatalf("a copy has the names %+v", original)
	}
	_, err := r.rename(fork)
	harness.Must(t, err)
	mustNotHave(t, read(t, dir), original)

	r = commit(t, dir)
	if r.names != fork {
		t.Errorf("the fork has the names %+v, want %+v", r.names, fork)
	}
	_, err = r.rename(original)
	harness.Must(t, err)
	after := read(t, dir)
	mustNotHave(t, after, fork)
	for _, name := range []string{"PROJECT", "go.mod", "config/crd/kustomization.yaml", "main.go", "tools/catalog"} {
		if before[name] != after[name] {
			t.Errorf("%s is not as it was", name)
		}
	}
	if len(after) != len(before) {
		t.Errorf("%d files, want %d", len(after), len(before))
	}
}

// mustNotHave fails if a file or its name contains one of these names.
func mustNotHave(t *testing.T, files map[string]string, names names) {
	t.Helper()
	for _, old := range []string{names.module, names.registry, names.group, names.repository,
		"/" + path.Dir(names.registry) + "/charts/", "github.com/" + names.owner + "/",
		"ghcr.io/" + strings.ToLower(names.owner) + "/", "ghcr.io/" + strings.ToLower(names.owner) + "`"} {
		for name, text := range files {
			if strings.Contains(name, old) {
				t.Errorf("the file %s still has %s in its name", name, old)
			}
			for line := range strings.Lines(text) {
				if strings.Contains(line, old) {
					t.Errorf("%s still has %s: %s", name, old, line)
				}
			}
		}
	}
}

// root opens this repository.
func root(t *testing.T) *repository {
	t.Helper()
	r, err := open("../..")
	harness.Must(t, err)
	return r
}

// copyTo copies the files that git tracks, and returns their content.
func copyTo(t *testing.T, r *repository, dir string) map[string]string {
	t.Helper()
	for _, name := range r.files {
		from := filepath.Join(r.dir, name)
		info, err := os.Lstat(from)
		harness.Must(t, err)
		if !info.Mode().IsRegular() {
			continue
		}
		content, err := os.ReadFile(from)
		harness.Must(t, err)
		harness.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		harness.Must(t, os.WriteFile(filepath.Join(dir, name), content, info.Mode().Perm()))
	}
	return read(t, dir)
}

// read returns the content of each file.
func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	harness.Must(t, fs.WalkDir(os.DirFS(dir), ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && name == ".git" {
			return fs.SkipDir
		}
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(dir, name))
		files[name] = string(content)
		return err
	}))
	return files
}

// commit adds all files to git and opens the repository.
func commit(t *testing.T, dir string) *repository {
	t.Helper()
	for _, args := range [][]string{{"init", "--quiet"}, {"add", "--all"}} {
		out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	r, err := open(dir)
	harness.Must(t, err)
	return r
}

func TestComplete(t *testing.T) {
	old := names{repository: "some-operator"}
	got, err := names{owner: "Acme"}.complete(old)
	harness.Must(t, err)
	want := names{"Acme", "some-operator", "github.com/Acme/some-operator", "cache.acme.github.io",
		"ghcr.io/acme/some-operator"}
	if got != want {
		t.Errorf("got the names %+v, want %+v", got, want)
	}
	if _, err = root(t).rename(names{repository: "memcached"}); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a name that occurs already gets the error %v", err)
	}
	for want, bad := range map[string]names{
		"-owner":      {},
		"-repository": {owner: "a", repository: "Upper"},
		"at most 28":  {owner: "a", repository: strings.Repeat("x", 29)},
		"-group":      {owner: "a", group: "cache"},
		"-registry":   {owner: "a", registry: "ghcr.io/a/b:v1"},
	} {
		if _, err := bad.complete(old); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v gets the error %v, want one with %s", bad, err, want)
		}
	}
}
