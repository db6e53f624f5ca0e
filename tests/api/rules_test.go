package api

import (
	"regexp"
	"regexp/syntax"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apimachinery/pkg/util/version"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/example/memcached-operator/internal/testing/manifest"
)

var literal = regexp.MustCompile(`matches\(r?'([^']*)'\)`)

// TestExpressions: a regular expression of a rule either is anchored at both ends or matches a single character that is
// not allowed.
func TestExpressions(t *testing.T) {
	expressions := 0
	manifest.Walk("", manifest.Schema(t), func(path string, p *apiextensionsv1.JSONSchemaProps) {
		for _, v := range p.XValidations {
			if v.Message == "" {
				t.Errorf("%s: a rule without a message: %s", path, v.Rule)
			}
			for _, match := range literal.FindAllStringSubmatch(v.Rule, -1) {
				expressions++
				if re, err := syntax.Parse(match[1], syntax.Perl); err != nil {
					t.Errorf("%s: %v", path, err)
				} else if !isAnchored(re) && re.Op != syntax.OpCharClass && re.Op != syntax.OpLiteral {
					t.Errorf("%s: %s is not anchored at both ends", path, re)
				}
			}
		}
	})
	if expressions < 15 {
		t.Errorf("want all regular expressions, found %d", expressions)
	}
}

// isAnchored reports whether a regular expression is anchored at the begin and the end of the text, not only of a line
// or in one of several alternatives.
func isAnchored(re *syntax.Regexp) bool {
	return re.Op == syntax.OpConcat && re.Sub[0].Op == syntax.OpBeginText && re.Sub[len(re.Sub)-1].Op == syntax.OpEndText
}

// TestOldestKubernetes compiles each rule with the CEL functions of Kubernetes 1.30, the oldest supported version: its
// API server refuses a CRD that uses a later function. It also estimates costs about 3 % higher than the version that
// the test is built with, so the sum of all costs must stay below three quarters of the limit.
func TestOldestKubernetes(t *testing.T) {
	crd, _ := readCRD(t)
	schema := &apiextensions.JSONSchemaProps{}
	served := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(served, schema, nil)
	if err != nil {
		t.Fatal(err)
	}
	known := environment.MustBaseEnvSet(version.MajorMinor(1, 30))
	rules, total := 0, uint64(0)
	var compile func(path string, s *apiextensions.JSONSchemaProps, c *validation.CELSchemaContext)
	compile = func(path string, s *apiextensions.JSONSchemaProps, c *validation.CELSchemaContext) {
		for name, property := range s.Properties {
			compile(path+"."+name, &property, c.ChildPropertyContext(&property, name))
		}
		if s.Items != nil && s.Items.Schema != nil {
			compile(path+"[]", s.Items.Schema, c.ChildItemsContext(s.Items.Schema))
		}
		if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
			compile(path+"{}", s.AdditionalProperties.Schema, c.ChildAdditionalPropertiesContext(s.AdditionalProperties.Schema))
		}
		if len(s.XValidations) == 0 {
			return
		}
		info, err := c.TypeInfo()
		if err != nil {
			t.Fatal(err)
		}
		results, err := cel.Compile(info.Schema, info.DeclType, celconfig.PerCallLimit, known, cel.NewExpressionsEnvLoader())
		if err != nil {
			t.Fatal(err)
		}
		for i, result := range results {
			rules++
			if result.Error != nil {
				t.Errorf("%s: %s: %v", path, s.XValidations[i].Rule, result.Error)
				continue
			}
			times := result.MaxCardinality // a list without a limit
			if c.MaxCardinality != nil {
				times = *c.MaxCardinality
			}
			cost := times * result.MaxCost
			total += cost
			t.Logf("%9d %s: %s", cost, path, s.XValidations[i].Message)
			if cost > validation.StaticEstimatedCostLimit {
				t.Errorf("%s: %s: the cost %d is above the limit of %d", path, s.XValidations[i].Rule, cost,
					validation.StaticEstimatedCostLimit)
			}
		}
	}
	compile("", schema, validation.RootCELContext(schema))
	t.Logf("%9d in total, the limit is %d", total, validation.StaticEstimatedCRDCostLimit)
	if total > validation.StaticEstimatedCRDCostLimit*3/4 {
		t.Errorf("the total cost %d is too close to the limit of %d", total, validation.StaticEstimatedCRDCostLimit)
	}
	if rules < 40 {
		t.Errorf("want all rules, found %d", rules)
	}
}
