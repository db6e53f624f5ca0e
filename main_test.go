package main

import (
	"io"
	"strings"
	"testing"
)

func TestFlags(t *testing.T) {
	tests := map[string]struct {
		env  string // WATCH_NAMESPACE
		args []string
		want string // namespaces, or part of the error
	}{
		"none":                 {"", nil, ""},
		"namespaces of OLM":    {"b,a", nil, "a b"},
		"flag wins":            {"a", []string{"--watch-namespaces=c, c,d"}, "c d"},
		"flag clears":          {"a", []string{"--watch-namespaces="}, ""},
		"not a namespace":      {"", []string{"--watch-namespaces=a,B_"}, `"B_" is not a namespace`},
		"bad environment":      {"*", nil, `WATCH_NAMESPACE): "*" is not a namespace`},
		"no reconciles":        {"", []string{"--max-concurrent-reconciles=0"}, "--max-concurrent-reconciles is 0, must be at least 1"},
		"not a number":         {"", []string{"--max-concurrent-reconciles=x"}, "max-concurrent-reconciles"},
		"unknown flag":         {"", []string{"--enable-webhooks"}, "enable-webhooks"},
		"argument":             {"", []string{"start"}, `unexpected argument "start"`},
		"standard log options": {"", []string{"--zap-devel", "--zap-log-level=debug"}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("WATCH_NAMESPACE", tt.env)
			o, err := parse(append([]string{"manager"}, tt.args...), io.Discard)
			got := ""
			if err != nil {
				got = err.Error()
			} else {
				got = strings.Join(o.watched(), " ")
			}
			if err == nil && got != tt.want || err != nil && (tt.want == "" || !strings.Contains(got, tt.want)) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), []string{"manager", "--version"}, &out); err != nil || out.String() != "dev\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
}
