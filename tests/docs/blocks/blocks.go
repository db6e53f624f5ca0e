// Package blocks reads the code on the pages, in blocks and inline, and the list that says how each is tested.
package blocks

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
	"sigs.k8s.io/yaml"
)

// Block is a fenced block of a page.
type Block struct {
	Page     string
	Line     int
	Language string
	Text     string
}

// Pages returns README.md, RELEASING.md and the pages of docs/, relative to the root of the repository.
func Pages(root string) ([]string, error) {
	pages := []string{"README.md", "RELEASING.md"}
	for _, pattern := range []string{"*.md", "*/*.md", "*/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, "docs", pattern))
		if err != nil {
			return nil, err
		}
		for _, page := range found {
			name, err := filepath.Rel(root, page)
			if err != nil {
				return nil, err
			}
			pages = append(pages, filepath.ToSlash(name))
		}
	}
	return pages, nil
}

// fence matches a fenced block, perhaps indented as a part of a list.
var fence = regexp.MustCompile("(?ms)^( *)```([a-z]+)\n(.*?\n) *```$")

// Read returns the blocks of a page.
func Read(root, page string) ([]Block, error) {
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		return nil, err
	}
	var all []Block
	for _, m := range fence.FindAllSubmatchIndex(text, -1) {
		indent := string(text[m[2]:m[3]])
		content := strings.TrimPrefix(string(text[m[6]:m[7]]), indent)
		all = append(all, Block{
			Page: page, Line: 1 + bytes.Count(text[:m[0]], []byte("\n")), Language: string(text[m[4]:m[5]]),
			Text: strings.ReplaceAll(content, "\n"+indent, "\n"),
		})
	}
	return all, nil
}

// code matches inline code.
var code = regexp.MustCompile("`([^`]+)`")

// Inline returns the inline code of a page, each as one line.
func Inline(root, page string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		return nil, err
	}
	var all []string
	for _, m := range code.FindAllSubmatch(fence.ReplaceAll(text, nil), -1) {
		all = append(all, strings.Join(strings.Fields(string(m[1])), " "))
	}
	return all, nil
}

// IsCommands reports whether a reader runs the block.
func (b Block) IsCommands() bool {
	return slices.Contains([]string{"sh", "bash", "console"}, b.Language)
}

// Script returns the commands of the block: of a console, what follows the prompts.
func (b Block) Script() string {
	if b.Language != "console" {
		return b.Text
	}
	var script strings.Builder
	for line := range strings.Lines(b.Text) {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			script.WriteString(command)
		}
	}
	return script.String()
}

// Commands parses the block as bash, and returns its commands.
func (b Block) Commands() ([]string, error) {
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(b.Script()), "")
	if err != nil {
		return nil, fmt.Errorf("%s:%d: %w", b.Page, b.Line, err)
	}
	var all []string
	for _, statement := range file.Stmts {
		// A here-document is behind the end of its statement.
		end := statement.End().Offset()
		for _, redirect := range statement.Redirs {
			if redirect.Hdoc != nil {
				end = max(end, redirect.Hdoc.End().Offset())
			}
		}
		all = append(all, b.Script()[statement.Pos().Offset():min(end, uint(len(b.Script())))])
	}
	return all, nil
}

// Entry says how a block is tested: by Run, by Tested, or for a Reason not at all.
type Entry struct {
	Page   string
	Begins string // the beginning of the block's commands
	// Run is the kind of cluster on which `make docs-e2e` runs the block: simulated for kwok, real for node and kind, or
	// any.
	Run string `json:",omitempty"`
	// Tested is the make target or the file of the test that runs the same.
	Tested string `json:",omitempty"`
	Reason string `json:",omitempty"`
	// Before runs before the block, and sets variables for what a reader replaces, such as NAME.
	Before string `json:",omitempty"`
	// Except are the beginnings of commands of a block that are not run, with the reason.
	Except map[string]string `json:",omitempty"`
	// Output is a regular expression that the output of the block must match.
	Output string `json:",omitempty"`
}

// List returns the entries of commands.yaml.
func List(root string) ([]Entry, error) {
	text, err := os.ReadFile(filepath.Join(root, "tests/docs/commands.yaml"))
	if err != nil {
		return nil, err
	}
	var all []Entry
	err = yaml.UnmarshalStrict(text, &all)
	return all, err
}

// Skips returns the reason why a command of the entry's block is not run, empty if it is.
func (e Entry) Skips(command string) string {
	for begins, reason := range e.Except {
		if strings.HasPrefix(command, begins) {
			return reason
		}
	}
	return ""
}

// IsOf reports whether the entry is that of a block.
func (e Entry) IsOf(b Block) bool {
	return b.IsCommands() && e.Page == b.Page && strings.HasPrefix(b.Script(), e.Begins)
}
