package cluster

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// Names and addresses on the machine. A machine has at most one node cluster, so these are fixed, and each cluster can
// recognize and remove what an earlier one left.
const (
	nodeName    = "node"
	podCIDR     = "10.244.0.0/24"
	serviceCIDR = "10.96.0.0/16"
	nodeBridge  = "memcached-node" // an interface name has at most 15 letters
	nodeTable   = "memcached-operator-node"
	nodeCgroup  = "memcached-operator-node"
	cniName     = "memcached-operator-node"
	// nodeRun holds sockets, mounts and the kubelet's folder. It is not in the repository, because the path of a socket
	// has at most 108 bytes.
	nodeRun = "/run/memcached-operator-node"
)

// family has what depends on the IP family of the cluster.
type family struct {
	// Table is the name that nftables has for the family, AddressType that of EndpointSlices.
	Table, AddressType                                                     string
	NodeIP, PodCIDR, DefaultRoute, ServiceCIDR, APIServiceIP, DNSServiceIP string
	// options are those of the node's address, forwarding is the setting of the machine that lets it forward packets.
	options, forwarding string
}

var families = map[string]family{
	"": {
		Table: "ip", AddressType: "IPv4",
		NodeIP: "10.244.0.1", PodCIDR: podCIDR, DefaultRoute: "0.0.0.0/0",
		ServiceCIDR: serviceCIDR, APIServiceIP: "10.96.0.1", DNSServiceIP: "10.96.0.10",
		options: "/32", forwarding: "net.ipv4.ip_forward",
	},
	"ipv6": {
		Table: "ip6", AddressType: "IPv6",
		NodeIP: "fd00:10:244::1", PodCIDR: "fd00:10:244::/64", DefaultRoute: "::/0",
		ServiceCIDR: "fd00:10:96::/112", APIServiceIP: "fd00:10:96::1", DNSServiceIP: "fd00:10:96::a",
		// Nobody answers on a bridge without ports, so a search for duplicates of the address would never end.
		options: "/128 nodad", forwarding: "net.ipv6.conf.all.forwarding",
	},
}

// chosenFamily is that of the environment: IP_FAMILY=ipv6 makes a cluster of IPv6 alone.
var chosenFamily = families[os.Getenv("IP_FAMILY")]

// onNode returns the address of a port of the node.
func (f family) onNode(port string) string { return net.JoinHostPort(f.NodeIP, port) }

// node is a control plane with one real node: kubelet, containerd, kube-proxy and CoreDNS run as programs of this
// machine. A registry on loopback stands in for all image registries.
type node struct{ *Cluster }

// nodeOptions are the variables in the templates of configuration files.
type nodeOptions struct {
	family
	Name, ReadyAddress                               string
	Bin, Dir, Run, PKI, Cgroup, Registry, PauseImage string
	RestrictOOMScore                                 bool
}

func (n *node) options(registry string) *nodeOptions {
	return &nodeOptions{
		family: chosenFamily, Name: nodeName, ReadyAddress: chosenFamily.onNode("8181"),
		Bin: n.bin, Dir: n.dir, Run: nodeRun, PKI: n.path("clusters", "c", "pki"), Cgroup: "/" + nodeCgroup,
		Registry: registry, PauseImage: pauseImage, RestrictOOMScore: !mayLowerOOMScore(),
	}
}

func (n *node) check(ctx context.Context) error {
	if err := n.checkControlPlane(ctx); err != nil {
		return err
	}
	return n.checkNode(ctx)
}

func (n *node) up(ctx context.Context) error {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		return errors.New("a real node needs root on Linux: use `CLUSTER=kwok` (simulated nodes)," +
			" or `CLUSTER=kind` where a Docker engine is")
	}
	if owner, alive := nodeOwner(); alive {
		return fmt.Errorf("this machine already runs the node cluster of %s: stop that first,"+
			" with `make -C %[1]s cluster-down CLUSTER=node`", owner)
	}
	if chosenFamily.NodeIP == "" {
		return fmt.Errorf("no IP_FAMILY %q: use ipv6, or leave it out", os.Getenv("IP_FAMILY"))
	}
	if err := n.needTools("kubernetes", "kubelet", "kwok", "etcd", "containerd", "cni", "coredns", "crane"); err != nil {
		return err
	}
	if err := n.installPackages(ctx, "runc", "nft:nftables", "ip:iproute2", "sysctl:procps"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 3*time.Minute, errors.New("not ready after 3 minutes"))
	defer cancel()

	if err := os.MkdirAll(nodeRun, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(nodeRun, "owner"), []byte(n.root), 0o644); err != nil {
		return err
	}
	registry, err := harness.FreeAddress()
	if err != nil {
		return err
	}
	o := n.options(registry)

	if err := n.step("network", func() error {
		return errors.Join(saveSysctls(ctx), createCgroup(), n.createNetwork(ctx))
	}); err != nil {
		return err
	}
	// The control plane takes longest and needs only the network, so images and containerd start at the same time.
	var both errgroup.Group
	both.Go(func() error { return n.step("control plane", func() error { return n.startControlPlane(ctx, o) }) })
	both.Go(func() error {
		return errors.Join(
			n.step("images", func() error { return n.serveImages(ctx, o) }),
			n.step("containerd", func() error { return n.startContainerd(ctx, o) }))
	})
	if err := both.Wait(); err != nil {
		return err
	}
	return n.step("node", func() error { return n.startNode(ctx, o) })
}

// step runs a part of the start and prints how long it took.
func (n *node) step(name string, do func() error) error {
	start := time.Now()
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	n.logf("  %s: %.1f s", name, time.Since(start).Seconds())
	return nil
}

// down kills all programs without letting them save anything, so that it works in every state: after a crash, after
// kill -9 of any program, and during a start. It finds programs by the cluster's cgroup.
func (n *node) down(ctx context.Context) error {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		return os.RemoveAll(n.dir)
	}
	if owner, alive := nodeOwner(); !alive || owner == n.root {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := killCgroup(ctx); err != nil {
			return err
		}
		unmountAll(ctx, nodeRun, n.dir)
		if err := errors.Join(n.deleteNetwork(ctx), restoreSysctls(ctx), removeStrays(), os.RemoveAll(nodeRun)); err != nil {
			return err
		}
	}
	return os.RemoveAll(n.dir)
}

// nodeOwner returns the clone that started the last node cluster on this machine, and whether any of its programs still
// runs.
func nodeOwner() (root string, alive bool) {
	text, err := os.ReadFile(filepath.Join(nodeRun, "owner"))
	if err != nil {
		return "", false
	}
	return string(text), len(cgroupPIDs()) > 0
}

// unmountAll detaches all mounts below these folders, the innermost first. It runs a command, because only Linux has
// the system call, and the package must compile on a Mac, where kind runs the cluster.
func unmountAll(ctx context.Context, dirs ...string) {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	lines := strings.Split(string(text), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		fields := strings.Fields(lines[i])
		for _, dir := range dirs {
			if len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
				_, _ = run(ctx, nil, "umount", "--lazy", fields[4])
			}
		}
	}
}

// removeStrays removes files that the cluster's programs leave in folders that cannot be configured, and those folders
// if they are empty then.
func removeStrays() error {
	open, _ := os.ReadFile("/proc/net/unix")
	isUnused := func(socket string) bool { return !strings.Contains(string(open), socket) }
	var errs []error
	for _, strays := range []struct {
		pattern string
		isOurs  func(path string) bool
	}{
		{"/var/log/containers/*.log", func(link string) bool {
			target, _ := os.Readlink(link)
			return strings.Contains(target, "/.cluster/node/")
		}},
		{"/run/containerd/s/*", isUnused},
		{"/var/lib/cni/results/" + cniName + "-*", func(string) bool { return true }},
		{"/var/lib/kubelet/device-plugins/kubelet.sock", isUnused},
	} {
		paths, _ := filepath.Glob(strays.pattern)
		for _, path := range paths {
			if strays.isOurs(path) {
				errs = append(errs, os.Remove(path))
			}
		}
	}
	for _, dir := range []string{"/var/log/containers", "/run/containerd/s", "/run/containerd", "/var/lib/cni/results",
		"/var/lib/cni", "/var/lib/kubelet/device-plugins", "/var/lib/kubelet"} {
		_ = os.Remove(dir) // fails unless it is empty
	}
	return errors.Join(errs...)
}
