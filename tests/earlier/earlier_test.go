package earlier

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// TestMade: before the first release, the version is made of the same code. A difference that the code no longer has
// room for fails, rather than to make a version that is the same.
func TestMade(t *testing.T) {
	if err := harness.Built("install-test", "channels", "yq"); err != nil {
		t.Skip(err)
	}
	v, err := Before(t.Context(), "0.0.1", filepath.Join(t.TempDir(), "source"))
	require.NoError(t, err)
	assert.Equal(t, "0.0.0", v.Version)
	csv, err := os.ReadFile(filepath.Join(v.Source, csvFile))
	require.NoError(t, err)
	for text, count := range map[string]int{"\n  version: 0.0.0\n": 1, ".v0.0.0\n": 1, " " + defaultImage + "\n": 2,
		":v0.0.0\n": strings.Count(string(csv), ":v")} {
		assert.Equal(t, count, strings.Count(string(csv), text), text)
	}
	require.ErrorContains(t, v.differ(t.Context()), "no longer has")
}
