package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// names identify a fork.
type names struct{ owner, repository, module, group, registry string }

// Kubernetes allows 63 characters in the name of a Service, and config/default makes one of the name of the repository.
const longest = 63 - len("-controller-manager-metrics-service")

// maxLine is the limit of .golangci.yml.
const maxLine = 120

var (
	label  = regexp.MustCompile(`^[a-z]([a-z0-9-]*[a-z0-9])?$`)
	domain = regexp.MustCompile(`^[a-z]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?){2,}$`)
)

// complete returns the names with defaults, or an error that says which one cannot be used.
func (n names) complete(old names) (names, error) {
	if n.owner == "" {
		return n, errors.New("-owner is required")
	}
	n.repository = cmp.Or(n.repository, old.repository)
	n.module = cmp.Or(n.module, "github.com/"+n.owner+"/"+n.repository)
	n.group = cmp.Or(n.group, "cache."+strings.ToLower(n.owner)+".github.io")
	n.registry = cmp.Or(n.registry, "ghcr.io/"+strings.ToLower(n.owner)+"/"+n.repository)
	switch {
	case !label.MatchString(n.repository) || len(n.repository) > longest:
		return n, fmt.Errorf("-repository %s must have at most %d characters: a-z, 0-9 and -", n.repository, longest)
	case !domain.MatchString(n.group):
		return n, fmt.Errorf("-group %s must be a name in a domain, such as cache.example.org", n.group)
	case !strings.Contains(n.registry, "/") || strings.ContainsAny(path.Base(n.registry), ":@"):
		return n, fmt.Errorf("-registry %s must be a registry and a name without a tag", n.registry)
	}
	return n, nil
}

// repository is a checkout with its present names.
type repository struct {
	names
	dir   string
	files []string // that git tracks
}

// open reads the names of a checkout.
func open(dir string) (*repository, error) {
	r := &repository{dir: dir}
	list, err := r.git("ls-files", "-z")
	if err != nil {
		return nil, err
	}
	r.files = strings.FieldsFunc(list, func(c rune) bool { return c == 0 })
	var project struct {
		Domain, ProjectName, Repo string
		Resources                 []struct{ Group string }
	}
	text, err := os.ReadFile(filepath.Join(dir, "PROJECT"))
	if err == nil {
		err = yaml.Unmarshal(text, &project)
	}
	makefile, err2 := os.ReadFile(filepath.Join(dir, "Makefile"))
	base := project.ProjectName + ".clusterserviceversion.yaml"
	csv, err3 := os.ReadFile(filepath.Join(dir, "config/manifests/bases", base))
	if err := errors.Join(err, err2, err3); err != nil {
		return nil, err
	}
	image := regexp.MustCompile(`(?m)^IMAGE_TAG_BASE \?= (.*)$`).FindSubmatch(makefile)
	owner := regexp.MustCompile(`(?m)repository: https://github\.com/(.*)/`).FindSubmatch(csv)
	if len(project.Resources) == 0 || image == nil || owner == nil {
		return nil, errors.New("PROJECT, Makefile and CSV do not have the names of this repository")
	}
	r.names = names{string(owner[1]), project.ProjectName, project.Repo,
		project.Resources[0].Group + "." + project.Domain, string(image[1])}
	return r, nil
}

// rename replaces the names in all texts that git tracks, and in the names of the files. It returns the length of the
// lines of Go that the linter must allow.
func (r *repository) rename(to names) (lineLength int, err error) {
	lineLength = maxLine
	if to.repository != r.repository {
		if err := r.unused(to.repository); err != nil {
			return 0, err
		}
	}
	replace := r.replacer(to)
	for _, name := range r.files {
		file := filepath.Join(r.dir, name)
		info, err := os.Lstat(file)
		if err != nil {
			return 0, err
		}
		renamed := replace(name)
		if info.Mode().IsRegular() {
			old, err := os.ReadFile(file)
			if err != nil {
				return 0, err
			}
			text := string(old)
			if bytes.IndexByte(old, 0) < 0 && utf8.Valid(old) {
				text = replace(text)
			}
			if name == "PROJECT" {
				text = r.project(text, to)
			}
			if strings.HasSuffix(name, ".go") {
				lineLength = max(lineLength, longestOf(string(old), text))
				formatted, err := format.Source([]byte(text)) // other names may need another alignment
				if err != nil {
					return 0, fmt.Errorf("%s: %w", name, err)
				}
				text = string(formatted)
			}
			if text != string(old) {
				if err := os.WriteFile(file, []byte(text), info.Mode().Perm()); err != nil {
					return 0, err
				}
			}
		}
		if renamed != name {
			target := filepath.Join(r.dir, renamed)
			if err := errors.Join(os.MkdirAll(filepath.Dir(target), 0o755), os.Rename(file, target)); err != nil {
				return 0, err
			}
			for dir := filepath.Dir(file); os.Remove(dir) == nil; dir = filepath.Dir(dir) { // until one is not empty
			}
		}
	}
	return lineLength, nil
}

// unused returns an error if a word occurs already: a later rename could not distinguish it.
func (r *repository) unused(word string) error {
	used := regexp.MustCompile(`\b` + regexp.QuoteMeta(word) + `\b`)
	for _, name := range r.files {
		if text, err := os.ReadFile(filepath.Join(r.dir, name)); err == nil && used.Match(text) {
			return fmt.Errorf("%q occurs in %s already, with another meaning: choose another name", word, name)
		}
	}
	return nil
}

// project replaces what PROJECT has in parts: the first label of the API group, and the domain.
func (r *repository) project(text string, to names) string {
	oldGroup, oldDomain, _ := strings.Cut(r.group, ".")
	group, domain, _ := strings.Cut(to.group, ".")
	return strings.NewReplacer("domain: "+oldDomain+"\n", "domain: "+domain+"\n", "group: "+oldGroup+"\n",
		"group: "+group+"\n").Replace(text)
}

// replacer returns a function that replaces all names in one pass, so that it never replaces a part of a new name.
func (r *repository) replacer(to names) func(string) string {
	type pair struct {
		old, new      string
		before, after string // what else is part of a word there, besides letters and digits
	}
	page := func(n names) string { return "https://github.com/" + n.owner + "/" + n.repository }
	escaped := func(s string) string { return strings.ReplaceAll(s, ".", `\.`) }
	pairs := []pair{ // a name stands before its parts
		{page(r.names), page(to), "", ""}, // whatever the module is
		{r.module, to.module, "", ""},
		{r.registry, to.registry, ".", ""},
		{path.Dir(r.registry) + "/charts/" + r.repository, path.Dir(to.registry) + "/charts/" + to.repository, ".", ""},
		{"ghcr.io/" + strings.ToLower(r.owner) + "/" + r.repository, to.registry, ".", ""},
		{"github.com/" + r.owner, "github.com/" + to.owner, ".", "-"},
		{"ghcr.io/" + strings.ToLower(r.owner), "ghcr.io/" + strings.ToLower(to.owner), ".", "-"},
		{r.group, to.group, "-", ""},
		{escaped(r.group), escaped(to.group), "-", ""},
		{r.repository, to.repository, "", ""},
	}
	pairs = slices.DeleteFunc(pairs, func(p pair) bool { return p.old == p.new })
	return func(text string) string {
		var out strings.Builder
		for i := 0; i < len(text); {
			match := slices.IndexFunc(pairs, func(p pair) bool {
				end := i + len(p.old)
				return strings.HasPrefix(text[i:], p.old) && (i == 0 || !partOfWord(text[i-1], p.before)) &&
					(end == len(text) || !partOfWord(text[end], p.after))
			})
			if match >= 0 {
				out.WriteString(pairs[match].new)
				i += len(pairs[match].old)
			} else {
				out.WriteByte(text[i])
				i++
			}
		}
		return out.String()
	}
}

// partOfWord reports whether a byte is a letter, a digit or one of the others.
func partOfWord(c byte, others string) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte(others, c) >= 0
}

// allowLongLines raises the linter's limit.
func (r *repository) allowLongLines(limit int) error {
	file := filepath.Join(r.dir, ".golangci.yml")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	const setting = "line-length: %d\n"
	raised := strings.Replace(string(text), fmt.Sprintf(setting, maxLine), fmt.Sprintf(setting, limit), 1)
	return os.WriteFile(file, []byte(raised), 0o644)
}

// longestOf returns the length of the longest line that has become longer than the linter allows, or that limit.
func longestOf(before, after string) int {
	longest, old := maxLine, strings.Split(before, "\n")
	for i, line := range strings.Split(after, "\n") {
		if utf8.RuneCountInString(old[i]) <= maxLine {
			longest = max(longest, utf8.RuneCountInString(line))
		}
	}
	return longest
}

func (r *repository) git(args ...string) (string, error) {
	cmd := exec.CommandContext(context.Background(), "git", args...)
	cmd.Dir = r.dir
	out, err := cmd.Output()
	return string(out), err
}
