package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// sysctls are the settings that the cluster needs, or that a kubelet changes without being asked.
var sysctls = []string{
	"net/ipv4/ip_forward", "vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// saveSysctls remembers the machine's settings for restoreSysctls.
func saveSysctls() error {
	saved := map[string]string{}
	for _, name := range sysctls {
		if value, err := os.ReadFile(filepath.Join("/proc/sys", name)); err == nil {
			saved[name] = strings.TrimSpace(string(value))
		}
	}
	text, err := json.Marshal(saved)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(nodeRun, "sysctls.json"), text, 0o644)
}

func restoreSysctls() error {
	text, err := os.ReadFile(filepath.Join(nodeRun, "sysctls.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	saved := map[string]string{}
	if err := errors.Join(err, json.Unmarshal(text, &saved)); err != nil {
		return err
	}
	var errs []error
	for name, value := range saved {
		errs = append(errs, os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0))
	}
	return errors.Join(errs...)
}

// createNetwork gives the node an address that exists before the API server advertises it, on a bridge without
// ports, and lets pods out. Pods have point-to-point links and are routed, so that kube-proxy sees both directions
// of every connection without br_netfilter.
func (n *node) createNetwork(ctx context.Context) error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return err
	}
	for _, args := range []string{
		"link add " + nodeBridge + " type bridge",
		"address add " + nodeIP + "/32 dev " + nodeBridge,
		"link set " + nodeBridge + " up",
	} {
		if _, err := run(ctx, nil, "ip", strings.Fields(args)...); err != nil {
			return err
		}
	}
	return nft(ctx, `add table ip `+nodeTable+`
add chain ip `+nodeTable+` postrouting { type nat hook postrouting priority srcnat; }
add rule ip `+nodeTable+` postrouting ip saddr `+podCIDR+` ip daddr != `+podCIDR+` masquerade
`)
}

// deleteNetwork removes the bridge, its rules and kube-proxy's. The links of pods go with their namespaces.
func (n *node) deleteNetwork(ctx context.Context) error {
	if isDir("/sys/class/net/" + nodeBridge) {
		if _, err := run(ctx, nil, "ip", "link", "delete", nodeBridge); err != nil {
			return err
		}
	}
	if _, err := os.Stat(filepath.Join(nodeRun, "owner")); err != nil {
		return nil // no cluster was here, so the tables are not its own
	}
	return errors.Join(deleteTable(ctx, "ip "+nodeTable), deleteTable(ctx, "ip kube-proxy"),
		deleteTable(ctx, "ip6 kube-proxy"), deletePolicyRules(ctx))
}

// deleteTable deletes a table, if it is there.
func deleteTable(ctx context.Context, table string) error {
	return nft(ctx, "add table "+table+"\ndelete table "+table+"\n") // add, or delete fails where none is
}

func nft(ctx context.Context, rules string) error {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return errors.New("nft: " + strings.TrimSpace(out.String()))
	}
	return nil
}
