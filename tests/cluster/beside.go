package cluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// The names that kube-network-policies uses for its table of rules and for its packet queue.
const (
	policyTable = "kube-network-policies"
	policyQueue = "100"
)

// CertManager installs cert-manager's CRDs and runs its controllers until stop is called.
func (c *Cluster) CertManager(ctx context.Context) (stop func() error, err error) {
	dir, _, err := harness.Module(ctx, filepath.Join(c.root, "tools/cert-manager"), "github.com/cert-manager/cert-manager")
	if err != nil {
		return nil, err
	}
	crds := filepath.Join(dir, "deploy/crds")
	if _, err := c.kubectl(ctx, "apply", "--server-side", "--filename", crds); err != nil {
		return nil, err
	}
	if _, err := c.kubectl(ctx, "wait", "--for=condition=Established", "--filename", crds); err != nil {
		return nil, err
	}
	return c.beside("cert-manager", "-kubeconfig", c.GetKubeconfig())
}

// NetworkPolicies enforces NetworkPolicies for traffic to pods until stop is called. On kind, the cluster's own network
// always enforces them.
func (c *Cluster) NetworkPolicies(ctx context.Context) (stop func() error, err error) {
	if c.Kind == "kind" {
		return func() error { return nil }, nil
	}
	if err := errors.Join(c.installPackages(ctx, "iptables"), deletePolicyRules(ctx)); err != nil {
		return nil, err
	}
	end, err := c.beside("kube-network-policies", "-node", nodeName, "-queue", policyQueue, "-kubeconfig",
		c.GetKubeconfig())
	if err != nil {
		return nil, err
	}
	stop = func() error { return errors.Join(end(), deletePolicyRules(context.Background())) }
	err = c.await(ctx, "kube-network-policies", stop, func(context.Context) error {
		queues, err := os.ReadFile("/proc/net/netfilter/nfnetlink_queue")
		for line := range strings.Lines(string(queues)) {
			if strings.HasPrefix(strings.TrimSpace(line), policyQueue+" ") {
				return nil
			}
		}
		return errors.Join(err, errors.New("kube-network-policies does not read its queue"))
	})
	if err != nil {
		return nil, err
	}
	// If the kernel has no nft_queue, kube-network-policies tries again and again to install its own rules. If it has,
	// each connection is queued twice, which changes nothing.
	if err := queuePackets(ctx, "--append"); err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

// queuePackets adds or deletes the rule that sends each new connection to a pod through the queue of
// kube-network-policies. Connections of root on this machine are exempt, because the kubelet probes as root. Without a
// reader of the queue, all connections are allowed.
func queuePackets(ctx context.Context, do string) error {
	_, err := run(ctx, nil, "iptables", "--table", "mangle", do, "POSTROUTING", "--destination", podCIDR,
		"--match", "conntrack", "--ctstate", "NEW", "--match", "owner", "!", "--uid-owner", "0",
		"--jump", "NFQUEUE", "--queue-num", policyQueue, "--queue-bypass")
	return err
}

// deletePolicyRules deletes the rules of NetworkPolicies, also after kube-network-policies was killed.
func deletePolicyRules(ctx context.Context) error {
	if queuePackets(ctx, "--check") == nil {
		if err := queuePackets(ctx, "--delete"); err != nil {
			return err
		}
	}
	return deleteTable(ctx, "inet "+policyTable)
}

// beside runs a program of bin until stop is called. It first stops a process that an earlier test left. The arguments
// must name a file in the cluster's folder, as for start.
func (c *Cluster) beside(name string, args ...string) (stop func() error, err error) {
	pidFile := c.path("pids", "beside", name+".pid")
	stop = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		return c.signal(ctx, pidFile, syscall.SIGTERM)
	}
	if err := stop(); err != nil {
		return nil, err
	}
	return stop, c.startAs(pidFile, name, nil, filepath.Join(c.bin, name), args...)
}

// await waits until a program that beside runs is ready. Otherwise it stops the program.
func (c *Cluster) await(ctx context.Context, name string, stop func() error, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("not after 30 seconds"))
	defer cancel()
	err := harness.Poll(ctx, ready)
	if err != nil {
		err = c.tail(errors.Join(err, stop()), name)
	}
	return err
}
