package desired

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/status"
	"github.com/example/memcached-operator/internal/testing/manifest"
	"github.com/example/memcached-operator/internal/testing/specs"
)

const (
	replaces  = "replaces the servers; without proxy, they start empty."
	inProxy   = " In proxy, a change touches no server."
	untouched = "A change touches no server."
	moves     = "touches no server, but changes status.servers, so that clients miss most keys."
)

// effects are the sentences in which the description of a field says what a change does, each with the changes that may
// replace servers; nil for none. In docs/reference/api.md, a mark stands for the sentence.
var effects = map[string]func(change) bool{
	"A change " + replaces: func(change) bool { return true },
	"A change replaces the servers that have an agent; without proxy, they start empty.": change.hasAgent,
	"In a Deployment, or with an older Kubernetes, a change " + replaces: func(c change) bool {
		return c.after.Spec.Workload == v1alpha1.WorkloadDeployment || !c.canResize
	},
	"In pod, a change " + replaces + inProxy:           change.isInPod,
	"In pod and agent, a change " + replaces + inProxy: change.isInPod,
	untouched:                        nil,
	"A change " + moves:              nil,
	"Adding or removing it " + moves: nil,
	"A change adds or removes servers and replaces none.":                   nil,
	"Setting it touches no server. Removing it applies what was held back.": nil,
	"It cannot be changed.": nil,
}

// change adds a field to a Memcached.
type change struct {
	field         string
	before, after *v1alpha1.Memcached
	canResize     bool
}

func (c change) hasAgent() bool {
	s := c.after.Spec
	return s.Workload == v1alpha1.WorkloadStatefulSet || s.TLS != nil || s.Auth != nil || s.Metrics != nil
}

func (c change) isInPod() bool {
	return strings.HasPrefix(c.field, "pod.") || strings.HasPrefix(c.field, "agent.") && c.hasAgent()
}

// replaced reports whether the change replaces servers, and whether it replaces proxies.
func (c change) replaced(t *testing.T) (servers, proxies bool) {
	t.Helper()
	o := Options{DefaultImage: "memcached:1", AgentImage: "operator:1", CanResize: c.canResize}
	before := storeServers(t, c.before, nil, Current{}, o)
	after := storeServers(t, c.after, before, Current{}, o)
	servers = !before.sameTemplate(after)
	if c.after.Spec.Workload == v1alpha1.WorkloadStatefulSet { // whose servers the operator replaces
		servers = before.digest() != after.digest()
	}
	old := NewPlan(c.before, Resolve(c.before, Current{}, o)).Proxies
	now := NewPlan(c.after, Resolve(c.after, Current{}, o)).Proxies
	return servers, old != nil && now != nil && old.Template != now.Template
}

// changes returns changes that add a field to some of the specs.
func changes(t *testing.T, field string, all []map[string]any) (some []change) {
	t.Helper()
	parse := func(spec map[string]any) *v1alpha1.Memcached {
		b, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		return manifest.Parse(t, manifest.Named("m", string(b)))
	}
	path := strings.Split(field, ".")
	for _, spec := range all {
		if _, ok, _ := unstructured.NestedFieldNoCopy(spec, path...); !ok || len(some) >= 100 {
			continue
		}
		for _, workload := range []string{"Deployment", "StatefulSet"} {
			with := runtime.DeepCopyJSON(spec)
			with["workload"] = workload
			if with["proxy"] != nil || with["discovery"] != nil { // what the API server refuses otherwise
				with["workload"] = "StatefulSet"
				delete(with, "tls")
				delete(with, "auth")
			}
			without := runtime.DeepCopyJSON(with)
			unstructured.RemoveNestedField(without, path...)
			some = append(some, change{field, parse(without), parse(with), field != "memory" || len(some)%4 < 2})
		}
	}
	return some
}

// ofKubernetes are the fields below fields whose types are those of Kubernetes, and what is not a field.
var ofKubernetes = regexp.MustCompile(`(affinity|ecurityContext)\.|[\]}]|^$`)

type set = sets.Set[string]

// TestEffects: what the description of each field says of a change is true, and so is what the pages say.
func TestEffects(t *testing.T) {
	t.Parallel()
	var all []map[string]any
	for _, text := range append(specs.Generate(300), specs.Accepted...) {
		var spec map[string]any
		if err := yaml.Unmarshal([]byte(text), &spec); err != nil {
			t.Fatal(err)
		}
		if spec["size"] == 1000.0 {
			spec["size"] = 200.0 // is faster
		}
		if len(text) < 1<<14 {
			all = append(all, spec)
		}
	}
	addresses := func(mc *v1alpha1.Memcached) []string {
		port := corev1.ServicePort{Name: names.Port, Port: mc.Spec.ContainerPort}
		return status.Addresses(mc, func(string) (*corev1.Service, bool) {
			return &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1", Ports: []corev1.ServicePort{port}}}, true
		})
	}
	fields, proxies, moved := set{}, set{}, set{}
	schema := manifest.Schema(t)
	spec := schema.Properties["spec"]
	manifest.Walk("", &spec, func(path string, schema *apiextensionsv1.JSONSchemaProps) {
		if ofKubernetes.MatchString(path) {
			return
		}
		field, text := path[1:], strings.Join(strings.Fields(schema.Description), " ")
		fields.Insert(field)
		found := slices.DeleteFunc(slices.Collect(maps.Keys(effects)), func(sentence string) bool {
			return !strings.Contains(text, sentence)
		})
		if name := field[strings.LastIndex(field, ".")+1:] + " "; len(found) != 1 || !strings.HasPrefix(text, name) {
			t.Errorf("%s: the description must begin with the name and have one sentence of effects: %s", field, text)
			return
		}
		said := found[0]
		may := effects[said]
		mayReplace, replace := set{}, set{} // in which clusters, and by which workload
		some := changes(t, field, all)
		if len(some) == 0 {
			t.Errorf("%s: no spec has it", field)
		}
		for _, c := range some {
			if !slices.Equal(addresses(c.before), addresses(c.after)) {
				moved.Insert(field)
			}
			if c.before.Spec.Workload != c.after.Spec.Workload { // is refused
				continue
			}
			servers, proxy := c.replaced(t)
			if proxy {
				proxies.Insert(field)
			}
			where := fmt.Sprintf("%s, resize %t", c.after.Spec.Workload, c.canResize)
			if may != nil && may(c) {
				mayReplace.Insert(where)
			} else if servers {
				t.Errorf("%s: %q, but its change replaces the servers of %.500s", field, said, fmt.Sprint(c.after.Spec))
			}
			if servers {
				replace.Insert(where)
			}
		}
		if never := mayReplace.Difference(replace); len(never) > 0 {
			t.Errorf("%s: %q, but no change of it replaces servers with %q", field, said, sets.List(never))
		}
		if moves := strings.HasSuffix(said, moves); moves && !moved.Has(field) || said == untouched && moved.Has(field) {
			t.Errorf("%s: %q, but a change of it changes status.servers: %t", field, said, moved.Has(field))
		}
	})
	page, err := os.ReadFile("../../docs/how-to/sizing.md")
	if err != nil {
		t.Fatal(err)
	}
	for field := range proxies { // the page names parts of proxy, and other fields as a whole
		if strings.Count(strings.TrimPrefix(field, "proxy."), ".") > 0 {
			proxies.Delete(field)
		}
	}
	compare := func(text, begins string, want set) {
		t.Helper()
		_, text, _ = strings.Cut(text+"\n", begins)
		text, _, _ = strings.Cut(text, ".\n")
		got := fields.Intersection(sets.New(regexp.MustCompile(`[a-zA-Z.]*[a-zA-Z]`).FindAllString(text, -1)...))
		if !got.Equal(want) {
			t.Errorf("%s: got %q, want %q", begins, sets.List(got), sets.List(want))
		}
	}
	compare(string(page), "These changes replace proxies", proxies)
	ofServers := schema.Properties["status"].Properties["servers"].Description
	compare(ofServers, "They change only with", moved.Delete("workload"))
}
