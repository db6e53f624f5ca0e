package api

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/internal/testing/manifest"
)

// TestSecretsPolicy: with the sample policy, users can name only those Secrets in a Memcached that they may get.
func TestSecretsPolicy(t *testing.T) {
	must := func(args ...string) {
		t.Helper()
		if out, err := kubectl(t, args...); err != nil {
			t.Fatalf("kubectl %s: %s", strings.Join(args, " "), out)
		}
	}
	grant := func(name string, rules ...string) {
		t.Helper()
		must(append([]string{"create", "role", name}, rules...)...)
		must("create", "rolebinding", name, "--role="+name, "--user=author")
	}
	// create returns the API server's error for a Memcached by the user author; "" if the spec is accepted.
	create := func(spec string) string {
		t.Helper()
		file := filepath.Join(t.TempDir(), "memcached.yaml")
		if err := os.WriteFile(file, []byte(manifest.Named("policed", spec)), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := kubectl(t, "create", "--as=author", "--dry-run=server", "--filename="+file)
		if err != nil {
			return out
		}
		return ""
	}
	eventually := func(spec, want string) {
		t.Helper()
		harness.Eventually(t, "create "+spec+" with the error "+want, time.Minute, func() error {
			if got := create(spec); got == "" != (want == "") || !strings.Contains(got, want) {
				return errors.New("the error is: " + got)
			}
			return nil
		})
	}

	const policy = root + "/config/samples/secrets_policy.yaml"
	must("apply", "--filename="+policy)
	defer must("delete", "--filename="+policy)
	grant("authors", "--verb=create", "--resource=memcacheds.cache.example.com")
	eventually("{tls: {secretName: mine}}", "spec.tls.secretName: you may not get the Secret mine")
	eventually("{auth: {secretName: mine}}", "spec.auth.secretName: you may not get the Secret mine")
	if got := create("{size: 2}"); got != "" {
		t.Errorf("a Memcached without Secrets is refused: %s", got)
	}
	grant("readers", "--verb=get", "--resource=secrets", "--resource-name=mine")
	eventually("{tls: {secretName: mine}, auth: {secretName: mine}}", "")
	eventually("{tls: {secretName: mine}, auth: {secretName: other}}",
		"spec.auth.secretName: you may not get the Secret other")
	eventually("{tls: {secretName: mine, clientCA: {secretName: other}}}",
		"spec.tls.clientCA.secretName: you may not get the Secret other")
}
