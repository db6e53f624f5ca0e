package simulation

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/internal/testing/apiserver"
	"github.com/example/memcached-operator/internal/testing/manifest"
	"github.com/example/memcached-operator/internal/testing/specs"
	"github.com/example/memcached-operator/tests/figure"
)

var (
	number = flag.Int("specs", 200, "the number of generated specs that TestSpecs sends to the API server")
	most   = flag.Int("accepted", 10000, "the number of accepted specs that TestSpecs gives the operator, at most")
	seed   = flag.Uint64("seed", 1, "the seed of the generated specs")
)

// TestSpecs sends generated specs to the API server. It refuses a spec with a message that names the field; otherwise
// the Memcached becomes Ready, or Stalled with a message that says what to change. A Memcached whose spec was another
// one before gets the same children as a new one.
func TestSpecs(t *testing.T) {
	apiserver.Need(t)
	server, err := startServer()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("seed %d", *seed)
	run := newSpecRun(server)
	run.sendAll(t, generate(t))
	t.Run("accepted", func(t *testing.T) {
		for i, chain := range run.chains() {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				run.changeAll(t, chain)
			})
		}
	})
	t.Log("\n" + run.table())
	if *update && os.Getenv("CLUSTER") == "node" && !t.Failed() {
		if err := figure.Publish(results, "make specs CLUSTER=node", run.table()); err != nil {
			t.Fatal(err)
		}
	}
}

// foundSpecs are changes of a spec that once ended wrong, each with what went wrong.
var foundSpecs = map[string][]string{
	"the CAs of clients were taken for removed": {`{tls: {secretName: certificate, clientAuth: Require}}`,
		`{tls: {secretName: certificate}}`, `{}`, `{tls: {secretName: certificate, clientAuth: Request}}`},
	"an annotation stayed that was removed while paused": {`{service: {annotations: {a: b}}}`, `{paused: true}`, `{}`},
	"an emptied object became null at first": {`{}`, `{pod: {affinity: {podAntiAffinity: {}}}}`,
		`{pod: {securityContext: {seLinuxOptions: {level: s0}}, containerSecurityContext: {capabilities: {drop: [ALL]}}}}`,
		`{pod: {securityContext: {seLinuxOptions: {}}, containerSecurityContext: {capabilities: {}}}}`},
	"the service account stayed": {`{pod: {serviceAccountName: caches}}`, `{}`},
	"the memory limit of the agent overflowed": {
		`{agent: {resources: {limits: {memory: 97Pi}}}, metrics: {}}`, `{metrics: {}}`},
}

// TestFoundSpecs tries the changes of a spec that TestSpecs and others found to end wrong.
func TestFoundSpecs(t *testing.T) {
	apiserver.Need(t)
	server, err := startServer()
	if err != nil {
		t.Fatal(err)
	}
	for name, texts := range foundSpecs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			chain := make([]map[string]any, len(texts))
			for i, text := range texts {
				if err := yaml.Unmarshal([]byte(text), &chain[i]); err != nil {
					t.Fatal(err)
				}
			}
			newSpecRun(server).changeAll(t, chain)
		})
	}
}

// TestSpecsStart: a real memcached starts with the arguments of each spec that must be accepted.
func TestSpecsStart(t *testing.T) {
	apiserver.Need(t)
	if os.Getenv("CLUSTER") != "node" {
		t.Skip("make specs CLUSTER=node runs it")
	}
	server, err := startServer()
	if err != nil {
		t.Fatal(err)
	}
	run := newSpecRun(server)
	for i, text := range specs.Accepted {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			var spec map[string]any
			if err := yaml.Unmarshal([]byte(text), &spec); err != nil {
				t.Fatal(err)
			}
			run.create(t, spec)
		})
	}
}

// generate returns the specs to try. At most half of them are pairs of fields.
func generate(t *testing.T) (all []string) {
	t.Helper()
	schema, err := specs.NewSchema(manifest.Schema(t).Properties["spec"])
	if err != nil {
		t.Fatal(err)
	}
	pairs := schema.Pairs()
	for i := 0; i < len(pairs); i += max(1, (2*len(pairs)+*number-1) / *number) {
		all = append(all, pairs[i])
	}
	return append(all, schema.Random(*seed, *number-len(all))...)
}

// specRun tries specs, and counts what becomes of them.
type specRun struct {
	server   *server
	sent     int
	accepted []map[string]any

	mu       sync.Mutex
	refusals map[string]int  // by field and rule
	outcomes map[string]int  // of new Memcacheds
	changes  int             // after which the children are those of a new Memcached
	started  map[string]bool // whether a real memcached started, by its arguments
}

func newSpecRun(s *server) *specRun {
	return &specRun{server: s, refusals: map[string]int{}, outcomes: map[string]int{other: 0}, started: map[string]bool{}}
}

// sendAll sends specs to the API server, which stores none of them.
func (r *specRun) sendAll(t *testing.T, all []string) {
	t.Helper()
	door, errs := client.WithFieldValidation(r.server.api, metav1.FieldValidationStrict), make([]error, len(all))
	parsed := make([]map[string]any, len(all))
	var group errgroup.Group
	group.SetLimit(8)
	for i, text := range all {
		if err := yaml.Unmarshal([]byte(text), &parsed[i]); err != nil {
			t.Fatal(err)
		}
		group.Go(func() error {
			errs[i] = door.Create(t.Context(), memcached("default", maps.Clone(parsed[i])), client.DryRunAll)
			return nil
		})
	}
	_ = group.Wait() // the errors are in errs
	r.sent = len(all)
	for i, err := range errs {
		switch rule := specs.Refusal(err); {
		case err == nil && len(all[i]) > 3<<19: // a dry run stores nothing
			r.refusals["spec: more than the 1.5 MiB that etcd stores"]++
		case err == nil:
			r.accepted = append(r.accepted, parsed[i])
		case rule == "":
			t.Errorf("spec %.2000s: the refusal names no field and rule: %.2000v", all[i], err)
		default:
			r.refusals[rule]++
		}
	}
}

// chainLength is the number of specs that a Memcached gets one after another.
const chainLength = 25

// chains returns accepted specs in a random order, as chains of specs that a Memcached can have one after another.
func (r *specRun) chains() (all [][]map[string]any) {
	order := rand.New(rand.NewPCG(*seed, 0)).Perm(len(r.accepted))
	byWorkload := map[bool][]map[string]any{}
	for _, i := range order[:min(*most, len(order))] {
		spec := r.accepted[i]
		byWorkload[isStatefulSet(spec)] = append(byWorkload[isStatefulSet(spec)], spec)
	}
	return slices.AppendSeq(slices.Collect(slices.Chunk(byWorkload[false], chainLength)),
		slices.Chunk(byWorkload[true], chainLength))
}

// isStatefulSet reports whether a spec is of a workload that no change of the spec can give another Memcached.
func isStatefulSet(spec map[string]any) bool { return spec["workload"] == "StatefulSet" }

// changeAll gives one Memcached all specs of a chain, and then the first one again. After each change, its children are
// those of a new Memcached with the spec.
func (r *specRun) changeAll(t *testing.T, chain []map[string]any) {
	t.Helper()
	w := newSpecWorld(t, r.server)
	var first string
	var before map[string]any
	for i, spec := range slices.Concat(chain, chain[:1]) {
		passed := t.Run(strconv.Itoa(i), func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("from spec %s to %s", w.json(before), w.json(spec))
				}
			}()
			want := first
			if i < len(chain) {
				want = r.create(t, spec)
			}
			if i == 0 {
				first = want
			}
			w.TB = t
			w.put(spec)
			w.settle()
			if diff := difference(want, w.end(spec)); diff != "" {
				t.Fatalf("the end differs from that of a new Memcached:\n%s", diff)
			}
			if before != nil {
				r.count(func() { r.changes++ })
			}
		})
		before, w.TB = spec, t
		if !passed {
			before, w = nil, newSpecWorld(t, r.server)
		}
	}
}

// create creates a Memcached, and returns what end returns for it.
func (r *specRun) create(t *testing.T, spec map[string]any) string {
	t.Helper()
	w := newSpecWorld(t, r.server)
	w.put(spec)
	w.settle()
	r.startMemcached(w)
	outcome := w.outcome(spec)
	r.count(func() { r.outcomes[outcome]++ })
	return w.end(spec)
}

func (r *specRun) count(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
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

// put creates the Memcached, or changes its spec.
func (w *world) put(spec map[string]any) {
	w.Helper()
	w.history, w.reconciles = w.history[len(w.history)-1:], 0
	for kind := range w.delivered {
		w.delivered[kind] = 0
	}
	w.connection.arm(0, nil)
	mc := memcached(w.Key.Namespace, small(spec))
	if w.now().Memcached() == nil {
		w.Must(w.API.Create(w.Ctx, mc))
		return
	}
	patch, err := json.Marshal([]any{map[string]any{"op": "replace", "path": "/spec", "value": mc.Object["spec"]}})
	w.Must(err)
	w.Must(w.API.Patch(w.Ctx, memcached(w.Key.Namespace, nil), client.RawPatch(types.JSONPatchType, patch)))
}

// small returns a spec with few pods, which soon are available.
func small(spec map[string]any) map[string]any {
	spec = maps.Clone(spec)
	limit := func(object, field string, most float64) {
		in := spec
		if object != "" {
			if in, _ = spec[object].(map[string]any); in == nil {
				return
			}
			in = maps.Clone(in)
			spec[object] = in
		}
		if n, ok := in[field].(float64); ok && n > most {
			in[field] = most
		}
	}
	limit("", "size", 3)
	limit("proxy", "size", 2)
	limit("rollout", "minReadySeconds", 5)
	return spec
}

// other is an outcome that must not be.
const other = "anything else, or a panic"

// outcome returns what the status of the Memcached says: Ready, Paused, Stalled with a message, or which Secret is
// missing.
func (w *world) outcome(spec map[string]any) string {
	w.Helper()
	mc := w.now().Memcached()
	stalled := meta.FindStatusCondition(mc.Status.Conditions, v1alpha1.ConditionStalled)
	switch {
	case mc.Spec.Paused && (w.ready() == nil || mc.Status.Phase == v1alpha1.PhasePaused):
		return "Paused"
	case w.ready() == nil:
		return "Ready"
	case stalled != nil && stalled.Status == metav1.ConditionTrue && stalled.Message != "":
		w.Logf("spec %s: Stalled: %s", w.json(spec), stalled.Message)
		return "Stalled: " + stalled.Reason
	case strings.Contains(w.json(mc.Status.Conditions), "SecretNotFound: there is no Secret"):
		return "waits for a Secret"
	}
	w.Errorf("spec %s: the Memcached is neither Ready nor Stalled: %s", w.json(spec), w.json(mc.Status))
	return other
}

func (w *world) json(v any) string {
	w.Helper()
	b, err := json.Marshal(v)
	w.Must(err)
	if len(b) > 2000 {
		return string(b[:2000]) + "…"
	}
	return string(b)
}

// end describes the outcome of a spec and the children, without what depends on the specs before.
func (w *world) end(spec map[string]any) string {
	w.Helper()
	lines := []string{w.outcome(spec)}
	for kind, objects := range w.now() {
		for _, obj := range objects {
			if kind == "Secret" || kind == "ReplicaSet" || kind == "Pod" || kind == "Memcached" || lines[0] != "Ready" {
				continue
			}
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
			w.Must(err)
			delete(content, "status")
			child := &unstructured.Unstructured{Object: content}
			child.SetManagedFields(nil)
			unstructured.RemoveNestedField(content, "metadata", "annotations", v1alpha1.TemplateRecordAnnotation)
			unstructured.RemoveNestedField(content, "metadata", "labels", v1alpha1.GenerationLabel)
			text := nodePorts.ReplaceAllString(w.describe(child), `odePort":0`)
			for _, field := range lasting {
				if _, isSet, _ := unstructured.NestedString(spec, field.path...); !isSet {
					text = field.text.ReplaceAllString(text, "")
				}
			}
			lines = append(lines, kind+" "+text)
		}
	}
	slices.Sort(lines[1:])
	return strings.Join(lines, "\n")
}

// lasting are the fields of children that keep their value once the spec no longer sets them: the API server does not
// default them again, or the operator keeps the image.
var lasting = []struct {
	path []string // in the spec
	text *regexp.Regexp
}{
	{[]string{"image"}, regexp.MustCompile(`"image":"[^"]*",`)},
	{[]string{"pod", "imagePullPolicy"}, regexp.MustCompile(`"imagePullPolicy":"\w+",`)},
	{[]string{"service", "ipFamilyPolicy"}, regexp.MustCompile(`"ipFamilyPolicy":"\w+",`)},
}

var nodePorts = regexp.MustCompile(`odePort":\d+`) // chosen at random

// table returns the numbers as tables in Markdown.
func (r *specRun) table() string {
	rows := []string{"| | number |", "|---|--:|"}
	row := func(name string, n int) { rows = append(rows, fmt.Sprintf("| %s | %d |", name, n)) }
	row("specs", r.sent)
	row("accepted", len(r.accepted))
	operated := 0
	for _, n := range r.outcomes {
		operated += n
	}
	row("given to the operator", operated)
	for _, outcome := range slices.Sorted(maps.Keys(r.outcomes)) {
		row(outcome, r.outcomes[outcome])
	}
	row("changes to another spec that end as a new Memcached", r.changes)
	started := 0
	for _, ok := range r.started {
		if ok {
			started++
		}
	}
	row("arguments of containers with which a real memcached started", started)
	rows = append(rows, "", "| refused by | specs |", "|---|--:|")
	rules := slices.SortedFunc(maps.Keys(r.refusals), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.refusals[b], r.refusals[a]), cmp.Compare(a, b))
	})
	others := 0
	for i, rule := range rules {
		if i >= 25 && !testing.Verbose() || i >= 25 && *update {
			others += r.refusals[rule]
			continue
		}
		field, message, _ := strings.Cut(rule, ": ")
		row("`"+field+"`: "+message, r.refusals[rule])
	}
	if others > 0 {
		row(fmt.Sprintf("%d further rules", len(rules)-25), others)
	}
	return strings.Join(append(rows, ""), "\n")
}
