package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/blang/semver/v4"
	"github.com/operator-framework/operator-registry/pkg/client"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// offers asks a catalog that opm serves, as OLM v0 does. For each channel it prints the head with the image of its
// bundle, and for each version in any channel the version that a cluster with it is offered there:
//
//	stable head 0.2.1 example.com/memcached-operator-bundle@sha256:...
//	stable 0.2.0 0.2.1
//	stable 0.2.1 -
func offers(ctx context.Context, address string, out io.Writer) error {
	c, err := client.NewClient(address)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	bundles, err := c.ListBundles(ctx)
	if err != nil {
		return err
	}
	var pkg string
	channels, versions := map[string]bool{}, map[string]string{}
	for b := bundles.Next(); b != nil; b = bundles.Next() {
		pkg, channels[b.ChannelName], versions[b.CsvName] = b.PackageName, true, b.Version
	}
	if err := bundles.Error(); err != nil {
		return err
	}
	names := slices.SortedFunc(maps.Keys(versions), func(a, b string) int {
		return semver.MustParse(versions[a]).Compare(semver.MustParse(versions[b]))
	})
	var lines strings.Builder
	for _, channel := range slices.Sorted(maps.Keys(channels)) {
		head, err := c.GetBundleInPackageChannel(ctx, pkg, channel)
		if err != nil {
			return err
		}
		fmt.Fprintln(&lines, channel, "head", head.Version, head.BundlePath)
		for _, name := range names {
			offered := "-"
			// opm answers with an error of no code of its own where there is no upgrade.
			upgrade, err := c.GetReplacementBundleInPackageChannel(ctx, name, pkg, channel)
			switch {
			case err == nil:
				offered = upgrade.Version
			case status.Code(err) != codes.Unknown:
				return err
			}
			fmt.Fprintln(&lines, channel, versions[name], offered)
		}
	}
	_, err = io.WriteString(out, lines.String())
	return err
}
