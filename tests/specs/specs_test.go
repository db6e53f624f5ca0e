package specs

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/example/memcached-operator/api/v1alpha1"
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
