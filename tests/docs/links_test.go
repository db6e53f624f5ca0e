package docs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../.."

// unchecked are folders of what is built and downloaded, and the catalog, whose releases link to pages of their time.
var unchecked = []string{".git", ".cluster", "bin", "catalog", "dist", "docs/site/public"}

var (
	// link is a link or a picture of a Markdown file.
	link = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	// mention is a page or a picture of docs/ that a comment, a message or a URL names, perhaps with a heading.
	mention = regexp.MustCompile(`\b(docs/[a-z0-9/-]+\.(?:md|svg)\b(?:#[a-z0-9-]+)?)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// TestLinks: each file of the repository to which a Markdown file links exists, and so does each page of docs/ that
// another file names, with its heading. make docs-lint checks the links and headings within the site.
func TestLinks(t *testing.T) {
	t.Parallel()
	links, mentions := 0, 0
	for name, content := range files(t) {
		if strings.HasSuffix(name, ".md") {
			for _, found := range link.FindAllSubmatch(content, -1) {
				links++
				if err := follow(name, string(found[1])); err != nil {
					t.Errorf("%s has the link %s: %v", name, found[1], err)
				}
			}
		}
		for _, found := range mention.FindAllSubmatch(content, -1) {
			mentions++
			if err := follow("README.md", string(found[1])); err != nil {
				t.Errorf("%s names %s: %v", name, found[1], err)
			}
		}
	}
	assert.Greater(t, links, 100)
	assert.Greater(t, mentions, 50)
}

// files returns the text files of the repository by their path.
func files(t *testing.T) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() && slices.Contains(unchecked, name) {
			return filepath.SkipDir
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		content, err := os.ReadFile(path)
		if !bytes.ContainsRune(content, 0) {
			all[filepath.ToSlash(name)] = content
		}
		return err
	}))
	return all
}

// follow returns an error unless a link of a file leads to a file of the repository and a heading in it, or elsewhere.
func follow(from, to string) error {
	target, err := url.Parse(to)
	if err != nil || target.Scheme != "" {
		return err
	}
	path := filepath.Join(root, from)
	if target.Path != "" {
		path = filepath.Join(filepath.Dir(path), target.Path)
	}
	if _, err := os.Stat(path); err != nil || target.Fragment == "" {
		return err
	}
	page, err := os.ReadFile(path)
	for _, found := range heading.FindAllSubmatch(page, -1) {
		if anchor(string(found[1])) == target.Fragment {
			return nil
		}
	}
	return errors.Join(err, fmt.Errorf("%s has no heading #%s", path, target.Fragment))
}

// anchor returns the name by which GitHub and the site link a heading.
func anchor(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, text)
}
