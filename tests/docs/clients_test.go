// Package docs tests that links lead somewhere, that pages name what the code has, and show the code that tests run.
package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestClients: pages of docs/how-to link each file of tests/clients, except for the manifests of package managers, and
// show its content below the link.
func TestClients(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("../../docs/how-to/clients/*.md")
	require.NoError(t, err)
	var pages []byte
	for _, name := range append(names, "../../docs/how-to/discovery.md") {
		page, err := os.ReadFile(name)
		require.NoError(t, err)
		pages = append(pages, page...)
	}
	files, err := filepath.Glob("../clients/*/*")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		if strings.HasPrefix(filepath.Base(name), "package") {
			continue
		}
		file, err := os.ReadFile(name)
		require.NoError(t, err)
		link := regexp.QuoteMeta("/tests/" + filepath.ToSlash(name)[len("../"):] + ")")
		shown := regexp.MustCompile(link + "[^`]*```[a-z]+\n((?s).*?)```\n").FindSubmatch(pages)
		if assert.NotNilf(t, shown, "docs/how-to does not show %s", name) {
			assert.Equalf(t, string(file), string(shown[1]), "docs/how-to does not show %s unchanged", name)
		}
	}
}
