package specs

import (
	"errors"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

var (
	// brokenRule matches the messages of a rule that fails instead of refusing a value.
	brokenRule = regexp.MustCompile(`no such key|no such overload|cost|evaluat|overflow|index out of`)
	// given matches what a message repeats of a spec.
	given = regexp.MustCompile(`"(\\.|[^"\\])*"|\[[^]]*\]|-?\d+(\.\d+)?(e[+-]\d+)?`)
)

// Refusal returns the first field and rule by which the API server refused a spec, without the values of the spec;
// empty if it named none, or if a rule failed instead of refusing a value.
func Refusal(err error) string {
	var status apierrors.APIStatus
	switch {
	case !errors.As(err, &status) || brokenRule.MatchString(given.ReplaceAllString(err.Error(), "")):
		return ""
	case apierrors.IsBadRequest(err) && strings.Contains(err.Error(), `unknown field "spec.`):
		return "spec: unknown field"
	case apierrors.IsRequestEntityTooLargeError(err):
		return "spec: too large for a request"
	case !apierrors.IsInvalid(err) || status.Status().Details == nil:
		return ""
	}
	var rules []string
	for _, cause := range status.Status().Details.Causes {
		field, rule := given.ReplaceAllString(cause.Field, "…"), given.ReplaceAllString(cause.Message, "…")
		switch {
		case field == "<nil>", field == ".spec.size": // rules that were not checked, and what the API server says twice
			continue
		case !strings.HasPrefix(field, "spec"), rule == "":
			return ""
		}
		for _, before := range []string{"Invalid value: ", "…: ", field + " in body "} {
			rule = strings.TrimPrefix(rule, before)
		}
		rules = append(rules, field+": "+rule)
	}
	slices.Sort(rules)
	return strings.Join(rules[:min(1, len(rules))], "")
}
