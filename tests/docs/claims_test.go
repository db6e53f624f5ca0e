package docs

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/internal/testing/manifest"
	"github.com/example/memcached-operator/tests/docs/blocks"
)

// isPage matches README.md and the pages of docs/.
var isPage = regexp.MustCompile(`^(README|docs/.*)\.md$`)

// TestClaims: versions and other values on the pages are those of what decides them, as claims.yaml lists.
func TestClaims(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("claims.yaml")
	require.NoError(t, err)
	var claims []struct{ Says, Page, With, In, Has, Except string }
	require.NoError(t, yaml.UnmarshalStrict(text, &claims))
	all := files(t)
	for _, claim := range claims {
		says, pages := regexp.MustCompile(claim.Says), 0
		var source []byte
		for _, file := range slices.Sorted(maps.Keys(all)) {
			if claim.In != "" && regexp.MustCompile(claim.In).MatchString(file) {
				source = append(source, all[file]...)
			}
		}
		want := regexp.MustCompile(claim.Has).FindStringSubmatch(string(source))
		require.NotNilf(t, want, "%s: nothing matches %s", claim.In, claim.Has)
		for file, text := range all {
			if claim.Page == "" && !isPage.MatchString(file) || !regexp.MustCompile(claim.Page).MatchString(file) {
				continue
			}
			for _, paragraph := range regexp.MustCompile(`\n\n|\n\|`).Split(string(text), -1) {
				for _, got := range says.FindAllStringSubmatch(paragraph, -1) {
					pages++
					isRight := slices.Equal(got[1:], want[1:]) || len(got) > 1 && got[1] == claim.Except
					assert.Truef(t, isRight && regexp.MustCompile(claim.With).MatchString(paragraph),
						"%s says %q, %s has %q", file, got[0], claim.In+claim.With, want[1:])
				}
			}
		}
		assert.NotZerof(t, pages, "no page matches %s", claim.Says)
	}
}

// unseen are messages of Kubernetes that no test has seen.
var unseen = []string{"must specify limits.cpu", "cannot create resource", "cannot patch resource",
	"didn't have enough allocatable resources", "memory limits cannot be decreased",
	"This pod has more than one PodDisruptionBudget, which the eviction subresource does not support",
	"Cannot evict pod as it would violate the pod's disruption budget"}

// TestMessages: the messages of which a table on a page has the cause are in the code, or in a test that has seen them.
func TestMessages(t *testing.T) {
	t.Parallel()
	var code []byte
	all := files(t)
	for file, text := range all {
		isCode := regexp.MustCompile(`^(agent|controllers|credentials|tests)/.*\.(go|yaml)$`).MatchString(file)
		if isCode && !strings.HasPrefix(file, "tests/docs/") {
			code = append(code, text...)
		}
	}
	code = regexp.MustCompile(`" \+\n\s*"`).ReplaceAll(code, nil) // texts of several lines
	table := regexp.MustCompile(`(?m)^\| [^|]*\bmessage\b.*\n\|-.*\n((?:\|.*\n)+)`)
	first, quoted := regexp.MustCompile(`(?m)^\| (.*?) \|`), regexp.MustCompile("`([^`]+)`")
	values := regexp.MustCompile(`\.{3}|\d+`)
	messages, used := 0, map[string]bool{}
	for file, text := range all {
		if !isPage.MatchString(file) {
			continue
		}
		for _, rows := range table.FindAllSubmatch(text, -1) {
			for _, cell := range first.FindAllSubmatch(rows[1], -1) {
				for _, message := range quoted.FindAllSubmatch(cell[1], -1) {
					messages++
					for _, part := range values.Split(string(message[1]), -1) {
						part = strings.Trim(part, " :,")
						used[part] = slices.Contains(unseen, part)
						known := used[part] || !strings.Contains(part, " ") || bytes.Contains(code, []byte(part))
						assert.Truef(t, known, "%s: no code and no test has %q", file, part)
					}
				}
			}
		}
	}
	assert.Greater(t, messages, 20)
	for _, part := range unseen {
		assert.Truef(t, used[part], "no page has %q any more", part)
	}
}

// othersFields are keys of Secrets, and fields of other kinds, of our chart and of Bitnami's.
var othersFields = regexp.MustCompile(`^(tls\.(crt|key)|metrics\.(k8s\.io|enabled|serviceMonitor\.enabled|` +
	`certificateSecret)|spec\.(source\..*|values|replicas|port)|(image|service\.ports)\..*|auth\.enabled|` +
	`networkPolicy\.(enabled|allowExternal: false))$`)

// TestFields: the Memcached has each field that the pages name, with the values that they name, and the defaults.
func TestFields(t *testing.T) {
	t.Parallel()
	schema := manifest.Schema(t)
	field := regexp.MustCompile(`^((?:spec|status)\.)?(\w+)(\.[\w.]+)?(?:: (.+))?$`)
	byDefault := regexp.MustCompile("`([\\w.]+)`(?: servers)?(?:,| \\()\\s?(\\S+)\\s+by\\s+default")
	pages, err := blocks.Pages(root)
	require.NoError(t, err)
	fields, defaults := 0, 0
	for _, page := range pages {
		inline, err := blocks.Inline(root, page)
		require.NoError(t, err)
		for _, code := range inline {
			m := field.FindStringSubmatch(code)
			if m == nil || othersFields.MatchString(code) {
				continue
			}
			if m[1] == "" { // a word may be anything
				if _, ok := schema.Properties["spec"].Properties[m[2]]; !ok || m[3] == "" && m[4] == "" {
					continue
				}
				m[1] = "spec."
			}
			fields++
			found := schemaOf(schema, m[1]+m[2]+m[3])
			if assert.NotNilf(t, found, "%s: a Memcached has no %s", page, code) && len(found.Enum) > 0 && m[4] != "" {
				assert.Containsf(t, found.Enum, apiextensionsv1.JSON{Raw: []byte(`"` + m[4] + `"`)}, "%s: %s", page, code)
			}
		}
		text, err := os.ReadFile(filepath.Join(root, page))
		require.NoError(t, err)
		for _, m := range byDefault.FindAllStringSubmatch(string(text), -1) {
			if found := schemaOf(schema, "spec."+m[1]); found != nil {
				defaults++
				require.NotNilf(t, found.Default, "%s: %s", page, m[0])
				assert.Equalf(t, strings.Trim(string(found.Default.Raw), `"`), m[2], "%s: %s", page, m[0])
			}
		}
	}
	assert.Greater(t, fields, 100)
	assert.Greater(t, defaults, 3)
}

// TestRollouts: the table of docs/how-to/rollouts.md has each field of the spec, and agrees with its description on
// whether a change replaces servers. TestEffects in controllers/desired shows that the descriptions are true.
func TestRollouts(t *testing.T) {
	t.Parallel()
	page := files(t)["docs/how-to/rollouts.md"]
	table, _, _ := strings.Cut(string(page), "\n## ")
	rows := regexp.MustCompile(`(?m)^\| (.*?) \| (.*) \|$`).FindAllStringSubmatch(table, -1)
	for name, field := range manifest.Schema(t).Properties["spec"].Properties {
		i := slices.IndexFunc(rows, func(row []string) bool { return strings.Contains(row[1], "`"+name+"`") })
		if assert.GreaterOrEqual(t, i, 0, "no row has %s", name) {
			replaces := regexp.MustCompile(`change\s+replaces\s+the\s+servers`).MatchString(field.Description)
			assert.Equalf(t, replaces, strings.Contains(rows[i][2], "replaces every server"), "%s: %s", name, rows[i][2])
		}
	}
}

// schemaOf returns the schema of a field, or nil.
func schemaOf(schema *apiextensionsv1.JSONSchemaProps, path string) *apiextensionsv1.JSONSchemaProps {
	for name := range strings.SplitSeq(path, ".") {
		if next, ok := schema.Properties[name]; ok {
			schema = &next
		} else if schema.AdditionalProperties != nil {
			schema = schema.AdditionalProperties.Schema
		} else {
			return nil
		}
	}
	return schema
}

// TestFlagDefaults: docs/reference/flags.md has the default of each flag.
func TestFlagDefaults(t *testing.T) {
	t.Parallel()
	all := files(t)
	page := all["docs/reference/flags.md"]
	flags := regexp.MustCompile(flagPattern+`, "?([:\w]+)"?,`).FindAllSubmatch(all["main.go"], -1)
	require.Greater(t, len(flags), 4)
	for _, flag := range flags {
		row := regexp.MustCompile("(?m)^\\| `--" + string(flag[1]) + "` \\| (.*?) \\|").FindSubmatch(page)
		if string(flag[1]) != "version" && assert.NotNilf(t, row, "no row has --%s", flag[1]) {
			assert.Containsf(t, string(row[1]), string(flag[2]), "the default of --%s", flag[1])
		}
	}
}
