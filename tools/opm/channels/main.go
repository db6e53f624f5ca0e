// Program channels writes the channels of a basic template of opm, with the upgrades between all releases in it:
//
//	channels add VERSION BUNDLE <template >new      add a release, with the image of its bundle by digest
//	channels skip VERSION <template >new            upgrade past a bad release, which has a later one
//
// opm's own semver template cannot do this: its channels have the major version in their names, so subscriptions would
// not follow to the next major version. It also skips each patch release but the last, so nobody could install these.
package main

import (
	"bytes"
	"encoding/json"
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

// template is a basic template of opm.
type template struct {
	Schema  string            `json:"schema"`
	Entries []json.RawMessage `json:"entries"`
}

// image is a bundle in a basic template: opm render reads the rest from the image.
type image struct {
	Schema string `json:"schema"`
	Image  string `json:"image"`
}

// catalog is the content of a template.
type catalog struct {
	pkg      declcfg.Package
	bundles  []image
	versions []semver.Version // ascending
	bad      []string         // the versions that upgrades skip
}

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err == nil {
		text, err = edit(text, os.Args[1:])
	}
	if err == nil {
		_, err = os.Stdout.Write(text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "channels:", err)
		os.Exit(1)
	}
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
	case len(args) == 2 && args[0] == "skip":
		err = c.skip(args[1])
	default:
		err = errors.New("usage: channels add VERSION BUNDLE | skip VERSION")
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
	c := &catalog{}
	for _, entry := range t.Entries {
		var meta struct{ Schema string }
		if err := json.Unmarshal(entry, &meta); err != nil {
			return nil, err
		}
		var err error
		switch meta.Schema {
		case declcfg.SchemaPackage:
			err = json.Unmarshal(entry, &c.pkg)
		case declcfg.SchemaBundle:
			c.bundles = append(c.bundles, image{})
			err = json.Unmarshal(entry, &c.bundles[len(c.bundles)-1])
		case declcfg.SchemaChannel:
			var channel declcfg.Channel
			if err = json.Unmarshal(entry, &channel); err == nil {
				err = c.read(channel)
			}
		default:
			err = fmt.Errorf("unknown schema %q", meta.Schema)
		}
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// read adds the releases of a channel.
func (c *catalog) read(channel declcfg.Channel) error {
	for _, entry := range channel.Entries {
		version, err := semver.Parse(strings.TrimPrefix(entry.Name, c.pkg.Name+".v"))
		if err != nil {
			return fmt.Errorf("%s: %w", entry.Name, err)
		}
		for _, name := range entry.Skips {
			c.bad = append(c.bad, strings.TrimPrefix(name, c.pkg.Name+".v"))
		}
		if _, found := c.find(version); !found {
			c.insert(version)
		}
	}
	return nil
}

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
	version, err := semver.Parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", text, err)
	}
	if len(version.Build) > 0 {
		return fmt.Errorf("%s: a version with build metadata has no place in an order", text)
	}
	if !strings.Contains(bundle, "@sha256:") {
		return fmt.Errorf("%s is not pinned by digest", bundle)
	}
	_, found := c.find(version)
	known := slices.ContainsFunc(c.bundles, func(i image) bool { return i.Image == bundle })
	if found != known {
		return fmt.Errorf("the catalog has v%s with another bundle, or %s with another version", version, bundle)
	}
	if !found {
		c.insert(version)
		c.bundles = append(c.bundles, image{declcfg.SchemaBundle, bundle})
	}
	return nil
}

// skip makes upgrades pass over a release. It stays in the catalog for those who have it.
func (c *catalog) skip(text string) error {
	version, err := semver.Parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", text, err)
	}
	if _, found := c.find(version); !found {
		return fmt.Errorf("the catalog has no v%s", version)
	}
	later := slices.ContainsFunc(c.versions, func(v semver.Version) bool {
		inItsChannels := len(v.Pre) == 0 || len(version.Pre) > 0
		return v.GT(version) && inItsChannels && !slices.Contains(c.bad, v.String())
	})
	if !later {
		return fmt.Errorf("first release a version after v%s: there is nothing to upgrade to", version)
	}
	c.bad = append(c.bad, version.String())
	return nil
}

func (c *catalog) format() ([]byte, error) {
	channels := []declcfg.Channel{c.channel(candidate, func(semver.Version) bool { return true }),
		c.channel(stable, func(v semver.Version) bool { return len(v.Pre) == 0 })}
	// opm accepts no channel without releases.
	channels = slices.DeleteFunc(channels, func(c declcfg.Channel) bool { return len(c.Entries) == 0 })
	c.pkg.DefaultChannel = stable
	if len(channels) == 1 {
		c.pkg.DefaultChannel = candidate // so far, there are only pre-releases
	}
	entries := []any{c.pkg}
	for _, channel := range channels {
		entries = append(entries, channel)
	}
	for _, bundle := range c.bundles {
		entries = append(entries, bundle)
	}
	text, err := yaml.Marshal(entries)
	return append([]byte("schema: olm.template.basic\nentries:\n"), text...), err
}

// channel returns a channel in which each release replaces the good one before it, and skips the bad ones in between.
func (c *catalog) channel(name string, has func(semver.Version) bool) declcfg.Channel {
	channel := declcfg.Channel{Schema: declcfg.SchemaChannel, Name: name, Package: c.pkg.Name}
	good, bad := "", []string(nil)
	for _, version := range c.versions {
		if !has(version) {
			continue
		}
		entry := declcfg.ChannelEntry{Name: c.pkg.Name + ".v" + version.String(), Replaces: good}
		if slices.Contains(c.bad, version.String()) {
			bad = append(bad, entry.Name)
		} else {
			entry.Skips, good, bad = bad, entry.Name, nil
		}
		channel.Entries = append(channel.Entries, entry)
	}
	return channel
}
