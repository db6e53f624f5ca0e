package olm

import (
	"encoding/json"
	"encoding/pem"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRunBundle installs, upgrades and removes a bundle with operator-sdk alone, as users who try a bundle do.
func TestRunBundle(t *testing.T) {
	w := test{t}
	w.kubectl("create", "namespace", "try")
	images, http, index := w.bundleFlags()
	run := func(command string, r release, flags ...string) {
		w.step("operator-sdk run "+command, func() {
			bundle := imageIn(images, "-bundle") + ":v" + r.version
			args := append([]string{"run", command, bundle, "--namespace", "try", "--timeout", "3m"}, http...)
			w.must(operatorSDK(append(args, flags...)...))
		})
	}
	run("bundle", from, append(index, "--install-mode", "AllNamespaces")...)
	served := fill(w, "tried", "memcached-sample")
	run("bundle-upgrade", to)
	served.intact()
	w.step("operator-sdk cleanup", func() {
		w.must(operatorSDK("cleanup", "memcached-operator", "--namespace", "try", "--timeout", "2m"))
	})
	if left := w.left(); slices.ContainsFunc(left, func(object string) bool {
		return strings.HasPrefix(object,
			"Memcached")
	}) {
		t.Errorf("operator-sdk cleanup deletes the CRD and with it every Memcached; these are left: %s", left)
	}
	w.kubectl("delete", "namespace", "try", "tried", "--timeout=2m")
	w.removeClusterScoped("try")
}

// bundleFlags returns the flags by which operator-sdk finds images in the registry. On a node cluster the index image
// is in the registry too, because its upstream image may not be available. operator-sdk reads the labels of an index
// image only over TLS, so bundleFlags starts a TLS proxy for the registry.
func (t test) bundleFlags() (images string, http, index []string) {
	if kind == "kind" {
		return registry, []string{"--use-http"}, nil
	}
	proxy := httptest.NewTLSServer(httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: registry}))
	t.Cleanup(proxy.Close)
	ca := filepath.Join(work, "ca.pem")
	t.must(os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: proxy.Certificate().Raw}),
		0o644))
	t.Setenv("SSL_CERT_FILE", ca)
	images = proxy.Listener.Addr().String()
	return images, nil, []string{"--index-image", images + "/operator-framework/opm:latest"}
}

// TestScorecard runs operator-sdk's six scorecard tests on the cluster.
func TestScorecard(t *testing.T) {
	w := test{t}
	start := time.Now()
	args := []string{"scorecard", filepath.Join(work, "bundle-"+to.version), "--wait-time=2m", "--pod-security=restricted",
		"--output=json"}
	if kind == "node" {
		args = append(args, "--untar-image=quay.io/operator-framework/scorecard-untar:v1.42.3")
	}
	out, err := command(4*time.Minute, "operator-sdk", args...)
	if out == "" {
		w.must(err)
	}
	var list struct {
		Items []struct {
			Status struct {
				Results []struct {
					Name, State         string
					Suggestions, Errors []string
				}
			}
		}
	}
	w.must(json.Unmarshal([]byte(out), &list))
	passed := 0
	for _, item := range list.Items {
		for _, result := range item.Status.Results {
			milestones.note("scorecard: %s %s %q", result.Name, result.State, append(result.Errors, result.Suggestions...))
			if result.State == "pass" {
				passed++
			}
		}
	}
	if passed != 6 {
		t.Errorf("%d of 6 tests passed:\n%s", passed, out)
	}
	milestones.add("operator-sdk scorecard", start)
}
