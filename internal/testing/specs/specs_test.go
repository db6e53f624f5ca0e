package specs

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/internal/testing/manifest"
)

// TestGenerateSetsEveryField: Generate sets every field of the spec, or no test would combine that field with others.
func TestGenerateSetsEveryField(t *testing.T) {
	t.Parallel()
	set := map[string]bool{}
	var note func(path string, value any)
	note = func(path string, value any) {
		set[path] = true
		if fields, ok := value.(object); ok {
			for name, value := range fields {
				note(path+"."+name, value)
			}
		}
	}
	for _, text := range Generate(500) {
		var spec object
		if err := json.Unmarshal([]byte(text), &spec); err != nil {
			t.Fatal(err)
		}
		note("spec", spec)
	}
	var check func(path string, of reflect.Type)
	check = func(path string, of reflect.Type) {
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		if !set[path] {
			t.Errorf("no generated spec sets %s", path)
		}
		if of.Kind() != reflect.Struct || of.PkgPath() != reflect.TypeFor[v1alpha1.Memcached]().PkgPath() {
			return
		}
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			if name != "" {
				name = "." + name
			}
			check(path+name, of.Field(i).Type)
		}
	}
	check("spec", reflect.TypeFor[v1alpha1.MemcachedSpec]())
}

// TestSchemaIsHostile: among random specs are those that tests of the API server are for.
func TestSchemaIsHostile(t *testing.T) {
	t.Parallel()
	props := manifest.Schema(t).Properties["spec"]
	schema, err := NewSchema(props)
	if err != nil {
		t.Fatal(err)
	}
	arguments, labels := props.Properties["extraArgs"], props.Properties["pod"].Properties["labels"]
	most, mostLabels := int(*arguments.MaxItems), int(*labels.MaxProperties)
	longest := int(*arguments.Items.Schema.MaxLength)
	const lookAlikes = "\u0430\uff41\u2010\uff11"
	has := func(part string) func(string) bool {
		return func(text string) bool { return strings.Contains(text, part) }
	}
	type given struct {
		ExtraArgs []string
		Pod       struct{ Labels object }
	}
	hostile := map[string]func(text string, spec given) bool{
		"more than 1 MiB":              func(text string, _ given) bool { return len(text) > 1<<20 },
		"a look-alike in a text":       func(text string, _ given) bool { return strings.ContainsAny(text, lookAlikes) },
		"a thousand terms of affinity": func(text string, _ given) bool { return strings.Count(text, "topologyKey") > 1000 },
		"as many labels as allowed":    func(_ string, s given) bool { return len(s.Pod.Labels) == mostLabels },
		"as many arguments as allowed": func(_ string, s given) bool { return len(s.ExtraArgs) == most },
		"more arguments than allowed":  func(_ string, s given) bool { return len(s.ExtraArgs) > most },
		"an argument longer than allowed": func(_ string, s given) bool {
			return slices.ContainsFunc(s.ExtraArgs, func(arg string) bool { return len(arg) > longest })
		},
		"a line break in an argument": func(_ string, s given) bool { return slices.ContainsFunc(s.ExtraArgs, has("\n")) },
		"NUL in an argument":          func(_ string, s given) bool { return slices.ContainsFunc(s.ExtraArgs, has("\x00")) },
		"an argument twice": func(_ string, s given) bool {
			return len(slices.Compact(slices.Sorted(slices.Values(s.ExtraArgs)))) < len(s.ExtraArgs)
		},
	}
	found := map[string]int{}
	for seed := uint64(1); seed <= 200 && len(found) < len(hostile); seed++ {
		for _, text := range schema.Random(seed, 100) {
			var spec given
			_ = json.Unmarshal([]byte(text), &spec) // it may be of another type
			for name, is := range hostile {
				if is(text, spec) {
					found[name]++
				}
			}
		}
	}
	for name := range hostile {
		t.Logf("%5d have %s", found[name], name)
		if found[name] == 0 {
			t.Errorf("no random spec has %s", name)
		}
	}
}
