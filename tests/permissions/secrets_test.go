package permissions

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/example/memcached-operator/tests/leak"
)

// TestSecretContents: the contents of all Secrets that anybody wrote on this cluster until now appear in no request of
// the operator, and so in no status, event or child, nor in its metrics, its log, and the logs of agents and memcached.
func TestSecretContents(t *testing.T) {
	c := audited(t)
	contents, secrets, ofSuite, written := leak.Contents{}, sets.New[string](), 0, 0
	for e := range events(t, c) {
		if e.ObjectRef.Resource != "secrets" || e.RequestObject == nil {
			continue
		}
		var secret corev1.Secret // or a patch of one
		require.NoError(t, json.Unmarshal(e.RequestObject.Raw, &secret), "a patch that this test cannot read")
		secret.Namespace, secret.Name = e.ObjectRef.Namespace, e.ObjectRef.Name
		if secret.Type == corev1.SecretTypeServiceAccountToken {
			delete(secret.Data, corev1.ServiceAccountNamespaceKey)
		}
		contents.Add(&secret)
		if isOfSuite(t, e) {
			ofSuite++
		}
		secrets.Insert(secret.Namespace + "/" + secret.Name)
	}
	require.NotEmpty(t, contents, "without the content of a Secret, this test proves nothing")
	require.NotZero(t, ofSuite, "Secrets that were written since %q", *since)
	mustHaveNone := func(text, where string) {
		t.Helper()
		if secret := contents.In(text); secret != "" {
			t.Errorf("%s has a part of %s", where, secret)
		}
	}
	for e, line := range events(t, c) {
		if isOperator(e) {
			mustHaveNone(line, fmt.Sprintf("the request to %s %s", e.Verb, e.RequestURI))
			if e.RequestObject != nil && isOfSuite(t, e) {
				written++
			}
		}
	}
	require.NotZero(t, written, "the audit log lacks what the operator wrote")
	metrics, err := c.Operator("").Metrics(t.Context())
	require.NoError(t, err)
	mustHaveNone(metrics, "the answer of the operator's metrics")
	logs := c.OperatorLogs()
	require.NotEmpty(t, logs)
	if c.Kind == "node" {
		for _, name := range []string{"agent", "memcached"} {
			of := c.ContainerLogs(name)
			require.NotEmpty(t, of, "logs of %s", name)
			logs = append(logs, of...)
		}
	}
	size := 0
	for _, path := range logs {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		mustHaveNone(string(text), path)
		size += len(text)
	}
	t.Logf("looked for %d parts of %d Secrets in %d requests that wrote, in the metrics, and in %d logs of %d KiB",
		len(contents), len(secrets), written, len(logs), size>>10)
}
