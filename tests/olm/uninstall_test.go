package olm

import (
	"regexp"
	"testing"
)

// TestUninstall removes OLM with operator-sdk, after the operator.
func TestUninstall(t *testing.T) {
	if newest {
		t.Skip("operator-sdk has manifests of the OLM that it installs; those of a newer one it would download from GitHub")
	}
	w := test{t}
	w.step("operator-sdk olm uninstall", func() { w.must(operatorSDK("olm", "uninstall", "--timeout", "5m")) })
	if left := w.kubectl("get", "crds,namespaces,clusterroles", "--output",
		"name"); regexp.MustCompile(`/(olm|.*operators\.coreos\.com)\n`).MatchString(left) {
		t.Errorf("these objects are left:\n%s", left)
	}
}
