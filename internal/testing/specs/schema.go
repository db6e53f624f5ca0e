package specs

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// Schema generates specs from the schema of the CRD, so that a new field is among them at once. Values come from
// Accepted, from Generate, and from the bounds in the schema.
type Schema struct {
	spec   apiextensionsv1.JSONSchemaProps
	values map[string][]any // by the path of a field
}

// NewSchema reads the schema of a spec.
func NewSchema(spec apiextensionsv1.JSONSchemaProps) (*Schema, error) {
	s := &Schema{spec: spec, values: map[string][]any{}}
	for _, text := range slices.Concat(Accepted, Generate(300)) {
		var value any
		if err := yaml.Unmarshal([]byte(text), &value); err != nil {
			return nil, err
		}
		s.learn(&spec, "spec", value)
	}
	return s, nil
}

// learn notes the values of a field and of the fields in it.
func (s *Schema) learn(p *apiextensionsv1.JSONSchemaProps, path string, value any) {
	s.values[path] = append(s.values[path], value)
	switch value := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			if field, ok := p.Properties[name]; ok {
				s.learn(&field, path+"."+name, value[name])
			}
		}
	case []any:
		for _, item := range value {
			if p.Items != nil && p.Items.Schema != nil {
				s.learn(p.Items.Schema, path+"[]", item)
			}
		}
	}
}

// Random returns n specs, the same ones on each call with the same seed. A third is meant to be valid, a third has one
// hostile value, and a third has many.
func (s *Schema) Random(seed uint64, n int) (all []string) {
	for i := range n {
		g := &schemaGenerator{Schema: s, Rand: rand.New(rand.NewPCG(seed, uint64(i))), hostile: []int{0, 1, 100}[i%3]}
		all = append(all, text(g.object(&s.spec, "spec", 4)))
	}
	return all
}

// Pairs returns a spec for every two optional fields, with valid values.
func (s *Schema) Pairs() (all []string) {
	fields := s.optional(&s.spec, nil)
	for i, a := range fields {
		for j, b := range fields[:i] {
			g := &schemaGenerator{Schema: s, Rand: rand.New(rand.NewPCG(uint64(i), uint64(j)))}
			spec := map[string]any{}
			g.set(&s.spec, "spec", spec, a)
			g.set(&s.spec, "spec", spec, b)
			all = append(all, text(spec))
		}
	}
	return all
}

// optional returns the paths of the optional fields, except those in lists and maps.
func (s *Schema) optional(p *apiextensionsv1.JSONSchemaProps, path []string) (all [][]string) {
	for _, name := range slices.Sorted(maps.Keys(p.Properties)) {
		field, here := p.Properties[name], append(slices.Clone(path), name)
		if !slices.Contains(p.Required, name) {
			all = append(all, here)
		}
		if len(path) < 2 {
			all = append(all, s.optional(&field, here)...)
		}
	}
	return all
}

func text(spec any) string {
	b, err := json.Marshal(spec)
	if err != nil {
		panic(err)
	}
	return string(b)
}

type schemaGenerator struct {
	*Schema
	*rand.Rand
	hostile int // the number of hostile values that may follow
}

// set sets a field, and the required fields of those that it is in.
func (g *schemaGenerator) set(p *apiextensionsv1.JSONSchemaProps, path string, in map[string]any, field []string) {
	for _, name := range p.Required {
		if required := p.Properties[name]; in[name] == nil {
			in[name] = g.value(&required, path+"."+name, 4)
		}
	}
	name := field[0]
	next, path := p.Properties[name], path+"."+name
	inner, ok := in[name].(map[string]any)
	switch {
	case len(field) == 1 && !ok:
		in[name] = g.value(&next, path, 4)
	case len(field) == 1:
	default:
		if !ok {
			inner = map[string]any{}
			in[name] = inner
		}
		g.set(&next, path, inner, field[1:])
	}
}

// value returns a value of a field. depth limits how deep new values are; deeper ones are known.
func (g *schemaGenerator) value(p *apiextensionsv1.JSONSchemaProps, path string, depth int) any {
	if g.hostile > 0 && g.IntN(6) == 0 {
		g.hostile--
		return g.hostileValue(p, path)
	}
	known := g.values[path]
	if len(known) > 0 && (depth == 0 || g.IntN(2) == 0) {
		return known[g.IntN(len(known))]
	}
	switch {
	case len(p.Enum) > 0:
		return json.RawMessage(p.Enum[g.IntN(len(p.Enum))].Raw)
	case p.Properties != nil:
		return g.object(p, path, depth-1)
	case p.Type == "array" && p.Items != nil:
		list := []any{}
		for range g.IntN(3) {
			list = append(list, g.value(p.Items.Schema, path+"[]", depth-1))
		}
		return list
	case p.Type == "boolean":
		return g.IntN(2) == 0
	case p.Type == "integer":
		return g.IntN(2)*int(ptr.Deref(p.Maximum, 10)) + int(ptr.Deref(p.Minimum, 0))*g.IntN(2)
	case len(known) > 0:
		return known[g.IntN(len(known))]
	case p.AdditionalProperties != nil:
		return map[string]any{"a": "b"}
	}
	return "a"
}

// object returns an object with its required fields and some of the others.
func (g *schemaGenerator) object(p *apiextensionsv1.JSONSchemaProps, path string, depth int) map[string]any {
	all := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(p.Properties)) {
		if field := p.Properties[name]; slices.Contains(p.Required, name) || depth >= 0 && g.IntN(5) == 0 {
			all[name] = g.value(&field, path+"."+name, max(depth, 0))
		}
	}
	return all
}

// hostileValue returns a value that breaks a rule, or is at its bound.
func (g *schemaGenerator) hostileValue(p *apiextensionsv1.JSONSchemaProps, path string) any {
	length := g.bound(p.MaxLength, 300, 1<<20)
	texts := []any{"", " ", "a\nb", "a\r\nb", "\x00",
		"é", "\u202e", "\u200b", "\u0430", "\u2010", "\uff11", "\uff41", "💥",
		"-", "--", "null", "${PATH}", "$(PATH)", "../../etc", "1e9", "-1", "0x10", "9223372036854775808",
		strings.Repeat("a", length), strings.Repeat("é", length), strings.Repeat("a", length+1)}
	switch {
	case p.Type == "integer" || p.XIntOrString:
		low, high := int64(ptr.Deref(p.Minimum, 0)), int64(ptr.Deref(p.Maximum, 1<<31-1))
		return g.one([]any{low, high, low - 1, high + 1, 0, -1, int64(1 << 31), int64(1<<63 - 1), -1 << 63, "50%", "101%",
			"x", 1.5})
	case p.Type == "boolean":
		return g.one([]any{"true", 1, nil})
	case p.Type == "array":
		known, most := g.values[path+"[]"], g.bound(p.MaxItems, 20, 2000)
		list := []any{}
		for range g.one([]any{0, 1, most, most + 1}).(int) {
			item := any("a")
			if len(known) > 0 {
				item = known[g.IntN(len(known))]
			}
			list = append(list, item)
		}
		for i := range list { // rarely the same item again, or one with a hostile end
			text, ok := list[i].(string)
			switch {
			case g.IntN(16) == 0:
				list[i] = list[0]
			case ok && g.IntN(len(list)) == 0:
				list[i] = g.one([]any{text, ""}).(string) + g.one(texts).(string)
			}
		}
		return list
	case p.AdditionalProperties != nil:
		entries, most := map[string]any{}, g.bound(p.MaxProperties, 20, 2000)
		end := g.one(append(texts[:16:16], "", "")) // of the keys
		for i := range g.one([]any{1, most, most + 1}).(int) {
			entries[fmt.Sprintf("a%d%s", i, end)] = g.one([]any{"1", "a", g.one(texts)})
		}
		return entries
	case p.Properties != nil:
		return g.one([]any{map[string]any{}, map[string]any{"unknown": 1}, nil, []any{}})
	}
	known := g.values[path]
	if len(known) > 0 && g.IntN(2) == 0 {
		return fmt.Sprint(known[g.IntN(len(known))], g.one(texts))
	}
	return g.one(texts)
}

// bound returns a bound in the schema. Without one, it returns a usual number, or rarely a huge one.
func (g *schemaGenerator) bound(in *int64, usual, huge int) int {
	if in == nil && g.IntN(4) == 0 {
		return huge
	}
	return int(ptr.Deref(in, int64(usual)))
}

func (g *schemaGenerator) one(values []any) any { return values[g.IntN(len(values))] }
