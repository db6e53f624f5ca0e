package docs

import (
	"bytes"
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
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

const root = "../.."

// unchecked are folders of what is built and downloaded, and the catalog, whose releases link to pages of their time.
var unchecked = []string{".git", ".cluster", "bin", "catalog", "dist", "docs/site/public"}

// mention is a page or a picture of docs/ that a comment, a message or a URL names, perhaps with a heading.
var mention = regexp.MustCompile(`\bdocs/[a-z0-9/-]+\.(?:md|svg)\b(?:#[a-z0-9-]+)?`)

// TestLinks: each link of a Markdown file, and each page of docs/ that another file names, exists, with its heading.
func TestLinks(t *testing.T) {
	t.Parallel()
	pages, mentions := 0, 0
	for name, content := range files(t) {
		if strings.HasSuffix(name, ".md") {
			pages++
			for _, link := range links(content) {
				if err := follow(name, link); err != nil {
					t.Errorf("%s has the link %s: %v", name, link, err)
				}
			}
		}
		for _, found := range mention.FindAll(content, -1) {
			mentions++
			if err := follow("README.md", string(found)); err != nil {
				t.Errorf("%s names %s: %v", name, found, err)
			}
		}
	}
	assert.Greater(t, pages, 10)
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

// links returns where the links and pictures of a page lead.
func links(page []byte) (all []string) {
	walk(page, func(node ast.Node) {
		switch node := node.(type) {
		case *ast.Link:
			all = append(all, string(node.Destination))
		case *ast.Image:
			all = append(all, string(node.Destination))
		}
	})
	return all
}

// anchors returns the names by which GitHub and the site link the headings of a page.
func anchors(page []byte) map[string]bool {
	all := map[string]bool{}
	walk(page, func(node ast.Node) {
		if node.Kind() != ast.KindHeading {
			return
		}
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, string(plain(node, page)))
		for n, first := 1, anchor; all[anchor]; n++ {
			anchor = fmt.Sprintf("%s-%d", first, n)
		}
		all[anchor] = true
	})
	return all
}

// plain returns the text of a node without its markup.
func plain(node ast.Node, page []byte) (all []byte) {
	for child := node.FirstChild(); child != nil; child = child.NextSibling() {
		if leaf, ok := child.(*ast.Text); ok {
			all = append(all, leaf.Value(page)...)
		}
		all = append(all, plain(child, page)...)
	}
	return all
}

// walk calls visit with each node of a page.
func walk(page []byte, visit func(ast.Node)) {
	tree := goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(text.NewReader(page))
	_ = ast.Walk(tree, func(node ast.Node, entering bool) (ast.WalkStatus, error) { // visit returns no error
		if entering {
			visit(node)
		}
		return ast.WalkContinue, nil
	})
}

// follow returns an error unless a link of a file leads to a file of the repository and a heading in it, or elsewhere.
func follow(from, link string) error {
	target, err := url.Parse(link)
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
	if err == nil && !anchors(page)[target.Fragment] {
		err = fmt.Errorf("%s has no heading #%s", path, target.Fragment)
	}
	return err
}
