package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/example/memcached-operator/tests/docs/blocks"
)

// TestCommands: each block of commands is valid bash and is on the list, once, with a way to test it or the reason why
// none is possible. Each entry of the list has a block. Each make target, file and folder that a command or inline code
// names exists.
func TestCommands(t *testing.T) {
	t.Parallel()
	list, err := blocks.List(root)
	require.NoError(t, err)
	pages, err := blocks.Pages(root)
	require.NoError(t, err)
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	targets := map[string]bool{}
	for _, line := range regexp.MustCompile(`(?m)^([a-z0-9 -]+):[^=]`).FindAllSubmatch(makefile, -1) {
		for _, target := range strings.Fields(string(line[1])) {
			targets[target] = true
		}
	}
	found := map[int]bool{}
	for _, page := range append(pages, "CONTRIBUTING.md", "tests/README.md") {
		inline, err := blocks.Inline(root, page)
		require.NoError(t, err)
		for _, code := range inline {
			existing(t, blocks.Block{Page: page}, code, targets)
		}
	}
	for _, page := range pages {
		all, err := blocks.Read(root, page)
		require.NoError(t, err)
		for _, block := range all {
			if !block.IsCommands() {
				continue
			}
			commands, err := block.Commands()
			require.NoError(t, err)
			for _, command := range commands {
				existing(t, block, command, targets)
			}
			i := slices.IndexFunc(list, func(e blocks.Entry) bool { return e.IsOf(block) })
			if i < 0 {
				t.Errorf("%s:%d: tests/docs/commands.yaml does not say how this block is tested: %s", page, block.Line, commands[0])
				continue
			}
			entry := list[i]
			assert.Falsef(t, found[i], "%s: two blocks begin with %q: make the entry's beginning longer", page, entry.Begins)
			found[i] = true
			if block.Language == "console" && entry.Run != "" {
				assert.NotEmptyf(t, entry.Output, "%s, %q: the commands of a console may fail, so output is needed", entry.Page,
					entry.Begins)
			}
		}
	}
	for i, entry := range list {
		assert.Truef(t, found[i], "%s has no block that begins with %q", entry.Page, entry.Begins)
		ways := 0
		for _, way := range []string{entry.Run, entry.Tested, entry.Reason} {
			if way != "" {
				ways++
			}
		}
		assert.Equalf(t, 1, ways, "%s, %q: one of run, tested and reason is needed", entry.Page, entry.Begins)
		assert.Contains(t, []string{"", "any", "real", "simulated"}, entry.Run)
		if target, ok := strings.CutPrefix(entry.Tested, "make "); ok {
			assert.Truef(t, targets[strings.Fields(target)[0]], "there is no %s", entry.Tested)
		} else if entry.Tested != "" {
			assert.FileExists(t, filepath.Join(root, entry.Tested))
		}
	}
}

// othersFiles are files of frameworks, whose configuration is on the pages.
var othersFiles = []string{"config/cache.php", "config/environments/production.rb"}

// existing checks that the make targets, files and folders that a command names exist.
func existing(t *testing.T, b blocks.Block, command string, targets map[string]bool) {
	t.Helper()
	if words := strings.Fields(command); words[0] == "make" {
		for _, word := range words[1:] {
			if word == "&&" {
				break
			}
			name := regexp.MustCompile(`^[a-z][a-z0-9-]+$`).FindString(word)
			assert.Truef(t, name == "" || targets[name] || strings.HasPrefix(name, "tools-"), "%s:%d: there is no make %s",
				b.Page, b.Line, name)
		}
	}
	paths := regexp.MustCompile(`(?:^|[ '"])((?:config|controllers|internal|tests|tools|\.github)/[\w./-]+)`)
	for _, path := range paths.FindAllStringSubmatch(command, -1) {
		_, err := os.Stat(filepath.Join(root, path[1]))
		assert.Truef(t, err == nil || slices.Contains(othersFiles, path[1]), "%s:%d: %v", b.Page, b.Line, err)
	}
}
