package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/blang/semver/v4"
	"github.com/operator-framework/operator-registry/alpha/declcfg"
	"github.com/operator-framework/operator-registry/alpha/model"
	"github.com/operator-framework/operator-registry/alpha/property"
	"github.com/operator-framework/operator-registry/pkg/lib/config"
)

const (
	name  = "memcached-operator"
	empty = "# Why.\n# And how.\n" +
		"schema: olm.template.basic\nentries: [{schema: olm.package, name: memcached-operator, defaultChannel: stable}]\n"
)

func bundle(version string) string {
	return fmt.Sprintf("example.com/bundle@sha256:%x", sha256.Sum256([]byte(version)))
}

// apply edits a template by commands such as "add 0.1.0" and "deprecate 0.1.0".
func apply(t *testing.T, text []byte, command string) []byte {
	t.Helper()
	args := strings.Fields(command)
	switch args[0] {
	case "add":
		args = append(args, bundle(args[1]))
	case "deprecate":
		args = append(args, "It is bad.")
	}
	text, err := edit(text, args)
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return text
}

// parsed returns the content of a template.
func parsed(t *testing.T, text []byte) *declcfg.DeclarativeConfig {
	t.Helper()
	c, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return c.DeclarativeConfig
}

// render does what opm does with the template: it adds what it reads from the images.
func render(t *testing.T, text []byte, versions []string) *declcfg.DeclarativeConfig {
	t.Helper()
	cfg := parsed(t, text)
	if len(cfg.Bundles) != len(versions) {
		t.Fatalf("%d bundles for %d versions", len(cfg.Bundles), len(versions))
	}
	for i, b := range cfg.Bundles {
		version := versions[slices.IndexFunc(versions, func(v string) bool { return bundle(v) == b.Image })]
		value, err := json.Marshal(property.Package{PackageName: name, Version: version})
		if err != nil {
			t.Fatal(err)
		}
		cfg.Bundles[i] = declcfg.Bundle{Schema: b.Schema, Name: name + ".v" + version, Package: name, Image: b.Image,
			Properties: []property.Property{{Type: property.TypePackage, Value: value}}}
	}
	return cfg
}

// rendered returns the catalog of a template as opm writes it. It must be valid, and verify must accept it.
func rendered(t *testing.T, text []byte, versions []string) ([]byte, *declcfg.DeclarativeConfig) {
	t.Helper()
	cfg := render(t, text, versions)
	var written bytes.Buffer
	if err := declcfg.WriteYAML(*cfg, &written); err != nil {
		t.Fatal(err)
	}
	if err := config.Validate(t.Context(), fstest.MapFS{"catalog.yaml": {Data: written.Bytes()}}); err != nil {
		t.Fatalf("opm validate: %v\n%s", err, text)
	}
	if err := verify(text, written.Bytes()); err != nil {
		t.Fatal(err)
	}
	return written.Bytes(), cfg
}

// heads checks everything that a catalog must be, with opm's own validation too, and returns the head of each channel.
func heads(t *testing.T, text []byte, versions []string) map[string]string {
	t.Helper()
	_, cfg := rendered(t, text, versions)
	m, err := declcfg.ConvertToModel(*cfg)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	heads := map[string]string{}
	for _, channel := range m[name].Channels {
		heads[channel.Name] = checkChannel(t, channel, versions)
	}
	return heads
}

// checkChannel returns the only head of a channel, which is its highest version, and which all others reach.
func checkChannel(t *testing.T, channel *model.Channel, versions []string) string {
	t.Helper()
	members := slices.DeleteFunc(slices.Clone(versions), func(v string) bool {
		return channel.Name == stable && strings.Contains(v, "-")
	})
	slices.SortFunc(members, func(a, b string) int { return semver.MustParse(a).Compare(semver.MustParse(b)) })
	highest := members[len(members)-1]
	if len(channel.Bundles) != len(members) {
		t.Fatalf("%s has %d releases, not %v", channel.Name, len(channel.Bundles), members)
	}
	head, err := channel.Head()
	if err != nil || head.Version.String() != highest {
		t.Fatalf("the head of %s is %v, not %s: %v", channel.Name, head, highest, err)
	}
	for _, installed := range versions {
		// Every upgrade leads to a higher version, so all paths end at the head.
		from := semver.MustParse(installed)
		upgrades := upgradesFrom(channel, installed)
		want := 1
		if from.GE(head.Version) {
			want = 0
		}
		if len(upgrades) != want {
			t.Fatalf("%s offers v%s %d upgrades: %v", channel.Name, from, len(upgrades), upgrades)
		}
		for _, to := range upgrades {
			if to.Version.LE(from) || to.Deprecation != nil && to != head {
				t.Fatalf("%s offers v%s to a cluster with v%s", channel.Name, to.Version, from)
			}
		}
	}
	return highest
}

// upgradesFrom returns what OLM v0 and v1 accept as the next version after the installed one. The installed version
// need not be in the channel.
func upgradesFrom(channel *model.Channel, installed string) (upgrades []*model.Bundle) {
	for _, b := range channel.Bundles {
		if from := name + ".v" + installed; b.Replaces == from || slices.Contains(b.Skips, from) {
			upgrades = append(upgrades, b)
		}
	}
	return upgrades
}

func TestRandomReleases(t *testing.T) {
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, seed))
		var versions, deprecated []string
		for range 1 + random.IntN(10) {
			version := fmt.Sprintf("%d.%d.%d", random.IntN(2), random.IntN(3), random.IntN(12))
			if random.IntN(3) == 0 {
				version += fmt.Sprintf("-rc.%d", 1+random.IntN(11))
			}
			if !slices.Contains(versions, version) {
				versions = append(versions, version)
			}
		}
		text, before := []byte(empty), map[string]string{}
		for i, version := range versions {
			text = apply(t, text, "add "+version)
			now := heads(t, text, versions[:i+1])
			for channel, head := range before {
				if semver.MustParse(version).LT(semver.MustParse(head)) && now[channel] != head {
					t.Fatalf("v%s moved %s from v%s to v%s", version, channel, head, now[channel])
				}
			}
			if bad := versions[random.IntN(i+1)]; random.IntN(3) == 0 {
				text = apply(t, text, "deprecate "+bad)
				deprecated = append(deprecated, bad)
				heads(t, text, versions[:i+1])
			}
			before = now
		}
		// The order in which releases were added does not matter.
		other := []byte(empty)
		shuffled := slices.Clone(versions)
		random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		for _, version := range shuffled {
			other = apply(t, other, "add "+version)
		}
		for _, version := range deprecated {
			other = apply(t, other, "deprecate "+version)
		}
		if a, b := channelsOf(t, text), channelsOf(t, other); a != b {
			t.Fatalf("%v:\n%s\n%v:\n%s", versions, a, shuffled, b)
		}
	}
}

// channelsOf returns the edges of a template, a line for each release: "0.1.1 replaces 0.1.0".
func channelsOf(t *testing.T, text []byte) string {
	t.Helper()
	var lines []string
	for _, channel := range parsed(t, text).Channels {
		lines = append(lines, channel.Name)
		for _, e := range channel.Entries {
			line := e.Name
			if e.Replaces != "" {
				line += " replaces " + e.Replaces
			}
			if len(e.Skips) > 0 {
				line += " skips " + strings.Join(e.Skips, " ")
			}
			lines = append(lines, line)
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "\n"), name+".v", "")
}

func TestCases(t *testing.T) {
	for what, c := range map[string]struct {
		commands          []string
		candidate, stable []string
	}{
		"no release": {},
		"a backport": {
			commands:  []string{"add 0.1.0", "add 0.2.0", "add 0.1.1"},
			candidate: []string{"0.1.0", "0.1.1 replaces 0.1.0", "0.2.0 replaces 0.1.1"},
			stable:    []string{"0.1.0", "0.1.1 replaces 0.1.0", "0.2.0 replaces 0.1.1"},
		},
		"a pre-release": {
			commands: []string{"add 0.1.0", "add 0.2.0-rc.2", "add 0.2.0-rc.10", "add 0.2.0"},
			candidate: []string{"0.1.0", "0.2.0-rc.2 replaces 0.1.0", "0.2.0-rc.10 replaces 0.2.0-rc.2",
				"0.2.0 replaces 0.2.0-rc.10"},
			stable: []string{"0.1.0", "0.2.0 replaces 0.1.0 skips 0.2.0-rc.2 0.2.0-rc.10"},
		},
		"a pre-release alone": {
			commands:  []string{"add 0.1.0-rc.1"},
			candidate: []string{"0.1.0-rc.1"},
		},
		"the pre-release of a minor version that was never released": {
			commands:  []string{"add 0.1.0", "add 0.2.0-rc.1", "add 0.1.1", "add 0.3.0"},
			candidate: []string{"0.1.0", "0.1.1 replaces 0.1.0", "0.2.0-rc.1 replaces 0.1.1", "0.3.0 replaces 0.2.0-rc.1"},
			stable:    []string{"0.1.0", "0.1.1 replaces 0.1.0", "0.3.0 replaces 0.1.1 skips 0.2.0-rc.1"},
		},
		"a release added twice": {
			commands:  []string{"add 0.1.0", "add 0.1.0"},
			candidate: []string{"0.1.0"},
			stable:    []string{"0.1.0"},
		},
		"a bad release before the one that mends it": {
			commands:  []string{"add 0.1.0", "add 0.2.0", "deprecate 0.2.0"},
			candidate: []string{"0.1.0", "0.2.0 replaces 0.1.0"},
			stable:    []string{"0.1.0", "0.2.0 replaces 0.1.0"},
		},
		"a bad release and the one that mends it": {
			commands:  []string{"add 0.1.0", "add 0.2.0", "deprecate 0.2.0", "add 0.2.1", "add 0.1.1"},
			candidate: []string{"0.1.0", "0.1.1 replaces 0.1.0", "0.2.0", "0.2.1 replaces 0.1.1 skips 0.2.0"},
			stable:    []string{"0.1.0", "0.1.1 replaces 0.1.0", "0.2.0", "0.2.1 replaces 0.1.1 skips 0.2.0"},
		},
		"a bad release that is deprecated late": {
			commands:  []string{"add 0.1.0", "add 0.1.1", "add 0.1.2", "add 0.2.0", "deprecate 0.1.1"},
			candidate: []string{"0.1.0", "0.1.1", "0.1.2 replaces 0.1.0 skips 0.1.1", "0.2.0 replaces 0.1.2"},
			stable:    []string{"0.1.0", "0.1.1", "0.1.2 replaces 0.1.0 skips 0.1.1", "0.2.0 replaces 0.1.2"},
		},
		"two bad releases at the end": {
			commands:  []string{"add 0.1.0", "add 0.1.1", "add 0.1.2", "deprecate 0.1.1", "deprecate 0.1.2"},
			candidate: []string{"0.1.0", "0.1.1", "0.1.2 replaces 0.1.0 skips 0.1.1"},
			stable:    []string{"0.1.0", "0.1.1", "0.1.2 replaces 0.1.0 skips 0.1.1"},
		},
		"a bad first release": {
			commands:  []string{"add 0.1.0", "deprecate 0.1.0", "add 0.1.1"},
			candidate: []string{"0.1.0", "0.1.1 skips 0.1.0"},
			stable:    []string{"0.1.0", "0.1.1 skips 0.1.0"},
		},
		"a bad pre-release": {
			commands: []string{"add 0.1.0", "add 0.2.0-rc.1", "deprecate 0.2.0-rc.1", "add 0.2.0-rc.2", "add 0.2.0"},
			candidate: []string{"0.1.0", "0.2.0-rc.1", "0.2.0-rc.2 replaces 0.1.0 skips 0.2.0-rc.1",
				"0.2.0 replaces 0.2.0-rc.2"},
			stable: []string{"0.1.0", "0.2.0 replaces 0.1.0 skips 0.2.0-rc.1 0.2.0-rc.2"},
		},
		"a bad release in stable alone is the head": {
			commands:  []string{"add 0.1.0", "add 0.2.0", "deprecate 0.2.0", "add 0.3.0-rc.1"},
			candidate: []string{"0.1.0", "0.2.0", "0.3.0-rc.1 replaces 0.1.0 skips 0.2.0"},
			stable:    []string{"0.1.0", "0.2.0 replaces 0.1.0"},
		},
	} {
		t.Run(what, func(t *testing.T) {
			text := []byte(empty)
			var versions []string
			for _, command := range c.commands {
				text = apply(t, text, command)
				if version, isNew := strings.CutPrefix(command, "add "); isNew && !slices.Contains(versions, version) {
					versions = append(versions, version)
				}
			}
			var want []string
			if c.candidate != nil {
				want = append(append(want, candidate), c.candidate...)
			}
			if c.stable != nil {
				want = append(append(want, stable), c.stable...)
			}
			if got := channelsOf(t, text); got != strings.Join(want, "\n") {
				t.Errorf("got:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
			}
			if len(versions) == 0 {
				return // opm accepts no package without channels
			}
			heads(t, text, versions)
			if !bytes.HasPrefix(text, []byte("# Why.\n# And how.\nschema: olm.template.basic\nentries:")) {
				t.Errorf("the comment is gone:\n%s", text)
			}
		})
	}
}

func TestDeprecation(t *testing.T) {
	text := apply(t, apply(t, []byte(empty), "add 0.1.0"), "deprecate 0.1.0")
	text, err := edit(text, []string{"deprecate", "0.1.0", "It loses items: use v0.1.1."})
	if err != nil {
		t.Fatal(err)
	}
	_, cfg := rendered(t, text, []string{"0.1.0"})
	want := []declcfg.Deprecation{{Schema: declcfg.SchemaDeprecation, Package: name, Entries: []declcfg.DeprecationEntry{{
		Reference: declcfg.PackageScopedReference{Schema: declcfg.SchemaBundle, Name: name + ".v0.1.0"},
		Message:   "It loses items: use v0.1.1.",
	}}}}
	if !reflect.DeepEqual(cfg.Deprecations, want) {
		t.Errorf("got %+v", cfg.Deprecations)
	}
}

func TestBefore(t *testing.T) {
	text := []byte(empty)
	for _, version := range []string{"0.1.0", "0.2.0", "0.1.1", "0.3.0-rc.1", "0.3.0-rc.2"} {
		text = apply(t, text, "add "+version)
	}
	text = apply(t, text, "deprecate 0.1.1")
	for _, c := range []struct{ version, channel, want string }{
		{"0.1.0", "", ""},
		{"0.1.1", "", "0.1.0"},
		{"0.2.0", "", "0.1.0"}, // not the deprecated 0.1.1
		{"0.2.1", "", "0.2.0"},
		{"0.3.0-rc.1", "", "0.2.0"},
		{"0.3.0-rc.3", "", "0.3.0-rc.2"},
		{"0.3.0-rc.3", stable, "0.2.0"},
		{"0.3.0", "", "0.2.0"},
		{"0.3.0", candidate, "0.3.0-rc.2"},
	} {
		got, err := before(text, c.version, c.channel)
		if err != nil || strings.TrimSpace(string(got)) != c.want {
			t.Errorf("before %s %s is %q, not %q: %v", c.version, c.channel, got, c.want, err)
		}
	}
	for _, args := range [][2]string{{"v0.1.0", ""}, {"0.1.0", "alpha"}} {
		if got, err := before(text, args[0], args[1]); err == nil {
			t.Errorf("before %v is %q", args, got)
		}
	}
}

func TestVerify(t *testing.T) {
	versions := []string{"0.1.0", "0.2.0"}
	text := apply(t, apply(t, apply(t, []byte(empty), "add 0.1.0"), "add 0.2.0"), "deprecate 0.1.0")
	catalog, _ := rendered(t, text, versions)
	for what, change := range map[string][2]string{
		"an edge":        {"skips:", "other:"},
		"a bundle":       {bundle("0.2.0"), bundle("another")},
		"a deprecation":  {"It is bad.", "It is good."},
		"the package":    {"defaultChannel: stable", "defaultChannel: candidate"},
		"another schema": {"schema: olm.deprecations", "schema: example.com/other"},
	} {
		changed := bytes.ReplaceAll(catalog, []byte(change[0]), []byte(change[1]))
		if bytes.Equal(changed, catalog) {
			t.Fatalf("%s: the catalog has no %s", what, change[0])
		}
		if err := verify(text, changed); err == nil {
			t.Errorf("another catalog was accepted: %s", what)
		}
	}
	edited := bytes.Replace(text, []byte("    - memcached-operator.v0.1.0\n"), nil, 1)
	if bytes.Equal(edited, text) {
		t.Fatalf("no edge:\n%s", text)
	}
	if err := verify(edited, catalog); err == nil {
		t.Error("a template with another edge was accepted")
	}
}

func TestRefused(t *testing.T) {
	text := apply(t, apply(t, []byte(empty), "add 0.1.0"), "add 0.2.0-rc.1")
	for _, args := range [][]string{
		{"add", "0.1.0", bundle("another")},
		{"add", "0.1.1", bundle("0.1.0")},
		{"add", "0.1.1", "example.com/bundle:v0.1.1"},
		{"add", "0.1.1+build", bundle("0.1.1")},
		{"add", "v0.1.1", bundle("0.1.1")},
		{"deprecate", "0.1.1", "It is bad."},
		{"deprecate", "v0.1.0", "It is bad."},
		{"deprecate", "0.1.0", " "},
		{"deprecate", "0.1.0"},
		{"add", "0.1.1"},
		{},
	} {
		if _, err := edit(text, args); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}
