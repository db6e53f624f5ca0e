package main

import (
	"bytes"
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
	def := func(value *string, or string) {
		if *value == "" {
			*value = or
		}
	}
	def(&n.repository, old.repository)
	def(&n.module, "github.com/"+n.owner+"/"+n.repository)
	def(&n.group, "cache."+strings.ToLower(n.owner)+".github.io")
	def(&n.registry, "ghcr.io/"+strings.ToLower(n.owner)+"/"+n.repository)
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

// rename replaces the names in all texts that git tracks, and in the names of the files. It returns the lines of Go
// that have become too long for the linter.
func (r *repository) rename(to names) (long []string, err error) {
	if to.repository != r.repository {
		if err := r.unused(to.repository); err != nil {
			return nil, err
		}
	}
	replace := r.replacer(to)
	for _, name := range r.files {
		file := filepath.Join(r.dir, name)
		info, err := os.Lstat(file)
		if err != nil {
			return nil, err
		}
		renamed := replace(name)
		if info.Mode().IsRegular() {
			old, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			text := string(old)
			if bytes.IndexByte(old, 0) < 0 && utf8.Valid(old) {
				text = replace(text)
			}
			if name == "PROJECT" {
				text = r.project(text, to)
			}
			if strings.HasSuffix(name, ".go") {
				long = append(long, tooLong(string(old), text)...)
				formatted, err := format.Source([]byte(text)) // other names may need another alignment
				if err != nil {
					return nil, fmt.Errorf("%s: %w", name, err)
				}
				text = string(formatted)
			}
			if text != string(old) {
				if err := os.WriteFile(file, []byte(text), info.Mode().Perm()); err != nil {
					return nil, err
				}
			}
		}
		if renamed != name {
			target := filepath.Join(r.dir, renamed)
			if err := errors.Join(os.MkdirAll(filepath.Dir(target), 0o755), os.Rename(file, target)); err != nil {
				return nil, err
			}
			for dir := filepath.Dir(file); os.Remove(dir) == nil; dir = filepath.Dir(dir) { // until one is not empty
			}
		}
	}
	return long, nil
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
		{"ghcr.io/" + r.owner + "/" + r.repository, to.registry, ".", ""},
		{"github.com/" + r.owner, "github.com/" + to.owner, ".", "-"},
		{"ghcr.io/" + r.owner, "ghcr.io/" + strings.ToLower(to.owner), ".", "-"},
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

// allowLongLines raises the linter's limit to the longest of the lines that names have made longer than the limit.
func (r *repository) allowLongLines(lines []string) error {
	file := filepath.Join(r.dir, ".golangci.yml")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	limit := maxLine
	for _, line := range lines {
		limit = max(limit, utf8.RuneCountInString(line))
	}
	const setting = "line-length: %d\n"
	return os.WriteFile(file, bytes.Replace(text, fmt.Appendf(nil, setting, maxLine), fmt.Appendf(nil, setting, limit), 1),
		0o644)
}

// tooLong returns the lines that have become longer than the linter allows.
func tooLong(before, after string) (lines []string) {
	old := strings.Split(before, "\n")
	for i, line := range strings.Split(after, "\n") {
		if utf8.RuneCountInString(line) > maxLine && utf8.RuneCountInString(old[i]) <= maxLine {
			lines = append(lines, line)
		}
	}
	return lines
}

func (r *repository) git(args ...string) (string, error) {
	cmd := exec.CommandContext(context.Background(), "git", args...)
	cmd.Dir = r.dir
	out, err := cmd.Output()
	return string(out), err
}
