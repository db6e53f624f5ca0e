package olm

import (
	"regexp"
	"testing"
)

// TestUninstall removes OLM with operator-sdk, which downloads the manifests of any version from GitHub.
func TestUninstall(t *testing.T) {
	if kind != "kind" {
		t.Skip("needs manifests from GitHub")
	}
	w := test{t}
	w.step("operator-sdk olm uninstall", func() { w.must(operatorSDK("olm", "uninstall", "--timeout", "5m")) })
	if left := w.kubectl("get", "crds,namespaces,clusterroles", "--output",
		"name"); regexp.MustCompile(`/(olm|.*operators\.coreos\.com)\n`).MatchString(left) {
		t.Errorf("these objects are left:\n%s", left)
	}
}
