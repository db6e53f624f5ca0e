package bundle

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/operator-framework/api/pkg/apis/scorecard/v1alpha3"
)

// TestScorecard runs the six tests of scorecard from their own binary, as `operator-sdk scorecard` does in pods. The
// tests expect the bundle in /bundle, so the test changes the root directory; without root, in a user namespace.
func TestScorecard(t *testing.T) {
	var config v1alpha3.Configuration
	decode(t, bundleDir+"/tests/scorecard/config.yaml", &config)
	if len(config.Stages) != 1 || len(config.Stages[0].Tests) != 6 {
		t.Fatal("the bundle does not configure the six tests")
	}
	module, err := os.ReadFile(root + "/tools/operator-sdk/go.mod")
	require.NoError(t, err)
	for _, test := range config.Stages[0].Tests {
		version := test.Image[strings.LastIndex(test.Image, ":")+1:]
		if !strings.Contains(string(module), "github.com/operator-framework/operator-sdk "+version+" ") {
			t.Errorf("%s is not of the version of operator-sdk in tools: change config/scorecard", test.Image)
		}
	}
	binary := root + "/bin/scorecard-test"
	if _, err := os.Stat(binary); err != nil {
		t.Fatalf("%v: run make tools-operator-sdk", err)
	}
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(dir, "bundle"), os.DirFS(bundleDir)))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "tmp"), 0o755))
	if err := os.Link(binary, filepath.Join(dir, "scorecard-test")); err != nil {
		text, err := os.ReadFile(binary)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "scorecard-test"), text, 0o755)
		}
		require.NoError(t, err)
	}
	for _, test := range config.Stages[0].Tests {
		name := test.Entrypoint[1]
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("/scorecard-test", name)
			cmd.Dir, cmd.Env = "/", []string{"SCORECARD_NAMESPACE=default"}
			cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: dir}
			if os.Geteuid() != 0 {
				cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
				cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
			}
			out, err := cmd.Output()
			if errors.Is(err, os.ErrPermission) {
				t.Fatalf("%v: Ubuntu lets only root use namespaces, unless you run"+
					" sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0", err)
			}
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			var status v1alpha3.TestStatus
			if err := json.Unmarshal(out, &status); err != nil || len(status.Results) == 0 {
				t.Fatalf("%v in %s", err, out)
			}
			for _, result := range status.Results {
				// Users apply an example, so it has no status: the API server would drop the status.
				suggestions := slices.DeleteFunc(result.Suggestions, func(s string) bool {
					return strings.HasPrefix(s, "memcacheds.cache.example.com does not have status spec.")
				})
				if result.State != v1alpha3.PassState || len(result.Errors) > 0 || len(suggestions) > 0 {
					t.Errorf("%s: %s, errors %q, suggestions %q", result.Name, result.State, result.Errors, suggestions)
				}
			}
		})
	}
}
