package monitoring

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// TestHelmValues: the values for Helm equal the files that they repeat.
func TestHelmValues(t *testing.T) {
	read := func(name string, into any) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(Root, "config/kube-state-metrics", name))
		require.NoError(t, err)
		first, _, _ := bytes.Cut(text, []byte("\n---\n"))
		require.NoError(t, yaml.UnmarshalStrict(first, into))
	}
	var values struct {
		Chart struct {
			RBAC struct {
				ExtraRules []rbacv1.PolicyRule `json:"extraRules"`
			} `json:"rbac"`
			State struct {
				Enabled bool           `json:"enabled"`
				Config  map[string]any `json:"config"`
			} `json:"customResourceState"`
		} `json:"kube-state-metrics"`
	}
	var config map[string]any
	var role rbacv1.ClusterRole
	read("helm-values.yaml", &values)
	read("custom-resource-state.yaml", &config)
	read("rbac.yaml", &role)
	assert.True(t, values.Chart.State.Enabled)
	assert.Equal(t, config, values.Chart.State.Config)
	assert.Equal(t, role.Rules, values.Chart.RBAC.ExtraRules)
}
