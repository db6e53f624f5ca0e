package bundle

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

const crdFile = "bundle/manifests/cache.example.com_memcacheds.yaml"

// exception is a rule that refuses what the CRD of an earlier release accepted.
type exception struct{ field, message, reason string }

const (
	neverStarted = "memcached never started with it"
	neverMade    = "no API server took the Deployment"
	newField     = "the field is new"
)

// exceptions lists, by the release that the CRD is compared with, each rule that was added since. Existing objects are
// safe: Kubernetes does not apply a rule to an object while the field with the rule, and everything in it, stays
// unchanged.
var exceptions = map[string][]exception{
	"0.0.2": {
		{"^.spec", "must be at least max(16 + 4·threads, 10 + 5·threads)",
			"memcached 1.6.45, which also listens on IPv6, has no file left for a client; " +
				"1.6.18, which takes 4 for each thread, answered a few clients"},
		{"^.spec", "must be at least 1Mi with no_chunked_items or no_modern", neverStarted},
		{"^.spec", "ClusterIP needs spec.workload StatefulSet", newField},
		{"^.spec", "needs spec.workload StatefulSet", newField},
		{"^.spec", "cannot be combined with spec.tls or spec.auth", newField},
		{"^.spec", "must not be spec.containerPort, which memcached listens on", newField},
		{"^.spec", "must be at least 2·threads·maxItemSize", newField},
		{"^.spec", "must be at least (proxy.size + 1)·(proxy.threads + 2) + 16 + 5·threads", newField},
		{"^.spec", "must be ClusterIP without spec.proxy or spec.serverAddresses ClusterIP", newField},
		{"^.spec", "needs spec.workload StatefulSet, whose servers the operator replaces, and spec.metrics", newField},
		{"^.spec", "needs spec.proxy: without proxies, clients choose the server by the key", newField},
		{"^.spec", "must be at least spec.memory + 48Mi + 4Mi·threads",
			"the kernel killed the server when its cache filled; the rule lets an object keep the limit that it has"},
		{"^.spec.extraArgs", "must not hold no_maxconns_fast, nor no_modern",
			"a full server was killed with all that it held, because it did not answer its probe"},
		{"^.spec.extraArgs", "must not hold temporary_ttl together with no_lru_maintainer", neverStarted},
		{"^.spec.extraArgs", "must not hold hot_lru_pct and warm_lru_pct with a sum above 80", neverStarted},
		{"^.spec.extraArgs[*]", "must not be so close to 1 that memcached takes it for 1", neverStarted},
		{"^.spec.pod", "key must be like the key of a label", neverMade},
		{"^.spec.pod", "operator must be Exists, Equal, Lt or Gt", neverMade},
		{"^.spec.pod", "operator must be Exists where there is no key", neverMade},
		{"^.spec.pod", "value must be like the value of a label", neverMade},
		{"^.spec.pod", "effect must be NoSchedule, PreferNoSchedule, NoExecute", neverMade},
		{"^.spec.pod", "effect must be NoExecute where tolerationSeconds is set", neverMade},
		{"^.spec.pod.annotations", "must have at most 255 KiB in all",
			"above 256 KiB " + neverMade + ", and the operator's own share them"},
		{"^.spec.pod.labels", "must not use the prefixes app.kubernetes.io/, apps.kubernetes.io/ and",
			"workload controllers write these labels"},
		{"^.spec.pod.resources", "hugepages and extended resources must have a limit", neverMade},
		{"^.spec.pod.resources", "extended resources must be whole numbers", neverMade},
		{"^.spec.pod.resources", "hugepages must be named by the size of a page", neverMade + ", or no node has such pages"},
		{"^.spec.pod.resources.limits", "names of extended resources must be like", neverMade},
		{"^.spec.pod.resources.requests", "names of extended resources must be like", neverMade},
		{"^.spec.pod.securityContext", "must be from 1 to 2147483647: memcached refuses to run as root", neverStarted},
		{"^.spec.pod.securityContext", "must be from 0 to 2147483647", neverMade},
		{"^.spec.pod.securityContext", "must be Always or OnRootMismatch", neverMade},
		{"^.spec.pod.securityContext", "must be Merge or Strict", neverMade},
		{"^.spec.pod.securityContext", "must be MountOption or Recursive", neverMade},
		{"^.spec.pod.securityContext", "type must be RuntimeDefault, Unconfined or Localhost", neverMade},
		{"^.spec.pod.securityContext", "names must be safe sysctls",
			"a kubelet refuses other sysctls unless it is configured to allow them"},
		{"^.spec.pod.securityContext", "must not ask for hostProcess", neverMade},
		{"^.spec.pod.affinity", "nodeSelectorTerms must not be empty", neverMade},
		{"^.spec.pod.affinity", "matchExpressions must have values with In and NotIn", neverMade},
		{"^.spec.pod.affinity", "weight must be from 1 to 100", neverMade},
		{"^.spec.pod.affinity", "topologyKey must name a label of nodes", neverMade},
		{"^.spec.pod.topologySpreadConstraints[*]", "must be at least 1", neverMade},
		{"^.spec.pod.topologySpreadConstraints[*]", "must name the label of nodes", neverMade},
		{"^.spec.pod.topologySpreadConstraints[*]", "must be DoNotSchedule or ScheduleAnyway", neverMade},
		{"^.spec.pod.topologySpreadConstraints[*]", "must be Honor or Ignore", neverMade},
		{"^.spec.pod.topologySpreadConstraints[*]", "matchExpressions must have values with In and NotIn", neverMade},
	},
}

// TestCompare compares the CRD with that of the last release. The CRD must accept all that the last one accepted,
// unless an exception names the rule and its reason, and no default may change.
func TestCompare(t *testing.T) {
	version, commit := output(t, "tools/catalog", "last"), "HEAD" // before the first release, with itself
	if version != "" {
		commit = output(t, "tools/release-commit", version)
	}
	last := parse(t, output(t, "git", "show", commit+":"+crdFile))
	now := func() *apiextensionsv1.CustomResourceDefinition {
		text, err := os.ReadFile(filepath.Join(root, crdFile))
		if err != nil {
			t.Fatal(err)
		}
		return parse(t, string(text))
	}
	for _, problem := range compare(t, last.DeepCopy(), now(), exceptions[version]) {
		t.Errorf("compared with v%s: %s", version, problem)
	}
	for _, e := range exceptions[version] {
		t.Logf("v%s accepted in %s what the rule %q refuses: %s", version, e.field, e.message, e.reason)
	}

	// The comparison finds each incompatible change.
	for name, tighten := range map[string]func(spec *apiextensionsv1.JSONSchemaProps){
		"a rule without exception": func(spec *apiextensionsv1.JSONSchemaProps) {
			spec.XValidations = append(spec.XValidations, apiextensionsv1.ValidationRule{Rule: "self.size < 3",
				Message: "must be small"})
		},
		"a changed rule": func(spec *apiextensionsv1.JSONSchemaProps) {
			memory := spec.Properties["memory"]
			memory.XValidations[0].Rule = "self == '64Mi'"
			spec.Properties["memory"] = memory
		},
		"a maximum": func(spec *apiextensionsv1.JSONSchemaProps) {
			size := spec.Properties["size"]
			*size.Maximum = 3
			spec.Properties["size"] = size
		},
		"a default": func(spec *apiextensionsv1.JSONSchemaProps) {
			size := spec.Properties["size"]
			size.Default.Raw = []byte("2")
			spec.Properties["size"] = size
		},
		"a removed field": func(spec *apiextensionsv1.JSONSchemaProps) { delete(spec.Properties, "paused") },
	} {
		tight := now()
		spec := tight.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		tighten(&spec)
		tight.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = spec
		if problems := compare(t, last.DeepCopy(), tight, exceptions[version]); len(problems) != 1 {
			t.Errorf("%s: want one problem, got %q", name, problems)
		}
	}
}

// compare returns what a CRD refuses or changes that the last one accepted. crdify compares everything except CEL
// rules, of which it only knows that they differ. So compare removes the rules first, and requires an exception for
// each new rule.
func compare(t *testing.T, last, now *apiextensionsv1.CustomResourceDefinition,
	exceptions []exception) (problems []string) {
	t.Helper()
	before, existed := map[string][]string{}, map[string]bool{}
	properties("^", last.Spec.Versions[0].Schema.OpenAPIV3Schema,
		func(field string, _ *apiextensionsv1.JSONSchemaProps) { existed[field] = true })
	for field, rules := range withoutRules(last) {
		for _, rule := range rules {
			before[field] = append(before[field], rule.Rule)
		}
	}
	for field, rules := range withoutRules(now) {
		for _, rule := range rules {
			excepted := slices.ContainsFunc(exceptions, func(e exception) bool {
				return e.field == field && strings.HasPrefix(rule.Message, e.message) && e.reason != ""
			})
			if existed[field] && !slices.Contains(before[field], rule.Rule) && !excepted {
				problems = append(problems, fmt.Sprintf("%s: a new rule that no exception names: %s: %s", field, rule.Message,
					rule.Rule))
			}
		}
	}
	dir := t.TempDir()
	write := func(name string, v any) string {
		text, err := yaml.Marshal(v)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, name)
	}
	cmd := exec.Command(root+"/bin/crdify", "--config", root+"/tools/crdify/config.yaml", "file://"+write("last.yaml",
		last), "file://"+write("now.yaml", now))
	if out, err := cmd.CombinedOutput(); err != nil {
		problems = append(problems, fmt.Sprintf("%v: %s", err, out))
	}
	return problems
}

// withoutRules removes the rules from a CRD and returns them by field, with the paths that crdify writes.
func withoutRules(crd *apiextensionsv1.CustomResourceDefinition) map[string]apiextensionsv1.ValidationRules {
	found := map[string]apiextensionsv1.ValidationRules{}
	properties("^", crd.Spec.Versions[0].Schema.OpenAPIV3Schema, func(field string, s *apiextensionsv1.JSONSchemaProps) {
		if len(s.XValidations) > 0 {
			found[field], s.XValidations = s.XValidations, nil
		}
	})
	return found
}

// properties calls visit with a field of a schema and with all fields below it.
func properties(field string, s *apiextensionsv1.JSONSchemaProps,
	visit func(field string, s *apiextensionsv1.JSONSchemaProps)) {
	visit(field, s)
	for name, property := range s.Properties {
		properties(field+"."+name, &property, visit)
		s.Properties[name] = property
	}
	if s.Items != nil && s.Items.Schema != nil {
		properties(field+"[*]", s.Items.Schema, visit)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		properties(field+"[*]", s.AdditionalProperties.Schema, visit)
	}
}

func parse(t *testing.T, text string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict([]byte(text), crd); err != nil {
		t.Fatal(err)
	}
	if len(crd.Spec.Versions) != 1 {
		t.Fatalf("want one version, got %d", len(crd.Spec.Versions))
	}
	return crd
}

// output runs a command at the root of the repository and returns what it prints.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	if strings.Contains(name, "/") {
		name = filepath.Join(root, name)
	}
	name, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	if name, err = filepath.Abs(name); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(name, args...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v", name, args, err)
	}
	return strings.TrimSpace(string(out))
}
