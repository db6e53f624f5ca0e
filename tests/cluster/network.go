package cluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// sysctls are the settings of the machine that the cluster needs or that the kubelet changes.
var sysctls = []string{
	"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding", "vm.overcommit_memory", "vm.panic_on_oom", "kernel.panic",
	"kernel.panic_on_oops", "kernel.keys.root_maxkeys", "kernel.keys.root_maxbytes",
}

// saveSysctls saves the machine's settings for restoreSysctls, as `sysctl --load` reads them. Not every machine has all
// of them.
func saveSysctls(ctx context.Context) error {
	saved, err := run(ctx, nil, "sysctl", append([]string{"--ignore"}, sysctls...)...)
	return errors.Join(err, os.WriteFile(filepath.Join(nodeRun, "sysctls"), []byte(saved), 0o644))
}

func restoreSysctls(ctx context.Context) error {
	file := filepath.Join(nodeRun, "sysctls")
	if _, err := os.Stat(file); err != nil {
		return nil // none were changed
	}
	_, err := run(ctx, nil, "sysctl", "--load="+file)
	return err
}

// createNetwork creates a bridge without ports for the node's address, which must exist before the API server
// advertises it, and lets pods connect to the outside. Pods have routed point-to-point links, so that kube-proxy sees
// both directions of every connection without br_netfilter.
func (n *node) createNetwork(ctx context.Context) error {
	f := chosenFamily
	if _, err := run(ctx, nil, "sysctl", f.forwarding+"=1"); err != nil {
		return err
	}
	for _, args := range []string{
		"link add " + nodeBridge + " type bridge",
		"address add " + f.NodeIP + f.options + " dev " + nodeBridge,
		"link set " + nodeBridge + " up",
	} {
		if _, err := run(ctx, nil, "ip", strings.Fields(args)...); err != nil {
			return err
		}
	}
	table := f.Table + " " + nodeTable
	return nft(ctx, `add table `+table+`
add chain `+table+` postrouting { type nat hook postrouting priority srcnat; }
add rule `+table+` postrouting `+f.Table+` saddr `+f.PodCIDR+` `+f.Table+` daddr != `+f.PodCIDR+` masquerade
`)
}

// deleteNetwork removes the bridge, its rules and kube-proxy's. The kernel removes the links of pods with their network
// namespaces.
func (n *node) deleteNetwork(ctx context.Context) error {
	if isDir("/sys/class/net/" + nodeBridge) {
		if _, err := run(ctx, nil, "ip", "link", "delete", nodeBridge); err != nil {
			return err
		}
	}
	if _, err := os.Stat(filepath.Join(nodeRun, "owner")); err != nil {
		return nil // this machine had no node cluster, so the tables are not ours
	}
	return errors.Join(deleteTable(ctx, "ip "+nodeTable), deleteTable(ctx, "ip6 "+nodeTable),
		deleteTable(ctx, "ip kube-proxy"), deleteTable(ctx, "ip6 kube-proxy"), deletePolicyRules(ctx))
}

// deleteTable deletes a table, if it exists.
func deleteTable(ctx context.Context, table string) error {
	return nft(ctx, "add table "+table+"\ndelete table "+table) // delete fails if there is no table
}

func nft(ctx context.Context, rules string) error {
	_, err := run(ctx, nil, "nft", rules)
	return err
}
