// Program channels keeps the basic template of opm, from which the catalog is rendered. It writes the channels, with
// the upgrades between all releases in them:
//
//	channels add VERSION BUNDLE <template >new          add a release, with the image of its bundle by digest
//	channels deprecate VERSION MESSAGE <template >new   deprecate a bad release, which later releases skip
//	channels before VERSION [CHANNEL] <template         print the release that VERSION replaces, if there is one
//	channels verify CATALOG <template                   check that a rendered catalog has what its template has
//	channels offers ADDRESS                             print what a served catalog offers to clusters
//
// opm's own semver template cannot do this: its channels have the major version in their names, so subscriptions would
// not follow to the next major version. It also skips each patch release but the last, so nobody could install these.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/blang/semver/v4"
	"github.com/operator-framework/operator-registry/alpha/declcfg"
	"sigs.k8s.io/yaml"
)

// The channel candidate has all releases, stable has all but pre-releases.
const (
	candidate = "candidate"
	stable    = "stable"
)

// template is a basic template of opm. Of a bundle it has only the image: opm render reads the rest from there.
type template struct {
	Schema  string          `json:"schema"`
	Entries []*declcfg.Meta `json:"entries"`
}

// catalog is the content of a template.
type catalog struct {
	*declcfg.DeclarativeConfig
	pkg        declcfg.Package
	versions   []semver.Version // ascending
	deprecated []declcfg.DeprecationEntry
}

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "channels:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) == 2 && args[0] == "offers" {
		return offers(context.Background(), args[1], out)
	}
	text, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	switch {
	case len(args) == 2 && args[0] == "verify":
		rendered, err := os.ReadFile(args[1])
		if err != nil {
			return err
		}
		return verify(text, rendered)
	case len(args) == 2 && args[0] == "before":
		text, err = before(text, args[1], "")
	case len(args) == 3 && args[0] == "before":
		text, err = before(text, args[1], args[2])
	default:
		text, err = edit(text, args)
	}
	if err == nil {
		_, err = out.Write(text)
	}
	return err
}

// edit applies a command to the text of a template. The comment at its beginning stays.
func edit(text []byte, args []string) ([]byte, error) {
	c, err := parse(text)
	if err != nil {
		return nil, err
	}
	switch {
	case len(args) == 3 && args[0] == "add":
		err = c.add(args[1], args[2])
	case len(args) == 3 && args[0] == "deprecate":
		err = c.deprecate(args[1], args[2])
	default:
		err = errors.New("usage: channels add VERSION BUNDLE | deprecate VERSION MESSAGE | before VERSION [CHANNEL] | " +
			"verify CATALOG | offers ADDRESS")
	}
	if err != nil {
		return nil, err
	}
	edited, err := c.format()
	return append(comment(text), edited...), err
}

func comment(text []byte) []byte {
	end := 0
	for bytes.HasPrefix(text[end:], []byte("#")) {
		end += bytes.IndexByte(text[end:], '\n') + 1
	}
	return slices.Clone(text[:end])
}

func parse(text []byte) (*catalog, error) {
	var t template
	if err := yaml.UnmarshalStrict(text, &t); err != nil {
		return nil, err
	}
	config, err := declcfg.LoadSlice(t.Entries)
	if err != nil {
		return nil, err
	}
	if len(config.Packages) != 1 || len(config.Others) > 0 {
		return nil, errors.New("the template must have one package, its channels, bundles and deprecations")
	}
	c := &catalog{DeclarativeConfig: config, pkg: config.Packages[0]}
	for _, deprecation := range config.Deprecations {
		c.deprecated = append(c.deprecated, deprecation.Entries...)
	}
	for _, channel := range config.Channels {
		for _, entry := range channel.Entries {
			version, err := parseVersion(strings.TrimPrefix(entry.Name, c.pkg.Name+".v"))
			if err != nil {
				return nil, err
			}
			if _, found := c.find(version); !found {
				c.insert(version)
			}
		}
	}
	return c, nil
}

// name returns the name of the bundle of a release.
func (c *catalog) name(version semver.Version) string { return c.pkg.Name + ".v" + version.String() }

// find returns the place of a version. Build metadata does not order versions, so a release must not differ only there.
func (c *catalog) find(version semver.Version) (int, bool) {
	return slices.BinarySearchFunc(c.versions, version, semver.Version.Compare)
}

func (c *catalog) insert(version semver.Version) {
	place, _ := c.find(version)
	c.versions = slices.Insert(c.versions, place, version)
}

// add adds a release wherever its version belongs. Adding it again changes nothing.
func (c *catalog) add(text, bundle string) error {
	version, err := parseVersion(text)
	if err != nil {
		return err
	}
	if len(version.Build) > 0 {
		return fmt.Errorf("%s: a version with build metadata has no place in an order", text)
	}
	if !strings.Contains(bundle, "@sha256:") {
		return fmt.Errorf("%s is not pinned by digest", bundle)
	}
	_, found := c.find(version)
	known := slices.ContainsFunc(c.Bundles, func(b declcfg.Bundle) bool { return b.Image == bundle })
	if found != known {
		return fmt.Errorf("the catalog has v%s with another bundle, or %s with another version", version, bundle)
	}
	if !found {
		c.insert(version)
		c.Bundles = append(c.Bundles, declcfg.Bundle{Schema: declcfg.SchemaBundle, Image: bundle})
	}
	return nil
}

// deprecate marks a bad release, or changes its message. The release stays in the catalog for those who have it.
func (c *catalog) deprecate(text, message string) error {
	version, err := parseVersion(text)
	if err != nil {
		return err
	}
	if _, found := c.find(version); !found {
		return fmt.Errorf("the catalog has no v%s", version)
	}
	if strings.TrimSpace(message) == "" {
		return errors.New("say in the message what is wrong, and what to do")
	}
	entry := declcfg.DeprecationEntry{Message: message,
		Reference: declcfg.PackageScopedReference{Schema: declcfg.SchemaBundle, Name: c.name(version)}}
	if i := c.deprecation(version); i >= 0 {
		c.deprecated[i] = entry
	} else {
		c.deprecated = append(c.deprecated, entry)
	}
	return nil
}

// deprecation returns the index of the deprecation of a release, or -1.
func (c *catalog) deprecation(version semver.Version) int {
	return slices.IndexFunc(c.deprecated, func(e declcfg.DeprecationEntry) bool {
		return e.Reference.Schema == declcfg.SchemaBundle && e.Reference.Name == c.name(version)
	})
}

func (c *catalog) format() ([]byte, error) {
	candidates, stables := c.channel(candidate), c.channel(stable)
	c.pkg.DefaultChannel = stable
	if len(candidates.Entries) > 0 && len(stables.Entries) == 0 {
		c.pkg.DefaultChannel = candidate // so far, there are only pre-releases
	}
	entries := []any{c.pkg}
	for _, channel := range []declcfg.Channel{candidates, stables} {
		if len(channel.Entries) > 0 { // opm accepts no channel without releases
			entries = append(entries, channel)
		}
	}
	for _, bundle := range c.Bundles {
		entries = append(entries, bundle)
	}
	if len(c.deprecated) > 0 {
		entries = append(entries, declcfg.Deprecation{Schema: declcfg.SchemaDeprecation, Package: c.pkg.Name,
			Entries: c.deprecated})
	}
	text, err := yaml.Marshal(entries)
	return append([]byte("schema: olm.template.basic\nentries:\n"), text...), err
}

// channel returns a channel. In it, a release
//
//   - replaces the next lower release that is not deprecated: nobody is offered a deprecated one after that
//   - skips the deprecated ones in between, so that clusters with one of them are offered this release
//   - skips the pre-releases in between, also in stable, which does not have them: a Subscription that moves from
//     candidate to stable is offered this release.
//
// The highest release is the head of the channel even if it is deprecated. Without an edge to it, the channel would
// have two heads, which is invalid; with an edge back, clusters that have it would be offered an older release.
func (c *catalog) channel(name string) declcfg.Channel {
	channel := declcfg.Channel{Schema: declcfg.SchemaChannel, Name: name, Package: c.pkg.Name}
	members := c.members(name)
	replaces, skips := "", []string(nil)
	for _, version := range c.versions {
		entry := declcfg.ChannelEntry{Name: c.name(version)}
		isMember := slices.ContainsFunc(members, version.Equals)
		if isMember && (c.deprecation(version) < 0 || version.Equals(members[len(members)-1])) {
			entry.Replaces, entry.Skips = replaces, skips
			replaces, skips = entry.Name, nil
		} else {
			skips = append(skips, entry.Name)
		}
		if isMember {
			channel.Entries = append(channel.Entries, entry)
		}
	}
	return channel
}

// members returns the versions in a channel, ascending.
func (c *catalog) members(channel string) []semver.Version {
	return slices.DeleteFunc(slices.Clone(c.versions), func(v semver.Version) bool {
		return channel == stable && len(v.Pre) > 0
	})
}

// before returns the release that a version replaces in a channel, or would replace if it were added: the highest lower
// one that is not deprecated. It returns nothing if there is none. By default, the channel is stable, and candidate for
// a pre-release.
func before(text []byte, version, channel string) ([]byte, error) {
	c, err := parse(text)
	if err != nil {
		return nil, err
	}
	v, err := parseVersion(version)
	if err != nil {
		return nil, err
	}
	switch {
	case channel == "" && len(v.Pre) > 0:
		channel = candidate
	case channel == "":
		channel = stable
	case channel != candidate && channel != stable:
		return nil, fmt.Errorf("there is no channel %s", channel)
	}
	for _, lower := range slices.Backward(c.members(channel)) {
		if lower.LT(v) && c.deprecation(lower) < 0 {
			return []byte(lower.String() + "\n"), nil
		}
	}
	return nil, nil
}

// verify returns an error if a template has other channels than its releases determine, or if the catalog that was
// rendered from it has other channels, deprecations or bundles.
func verify(text, rendered []byte) error {
	c, err := parse(text)
	if err != nil {
		return err
	}
	formatted, err := c.format()
	if err != nil {
		return err
	}
	if !bytes.Equal(append(comment(text), formatted...), text) {
		return errors.New("the template is not as channels writes it: edit it only with tools/catalog")
	}
	got, err := declcfg.LoadReader(bytes.NewReader(rendered))
	if err != nil {
		return err
	}
	wantText, err := content(c.DeclarativeConfig)
	if err != nil {
		return err
	}
	gotText, err := content(got)
	if err != nil {
		return err
	}
	if gotText != wantText {
		return fmt.Errorf("the catalog has\n%s\nbut its template has\n%s", gotText, wantText)
	}
	return nil
}

// content returns what a template and its catalog have in common: all but what is in the bundles.
func content(cfg *declcfg.DeclarativeConfig) (string, error) {
	var text strings.Builder
	for _, b := range cfg.Bundles {
		fmt.Fprintln(&text, b.Image)
	}
	images := slices.Sorted(strings.Lines(text.String()))
	text.Reset()
	cfg.Bundles = nil
	err := declcfg.WriteYAML(*cfg, &text)
	return text.String() + strings.Join(images, ""), err
}

func parseVersion(text string) (semver.Version, error) {
	version, err := semver.Parse(text)
	if err != nil {
		err = fmt.Errorf("%s: %w", text, err)
	}
	return version, err
}
