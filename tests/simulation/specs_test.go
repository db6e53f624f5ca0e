package simulation

import (
	"encoding/json"
	"flag"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/tests/manifest"
	"github.com/example/memcached-operator/tests/specs"
)

var (
	number = flag.Int("specs", 200, "the number of generated specs that TestSpecs sends to the API server")
	seed   = flag.Uint64("seed", 1, "the seed of the generated specs")
)

// brokenRule matches the messages of a rule that fails instead of refusing a value.
var brokenRule = regexp.MustCompile(`no such key|no such overload|cost|evaluat|overflow|index out of`)

// TestSpecs sends generated specs to the API server. It refuses a spec with a message that names the field; otherwise
// the Memcached becomes Ready, or Stalled with a message that says what to change. A Memcached whose spec was another
// one before gets the same children as a new one.
func TestSpecs(t *testing.T) {
	server, err := startServer()
	if err != nil {
		t.Fatal(err)
	}
	schema, err := specs.NewSchema(manifest.Schema(t).Properties["spec"])
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	pairs := schema.Pairs()
	for i := 0; i < len(pairs); i += max(1, 2*len(pairs) / *number) { // half of the specs at most
		all = append(all, pairs[i])
	}
	all = append(all, schema.Random(*seed, *number-len(all))...)

	door, refusals := client.WithFieldValidation(server.api, metav1.FieldValidationStrict), map[string]int{}
	var accepted []map[string]any
	for _, text := range all {
		spec := map[string]any{}
		if err := yaml.Unmarshal([]byte(text), &spec); err != nil {
			t.Fatal(err)
		}
		err := door.Create(t.Context(), memcached("default", spec), client.DryRunAll)
		switch rule := refusal(err); {
		case err == nil:
			accepted = append(accepted, spec)
		case rule == "" || brokenRule.MatchString(err.Error()):
			t.Errorf("spec %s: the refusal names no field: %v", text, err)
		default:
			refusals[rule]++
		}
	}
	t.Logf("%d of %d specs are accepted; refusals by field and rule:", len(accepted), len(all))
	for _, rule := range slices.Sorted(maps.Keys(refusals)) {
		t.Logf("%5d %s", refusals[rule], rule)
	}

	var mu sync.Mutex
	outcomes, changes := map[string]int{}, 0
	t.Run("accepted", func(t *testing.T) {
		for i, from := range accepted {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				outcome, same := runSpecs(t, server, from, accepted[(i+1)%len(accepted)])
				mu.Lock()
				defer mu.Unlock()
				outcomes[outcome]++
				if same {
					changes++
				}
			})
		}
	})
	t.Logf("outcomes %v; %d changes from one spec to the next end as the next one alone", outcomes, changes)
}

// runSpecs lets a Memcached with a spec settle, and changes the spec to another one. It returns the outcome of the
// first spec, and whether the children are then those of a new Memcached with the second one.
func runSpecs(t *testing.T, server *server, from, to map[string]any) (outcome string, same bool) {
	t.Helper()
	w := newSpecWorld(t, server)
	w.createUnstructured(from)
	w.settle()
	outcome = w.outcome(from)

	to = maps.Clone(to)
	delete(to, "workload") // it cannot be changed
	for _, stays := range []string{"workload", "image"} {
		if from[stays] != nil && to[stays] == nil {
			to[stays] = from[stays]
		}
	}
	patch, err := json.Marshal([]any{map[string]any{"op": "replace", "path": "/spec", "value": small(to)}})
	w.must(err)
	err = w.api.Patch(w.ctx, memcached(w.key.Namespace, nil), client.RawPatch(types.JSONPatchType, patch))
	if refusal(err) != "" { // the other spec needs another workload
		return outcome, false
	}
	w.must(err)
	w.settle()
	second := w.outcome(to)

	fresh := newSpecWorld(t, server)
	fresh.createUnstructured(to)
	fresh.settle()
	if want := fresh.outcome(to); want != second {
		t.Errorf("from spec %s to %s: the outcome is %s, and that of a new Memcached %s", w.json(from), w.json(to), second,
			want)
	}
	if second != "Ready" {
		return outcome, false
	}
	if diff := difference(fresh.children(), w.children()); diff != "" {
		t.Errorf("from spec %s to %s: the children differ from those of a new Memcached:\n%s", w.json(from), w.json(to), diff)
		return outcome, false
	}
	return outcome, true
}

func newSpecWorld(t *testing.T, server *server) *world {
	t.Helper()
	w := newWorld(t, server, "")
	w.mayStall = true
	for _, name := range []string{"certificate", "passwords", "a.b-c"} {
		content := w.certificate()
		content["authfile"] = []byte("user:password\n")
		w.writeSecret(name, content)
	}
	return w
}

func memcached(namespace string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.GroupVersion.String(),
		"kind": "Memcached", "metadata": map[string]any{"name": "cache", "namespace": namespace}}}
	if spec != nil {
		u.Object["spec"] = spec
	}
	return u
}

func (w *world) createUnstructured(spec map[string]any) {
	w.Helper()
	w.must(w.api.Create(w.ctx, memcached(w.key.Namespace, small(spec))))
}

// small returns a spec with few pods.
func small(spec map[string]any) map[string]any {
	spec = maps.Clone(spec)
	limit := func(in map[string]any, most float64) {
		if n, ok := in["size"].(float64); ok && n > most {
			in["size"] = most
		}
	}
	limit(spec, 3)
	if proxy, ok := spec["proxy"].(map[string]any); ok {
		proxy = maps.Clone(proxy)
		limit(proxy, 2)
		spec["proxy"] = proxy
	}
	return spec
}

// outcome returns what the status of the Memcached says: Ready, Paused, or Stalled with a message.
func (w *world) outcome(spec map[string]any) string {
	w.Helper()
	mc := w.now().memcached()
	stalled := meta.FindStatusCondition(mc.Status.Conditions, v1alpha1.ConditionStalled)
	switch {
	case w.ready() == nil:
		return "Ready"
	case mc.Status.Phase == v1alpha1.PhasePaused:
		return "Paused"
	case stalled != nil && stalled.Status == metav1.ConditionTrue && stalled.Message != "":
		return "Stalled: " + stalled.Reason
	}
	w.Errorf("spec %s: the Memcached is neither Ready nor Stalled: %s", w.json(spec), w.json(mc.Status))
	return "neither"
}

func (w *world) json(v any) string {
	w.Helper()
	b, err := json.Marshal(v)
	w.must(err)
	if len(b) > 2000 {
		return string(b[:2000]) + "…"
	}
	return string(b)
}

// children describes the children, without what depends on the specs before.
func (w *world) children() string {
	w.Helper()
	var lines []string
	for kind, objects := range w.now() {
		for _, obj := range objects {
			if kind == "Secret" || kind == "ReplicaSet" || kind == "Pod" || kind == "Memcached" {
				continue
			}
			content := map[string]any{}
			w.must(json.Unmarshal([]byte(w.describe(obj)), &content))
			delete(content, "status")
			metadata := content["metadata"].(map[string]any)
			delete(metadata, "managedFields")
			if annotations, ok := metadata["annotations"].(map[string]any); ok {
				delete(annotations, v1alpha1.TemplateRecordAnnotation)
			}
			if labels, ok := metadata["labels"].(map[string]any); ok {
				delete(labels, v1alpha1.GenerationLabel)
			}
			b, err := json.Marshal(content)
			w.must(err)
			text := families.ReplaceAllString(pullPolicy.ReplaceAllString(string(b), ""), "")
			lines = append(lines, kind+" "+text)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// pullPolicy and families match fields that the API server does not default again once the spec no longer sets them.
var (
	pullPolicy = regexp.MustCompile(`"imagePullPolicy":"\w+",`)
	families   = regexp.MustCompile(`"ipFamilyPolicy":"\w+",`)
)

var quoted = regexp.MustCompile(`"[^"]*"|\[\d+\]|\d+`)

// refusal returns the fields and rules by which the API server refused a spec; empty if it named none.
func refusal(err error) string {
	status, ok := err.(apierrors.APIStatus)
	if !ok || !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
		return ""
	}
	if apierrors.IsBadRequest(err) {
		if strings.Contains(err.Error(), "unknown field \"spec.") {
			return "unknown field"
		}
		return ""
	}
	if status.Status().Details == nil || len(status.Status().Details.Causes) == 0 {
		return ""
	}
	var rules []string
	for _, cause := range status.Status().Details.Causes {
		switch {
		case cause.Field == "<nil>": // rules that were not checked, because others are broken
			continue
		case !strings.HasPrefix(cause.Field, "spec"), cause.Message == "":
			return ""
		}
		_, rule, _ := strings.Cut(cause.Message, ": ")
		if i := strings.LastIndex(rule, ": "); i > 0 && len(rule) > 150 {
			rule = rule[i+2:]
		}
		rules = append(rules, quoted.ReplaceAllString(cause.Field, "…")+": "+quoted.ReplaceAllString(rule, "…"))
	}
	slices.Sort(rules)
	return strings.Join(rules[:min(1, len(rules))], "")
}
