// Package permissions tests that the operator has the permissions that it needs, that the docs explain each, and that
// the operator passes on no content of Secrets.
package permissions

import (
	"bufio"
	"encoding/json"
	"flag"
	"io"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/tests/cluster"
)

const root = "../.."

var (
	since    = flag.String("since", "", "when the suite began whose requests count, by RFC 3339; empty for all requests")
	complete = flag.Bool("complete", false, "the whole suite ran: each permission was needed, or is a rare one")
)

// ofChildren matches the resources of all children.
const ofChildren = `(?:(?:deployments|statefulsets)\.apps|services|configmaps|networkpolicies\.networking\.k8s\.io|` +
	`poddisruptionbudgets\.policy)`

// rare match the permissions that no request in the audit log needs, although the whole suite ran.
var rare = []struct {
	pattern, reason string
	simulated       bool // only where pods are simulated
}{
	{pattern: `manager-role: create ` + ofChildren,
		reason: "an apply is a patch in the audit log, and the API server also checks create if there is no such child"},
	{pattern: `manager-role: list (?:` + ofChildren + `|secrets)|(?:manager|finalizer)-role: list memcacheds\..*`,
		reason: "informers list only where the API server cannot begin a watch with what there is"},
	{pattern: `manager-role: update memcacheds\..*/finalizers`,
		reason: "no request: the admission plugin OwnerReferencesPermissionEnforcement checks it"},
	{pattern: `manager-role: patch events\.events\.k8s\.io|leader-election-role: patch events`,
		reason: "counts an event that repeats for minutes"},
	{pattern: `leader-election-role: create leases\..*`,
		reason: "the first operator process of a cluster creates its lease, and no suite deletes it"},
	{pattern: `leader-election-role: get pods|metrics-auth-role: .*`, simulated: true,
		reason: "on kwok the operator is a process without a pod, and serves metrics without TLS"},
	{pattern: `manager-role: (?:list pods|patch pods/resize)`, simulated: true,
		reason: "the operator looks up pods for agents that report, and resizes them"},
}

// isRare reports whether a permission is a rare one.
func isRare(name string, simulated bool) bool {
	for _, r := range rare {
		if (simulated || !r.simulated) && regexp.MustCompile(`^(?:`+r.pattern+`)$`).MatchString(name) {
			return true
		}
	}
	return false
}

// row is a row of the table in docs/reference/permissions.md.
var row = regexp.MustCompile("(?m)^\\| `([\\w-]+)` \\| (`.+`) \\| (`.+`) \\| to \\w.+ \\|$")

// TestTable: the table in the docs has each permission of the operator's roles, and no other.
func TestTable(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root, "docs/reference/permissions.md"))
	require.NoError(t, err)
	explained, quoted := map[string][]string{}, regexp.MustCompile("`([^`]+)`")
	for _, row := range row.FindAllStringSubmatch(string(page), -1) {
		for _, resource := range quoted.FindAllStringSubmatch(row[2], -1) {
			for _, verb := range quoted.FindAllStringSubmatch(row[3], -1) {
				explained[row[1]] = append(explained[row[1]], verb[1]+" "+resource[1])
			}
		}
	}
	granted := granted(t)
	assert.ElementsMatch(t, slices.Collect(maps.Keys(granted)), slices.Collect(maps.Keys(explained)), "the roles")
	for role := range granted {
		assert.ElementsMatch(t, granted[role], explained[role], "the permissions of the role %s", role)
	}
	for _, r := range rare {
		assert.NotEmpty(t, r.reason, r.pattern)
		matches := 0
		for role, permissions := range granted {
			for _, p := range permissions {
				if regexp.MustCompile(`^(?:` + r.pattern + `)$`).MatchString(role + ": " + p) {
					matches++
				}
			}
		}
		assert.NotZero(t, matches, "no role has the rare permission %s", r.pattern)
	}
}

// TestRequests: in all tests on this cluster until now, no request of the operator was forbidden. The suite that ran
// last needed each permission, apart from the rare ones.
func TestRequests(t *testing.T) {
	c := audited(t)
	requests, used := 0, map[string]bool{}
	for e := range events(t, c) {
		if !isOperator(e) {
			continue
		}
		resource := strings.TrimSuffix(e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource, "/")
		needed := permission(e.Verb, e.ObjectRef.APIGroup, resource)
		if isOfSuite(t, e) {
			requests++
			used[needed] = true
		}
		assert.NotEqual(t, "forbid", e.Annotations["authorization.k8s.io/decision"], "%s %s", needed, e.RequestURI)
	}
	require.NotZero(t, requests, "requests of the operator since %q", *since)
	var unused []string
	for role, permissions := range granted(t) {
		for _, p := range permissions {
			name := role + ": " + p
			switch {
			case used[p]:
			case *complete && !isRare(name, !cluster.RealPods(c.Kind)):
				t.Errorf("no request of %d needed the permission of the %s", requests, name)
			default:
				unused = append(unused, name)
			}
		}
	}
	slices.Sort(unused)
	t.Logf("%d requests of the operator; none of them needed:\n%s", requests, strings.Join(unused, "\n"))
}

// isOfSuite reports whether a request was sent since the suite began.
func isOfSuite(t *testing.T, e *auditv1.Event) bool {
	t.Helper()
	if *since == "" {
		return true
	}
	begin, err := time.Parse(time.RFC3339, *since)
	require.NoError(t, err)
	return !e.RequestReceivedTimestamp.Time.Before(begin)
}

// audited returns the cluster that the tests before ran on, and skips the test without an audit log.
func audited(t *testing.T) *cluster.Cluster {
	t.Helper()
	kind := os.Getenv("CLUSTER")
	if kind == "" || kind == "kind" {
		t.Skip("there is no audit log")
	}
	c, err := cluster.New(kind)
	require.NoError(t, err)
	return c
}

// events reads the audit log: the requests for objects, and each line.
func events(t *testing.T, c *cluster.Cluster) iter.Seq2[*auditv1.Event, string] {
	return func(yield func(*auditv1.Event, string) bool) {
		var files []io.Reader
		for _, path := range c.AuditLogs() {
			file, err := os.Open(path)
			require.NoError(t, err)
			t.Cleanup(func() { _ = file.Close() })
			files = append(files, file)
		}
		lines := bufio.NewScanner(io.MultiReader(files...))
		lines.Buffer(nil, 1<<24)
		for lines.Scan() {
			e := &auditv1.Event{}
			require.NoError(t, json.Unmarshal(lines.Bytes(), e))
			if e.ObjectRef != nil && !yield(e, lines.Text()) { // without one, it is discovery
				return
			}
		}
		require.NoError(t, lines.Err())
	}
}

// isOperator reports whether a request is of the operator's service account.
func isOperator(e *auditv1.Event) bool {
	return strings.HasSuffix(e.User.Username, ":"+cluster.OperatorDeployment)
}

// granted returns the permissions of each role of the operator.
func granted(t *testing.T) map[string][]string {
	t.Helper()
	bindings, err := filepath.Glob(filepath.Join(root, "config/rbac/*_binding.yaml"))
	require.NoError(t, err)
	all := map[string][]string{}
	for _, path := range bindings {
		content, err := os.ReadFile(strings.TrimSuffix(path, "_binding.yaml") + ".yaml")
		require.NoError(t, err)
		var role rbacv1.ClusterRole
		require.NoError(t, yaml.UnmarshalStrict(content, &role))
		for _, rule := range role.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						all[role.Name] = append(all[role.Name], permission(verb, group, resource))
					}
				}
			}
		}
	}
	return all
}

// permission names a permission, with the resource as kubectl auth can-i --list prints it.
func permission(verb, group, resource string) string {
	if group != "" {
		name, sub, isSub := strings.Cut(resource, "/")
		resource = name + "." + group
		if isSub {
			resource += "/" + sub
		}
	}
	return verb + " " + resource
}
