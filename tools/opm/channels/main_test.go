package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/blang/semver/v4"
	"github.com/operator-framework/operator-registry/alpha/declcfg"
	"github.com/operator-framework/operator-registry/alpha/model"
	"github.com/operator-framework/operator-registry/alpha/property"
	"github.com/operator-framework/operator-registry/pkg/lib/config"
	"sigs.k8s.io/yaml"
)

const (
	name  = "memcached-operator"
	empty = "# Why.\n# And how.\n" +
		"schema: olm.template.basic\nentries: [{schema: olm.package, name: memcached-operator, defaultChannel: stable}]\n"
)

func bundle(version string) string {
	return fmt.Sprintf("example.com/bundle@sha256:%x", sha256.Sum256([]byte(version)))
}

// apply edits a template by commands such as "add 0.1.0" and "skip 0.1.0".
func apply(t *testing.T, text []byte, command string) []byte {
	t.Helper()
	args := strings.Fields(command)
	if args[0] == "add" {
		args = append(args, bundle(args[1]))
	}
	text, err := edit(text, args)
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return text
}

// render does what opm does with the template: it adds what it reads from the images.
func render(t *testing.T, text []byte, versions []string) *declcfg.DeclarativeConfig {
	t.Helper()
	var basic struct {
		Schema  string
		Entries []*declcfg.Meta
	}
	if err := yaml.Unmarshal(text, &basic); err != nil {
		t.Fatal(err)
	}
	cfg, err := declcfg.LoadSlice(basic.Entries)
	if err != nil {
		t.Fatal(err)
	}
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

// heads checks everything that a catalog must be, with opm's own validation too, and returns the head of each channel.
func heads(t *testing.T, text []byte, versions []string) map[string]string {
	t.Helper()
	cfg := render(t, text, versions)
	var written bytes.Buffer
	if err := declcfg.WriteYAML(*cfg, &written); err != nil {
		t.Fatal(err)
	}
	if err := config.Validate(t.Context(), fstest.MapFS{"catalog.yaml": {Data: written.Bytes()}}); err != nil {
		t.Fatalf("opm validate: %v\n%s", err, text)
	}
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
	upgrades := map[string][]*model.Bundle{}
	for _, b := range channel.Bundles {
		for _, from := range append(slices.Clone(b.Skips), b.Replaces) {
			if from == "" {
				continue
			}
			if old := channel.Bundles[from]; old == nil || !old.Version.LT(b.Version) {
				t.Fatalf("%s: %s is no upgrade from %s", channel.Name, b.Name, from)
			}
			upgrades[from] = append(upgrades[from], b)
		}
	}
	for _, b := range channel.Bundles {
		// Every upgrade leads to a higher version, so any path ends. Whatever OLM chooses, it must end at the head.
		if len(upgrades[b.Name]) == 0 && b != head {
			t.Fatalf("%s: no upgrade from %s", channel.Name, b.Name)
		}
	}
	return highest
}

func TestRandomReleases(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, seed))
		var versions []string
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
				if skipped, err := edit(text, []string{"skip", bad}); err == nil {
					text = skipped
					heads(t, text, versions[:i+1])
				}
			}
			before = now
		}
		// The order in which releases were added does not matter.
		if bytes.Contains(text, []byte("skips:")) {
			continue
		}
		other := []byte(empty)
		shuffled := slices.Clone(versions)
		random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		for _, version := range shuffled {
			other = apply(t, other, "add "+version)
		}
		if a, b := channelsOf(t, text), channelsOf(t, other); a != b {
			t.Fatalf("%v:\n%s\n%v:\n%s", versions, a, shuffled, b)
		}
	}
}

// channelsOf returns the edges of a template, a line for each release: "0.1.1 replaces 0.1.0".
func channelsOf(t *testing.T, text []byte) string {
	t.Helper()
	var basic struct{ Entries []declcfg.Channel }
	if err := yaml.Unmarshal(text, &basic); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, channel := range basic.Entries {
		if channel.Schema != declcfg.SchemaChannel {
			continue
		}
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
		commands []string
		want     string
	}{
		"a backport": {[]string{"add 0.1.0", "add 0.2.0", "add 0.1.1"},
			"candidate\n0.1.0\n0.1.1 replaces 0.1.0\n0.2.0 replaces 0.1.1\n" +
				"stable\n0.1.0\n0.1.1 replaces 0.1.0\n0.2.0 replaces 0.1.1"},
		"a pre-release": {[]string{"add 0.1.0", "add 0.2.0-rc.2", "add 0.2.0-rc.10", "add 0.2.0"},
			"candidate\n0.1.0\n0.2.0-rc.2 replaces 0.1.0\n0.2.0-rc.10 replaces 0.2.0-rc.2\n0.2.0 replaces 0.2.0-rc.10\n" +
				"stable\n0.1.0\n0.2.0 replaces 0.1.0"},
		"a pre-release alone":   {[]string{"add 0.1.0-rc.1"}, "candidate\n0.1.0-rc.1"},
		"a release added twice": {[]string{"add 0.1.0", "add 0.1.0"}, "candidate\n0.1.0\nstable\n0.1.0"},
		"a bad release": {[]string{"add 0.1.0", "add 0.1.1", "add 0.1.2", "skip 0.1.1", "add 0.2.0"},
			"candidate\n0.1.0\n0.1.1 replaces 0.1.0\n0.1.2 replaces 0.1.0 skips 0.1.1\n0.2.0 replaces 0.1.2\n" +
				"stable\n0.1.0\n0.1.1 replaces 0.1.0\n0.1.2 replaces 0.1.0 skips 0.1.1\n0.2.0 replaces 0.1.2"},
		"a bad first release": {[]string{"add 0.1.0", "add 0.1.1", "skip 0.1.0"},
			"candidate\n0.1.0\n0.1.1 skips 0.1.0\nstable\n0.1.0\n0.1.1 skips 0.1.0"},
		"a bad pre-release": {[]string{"add 0.1.0", "add 0.2.0-rc.1", "add 0.2.0-rc.2", "skip 0.2.0-rc.1"},
			"candidate\n0.1.0\n0.2.0-rc.1 replaces 0.1.0\n0.2.0-rc.2 replaces 0.1.0 skips 0.2.0-rc.1\nstable\n0.1.0"},
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
			if got := channelsOf(t, text); got != c.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, c.want)
			}
			heads(t, text, versions)
			if !bytes.HasPrefix(text, []byte("# Why.\n# And how.\nschema: olm.template.basic\nentries:")) {
				t.Errorf("the comment is gone:\n%s", text)
			}
		})
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
		{"skip", "0.1.1"},
		{"skip", "0.1.0"}, // users of stable would have no upgrade
		{"skip", "0.2.0-rc.1"},
		{"add", "0.1.1"},
		{},
	} {
		if _, err := edit(text, args); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}
