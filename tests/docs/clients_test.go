// Package docs tests that links lead somewhere, that pages name what the code has, and show the code that tests run.
package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestClients: docs/how-to/clients.md links each file of tests/clients and shows its content below the link.
func TestClients(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/how-to/clients.md")
	require.NoError(t, err)
	files, err := filepath.Glob("../clients/*/*")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		file, err := os.ReadFile(name)
		require.NoError(t, err)
		link := regexp.QuoteMeta("(../../tests/" + filepath.ToSlash(name)[len("../"):] + ")")
		shown := regexp.MustCompile(link + "[^`]*```[a-z]+\n((?s).*?)```\n").FindSubmatch(page)
		if assert.NotNilf(t, shown, "docs/how-to/clients.md does not show %s", name) {
			assert.Equalf(t, string(file), string(shown[1]), "docs/how-to/clients.md does not show %s unchanged", name)
		}
	}
}
