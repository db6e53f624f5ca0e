package api

import (
	"maps"
	"os"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/example/memcached-operator/internal/testing/manifest"
)

// TestOptions: docs/reference/options.md lists exactly the options and keys that the CRD's rules allow.
func TestOptions(t *testing.T) {
	allowed := map[string]bool{}
	manifest.Walk("", manifest.Schema(t), func(path string, p *apiextensionsv1.JSONSchemaProps) {
		if path != ".spec.extraArgs[]" {
			return
		}
		for _, v := range p.XValidations {
			if !strings.HasPrefix(v.Message, argsRule) && !strings.HasPrefix(v.Message, extendedRule) {
				continue
			}
			for _, match := range literal.FindAllStringSubmatch(v.Rule, -1) {
				re, err := syntax.Parse(strings.TrimPrefix(match[1], "^--extended="), syntax.Perl)
				if err != nil {
					t.Fatal(err)
				}
				for _, word := range words(re) {
					name, _, _ := strings.Cut(strings.TrimSuffix(word, ","), "=")
					allowed[name] = true
				}
			}
		}
	})
	allowed["--extended"] = true

	page, err := os.ReadFile(root + "/docs/reference/options.md")
	if err != nil {
		t.Fatal(err)
	}
	tables, _, _ := strings.Cut(string(page), "## Refused")
	listed := map[string]bool{}
	for _, match := range regexp.MustCompile("(?m)^[|] `([^`]+)` [|]").FindAllStringSubmatch(tables, -1) {
		listed[match[1]] = true
	}
	if len(listed) < 40 || !maps.Equal(listed, allowed) {
		t.Errorf("docs/reference/options.md lists\n%q, the rules allow\n%q", slices.Sorted(maps.Keys(listed)),
			slices.Sorted(maps.Keys(allowed)))
	}
}

// words returns the texts that a regular expression matches, each up to the first "=".
func words(re *syntax.Regexp) (all []string) {
	switch re.Op {
	case syntax.OpLiteral:
		return []string{string(re.Rune)}
	case syntax.OpCapture, syntax.OpPlus:
		return words(re.Sub[0])
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			all = append(all, words(sub)...)
		}
		return all
	case syntax.OpConcat:
		all = []string{""}
		for _, sub := range re.Sub {
			var longer []string
			for _, word := range all {
				if strings.Contains(word, "=") {
					longer = append(longer, word)
					continue
				}
				for _, rest := range words(sub) {
					longer = append(longer, word+rest)
				}
			}
			all = longer
		}
		return all
	default: // an anchor, or the value after the name
		return []string{""}
	}
}
