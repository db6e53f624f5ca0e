package gitops

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appv1 "github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
	argolua "github.com/argoproj/argo-cd/v3/util/lua"
	"github.com/argoproj/gitops-engine/pkg/health"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const (
	argocd         = "../../config/gitops/argocd"
	customization  = argocd + "/resource_customizations/cache.example.com/Memcached"
	patchFile      = argocd + "/argocd-cm-patch.yaml"
	memcachedInCM  = "cache.example.com_Memcached" // the name of the kind in argocd-cm
	memcachedInLua = "cache.example.com/Memcached" // the name of the kind in Argo CD
)

var update = flag.Bool("update", false,
	"write argocd-cm-patch.yaml from the scripts, and record the documents of health_test.yaml")

// overrides returns the health check and the actions of the argocd-cm patch, as Argo CD reads them. Argo CD runs
// scripts from argocd-cm without Lua's standard libraries, but scripts that are built in with them. So a script that
// works here works in both places.
func overrides(t *testing.T) argolua.ResourceHealthOverrides {
	t.Helper()
	var cm struct{ Data map[string]string }
	readYAML(t, patchFile, &cm)
	return argolua.ResourceHealthOverrides{memcachedInLua: appv1.ResourceOverride{
		HealthLua: cm.Data["resource.customizations.health."+memcachedInCM],
		Actions:   cm.Data["resource.customizations.actions."+memcachedInCM],
	}}
}

// TestPatchHasTheScripts: argocd-cm-patch.yaml has the same scripts as resource_customizations.
func TestPatchHasTheScripts(t *testing.T) {
	script := func(name string) string {
		text, err := os.ReadFile(filepath.Join(customization, name))
		require.NoError(t, err)
		return string(text)
	}
	indent := func(by int, text string) string {
		prefix := strings.Repeat(" ", by)
		lines := strings.ReplaceAll(prefix+strings.TrimSpace(text), "\n", "\n"+prefix)
		return strings.ReplaceAll(lines, "\n"+prefix+"\n", "\n\n") + "\n"
	}
	want := `# How Argo CD tells the health of a Memcached, and the actions that it offers on one. Made from the scripts in
# resource_customizations by ` + "`go test ./... -run TestPatchHasTheScripts -update`" + ` in tests/gitops:
#   kubectl -n argocd patch configmap argocd-cm --patch-file argocd-cm-patch.yaml
apiVersion: v1
kind: ConfigMap
metadata:
  name: argocd-cm
  namespace: argocd
data:
  resource.customizations.health.` + memcachedInCM + `: |
` + indent(4, script("health.lua")) +
		`  resource.customizations.actions.` + memcachedInCM + `: |
    discovery.lua: |
` + indent(6, script("actions/discovery.lua")) + `    definitions:
`
	var actions strings.Builder
	for _, action := range []string{"restart", "pause", "resume"} {
		actions.WriteString("    - name: " + action + "\n      action.lua: |\n" +
			indent(8, script("actions/"+action+"/action.lua")))
	}
	want += actions.String()
	if *update {
		require.NoError(t, os.WriteFile(patchFile, []byte(want), 0o644))
	}
	got, err := os.ReadFile(patchFile)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
	require.NotEmpty(t, overrides(t)[memcachedInLua].HealthLua)
	require.NotEmpty(t, overrides(t)[memcachedInLua].Actions)
}

// healthTests is health_test.yaml, in the format of Argo CD's own tests.
type healthTests struct {
	Tests []healthTest `json:"tests"`
}

type healthTest struct {
	HealthStatus health.HealthStatus `json:"healthStatus"`
	InputPath    string              `json:"inputPath"`
}

// TestHealth runs health.lua on the recorded documents, one for each row of the contract.
func TestHealth(t *testing.T) {
	var file healthTests
	readYAML(t, customization+"/health_test.yaml", &file)
	expected := map[string]health.HealthStatus{}
	for _, test := range file.Tests {
		expected[test.InputPath] = test.HealthStatus
	}
	require.Len(t, expected, len(contract), "want one document for each row of the contract")
	for _, row := range contract {
		t.Run(row.name, func(t *testing.T) {
			obj := readObject(t, filepath.Join(customization, row.path()))
			require.Empty(t, row.mismatch(obj), "the document does not match its row")
			got, err := health.GetResourceHealth(obj, overrides(t))
			require.NoError(t, err)
			assert.Equal(t, row.health, got.Status)

			// health_test.yaml has the result of the script alone. Argo CD checks for a deletion before it runs the script.
			bare, err := overrides(t).GetResourceHealth(obj)
			require.NoError(t, err)
			assert.Equal(t, expected[row.path()], *bare)
		})
	}
}

// TestHealthOfOthersStatus: health.lua is right for a status that this operator never writes, but that a CRD without
// defaults or another version of the operator may leave.
func TestHealthOfOthersStatus(t *testing.T) {
	both := []any{map[string]any{"type": "Ready", "status": "True"},
		map[string]any{"type": "Reconciling", "status": "True"}}
	for name, status := range map[string]any{
		"none":                  nil,
		"empty":                 map[string]any{},
		"no conditions":         map[string]any{"observedGeneration": int64(1)},
		"no generation":         map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}},
		"ready and reconciling": map[string]any{"observedGeneration": int64(1), "conditions": both},
	} {
		obj := readObject(t, customization+"/actions/testdata/paused.yaml")
		obj.SetGeneration(1)
		if status != nil {
			obj.Object["status"] = status
		}
		got, err := overrides(t).GetResourceHealth(obj)
		require.NoError(t, err, name)
		assert.Equal(t, health.HealthStatusProgressing, got.Status, name)
	}
}

// TestActions runs the actions of the argocd-cm patch, as Argo CD's own tests do.
func TestActions(t *testing.T) {
	var file struct {
		DiscoveryTests []struct {
			InputPath string                 `json:"inputPath"`
			Result    []appv1.ResourceAction `json:"result"`
		} `json:"discoveryTests"`
		ActionTests []struct{ Action, InputPath, ExpectedOutputPath string } `json:"actionTests"`
	}
	dir := customization + "/actions"
	readYAML(t, dir+"/action_test.yaml", &file)
	require.NotEmpty(t, file.DiscoveryTests)
	require.Len(t, file.ActionTests, 3)
	vm := argolua.VM{ResourceOverrides: overrides(t)}
	for _, test := range file.DiscoveryTests {
		obj := readObject(t, filepath.Join(dir, test.InputPath))
		scripts, err := vm.GetResourceActionDiscovery(obj)
		require.NoError(t, err)
		got, err := vm.ExecuteResourceActionDiscovery(obj, scripts)
		require.NoError(t, err)
		assert.ElementsMatch(t, test.Result, got, test.InputPath)
	}
	for _, test := range file.ActionTests {
		got := runAction(t, readObject(t, filepath.Join(dir, test.InputPath)), test.Action)
		want := readObject(t, filepath.Join(dir, test.ExpectedOutputPath))
		if annotations := got.GetAnnotations(); annotations[restartedAt] != "" {
			require.Regexp(t, `^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$`, annotations[restartedAt])
			annotations[restartedAt] = "0001-01-01T00:00:00Z"
			got.SetAnnotations(annotations)
		}
		// Lua has only one kind of number, so the test compares YAML texts.
		assert.Equal(t, toYAML(t, want.Object), toYAML(t, got.Object), test.Action)
	}
}

// runAction returns obj as an action changes it.
func runAction(t *testing.T, obj *unstructured.Unstructured, name string) *unstructured.Unstructured {
	t.Helper()
	vm := argolua.VM{ResourceOverrides: overrides(t)}
	action, err := vm.GetResourceAction(obj, name)
	require.NoError(t, err)
	impacted, err := vm.ExecuteResourceAction(obj, action.ActionLua, nil)
	require.NoError(t, err)
	require.Len(t, impacted, 1)
	require.Equal(t, argolua.PatchOperation, impacted[0].K8SOperation)
	return impacted[0].UnstructuredObj
}

func readObject(t *testing.T, path string) *unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return fromYAML(t, string(text))
}

func fromYAML(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	json, err := yaml.YAMLToJSON([]byte(text))
	require.NoError(t, err)
	require.NoError(t, u.UnmarshalJSON(json)) // integers become int64, as in Argo CD
	return u
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, into))
}

func toYAML(t *testing.T, v any) string {
	t.Helper()
	text, err := yaml.Marshal(v)
	require.NoError(t, err)
	return string(text)
}
