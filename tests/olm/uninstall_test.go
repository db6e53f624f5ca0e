package olm

import (
	"regexp"
	"testing"
)

// TestUninstall removes OLM by the command that installed it. That fetches the manifests from GitHub, whatever the
// version.
func TestUninstall(t *testing.T) {
	if kind != "kind" {
		t.Skip("it needs manifests from GitHub")
	}
	w := test{t}
	w.step("operator-sdk olm uninstall", func() { w.must(operatorSDK("olm", "uninstall", "--timeout", "5m")) })
	if left := w.kubectl("get", "crds,namespaces,clusterroles", "--output",
		"name"); regexp.MustCompile(`/(olm|.*operators\.coreos\.com)\n`).MatchString(left) {
		t.Errorf("left:\n%s", left)
	}
}
