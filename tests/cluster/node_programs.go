package cluster

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/example/memcached-operator/internal/testing/harness"
)

//go:embed node
var nodeFiles embed.FS

// configure writes a configuration file from its template and returns the path.
func (n *node) configure(o *nodeOptions, name string) (string, error) {
	t, err := template.ParseFS(nodeFiles, "node/"+name)
	if err != nil {
		return "", err
	}
	var text bytes.Buffer
	if err := t.Execute(&text, o); err != nil {
		return "", err
	}
	path := n.path(name)
	if name == "cni.conflist" || name == "hosts.toml" { // containerd wants a folder for each of these
		path = n.path(strings.TrimSuffix(name, filepath.Ext(name)), "_default", name)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	return path, os.WriteFile(path, text.Bytes(), 0o644)
}

func (n *node) startContainerd(ctx context.Context, o *nodeOptions) error {
	_, cni := n.configure(o, "cni.conflist")
	_, hosts := n.configure(o, "hosts.toml")
	config, err := n.configure(o, "containerd.toml")
	if err := errors.Join(cni, hosts, err); err != nil {
		return err
	}
	// containerd finds its shim through PATH.
	path := []string{"PATH=" + n.bin + ":" + os.Getenv("PATH")}
	if err := n.start("containerd", path, filepath.Join(n.bin, "containerd"), "--config", config); err != nil {
		return err
	}
	return n.tail(harness.Poll(ctx, func(ctx context.Context) error {
		_, err := n.ctr(ctx, "version")
		return err
	}), "containerd")
}

// ctr runs containerd's client in the namespace of Kubernetes.
func (n *node) ctr(ctx context.Context, args ...string) (string, error) {
	args = append([]string{"--address", nodeRun + "/containerd.sock", "--namespace", "k8s.io"}, args...)
	return run(ctx, nil, filepath.Join(n.bin, "ctr"), args...)
}

// startNode runs kubelet, kube-proxy and CoreDNS, and waits until the node is ready.
func (n *node) startNode(ctx context.Context, o *nodeOptions) error {
	kubelet, err1 := n.configure(o, "kubelet.yaml")
	corefile, err2 := n.configure(o, "Corefile")
	dns, err3 := n.configure(o, "dns.yaml")
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	err := errors.Join(
		n.start("kubelet", nil, filepath.Join(n.bin, "kubelet"), "--config", kubelet, "--kubeconfig", n.GetKubeconfig(),
			"--hostname-override", nodeName, "--node-ip", o.NodeIP,
			"--root-dir", nodeRun+"/kubelet", "--cert-dir", n.path("kubelet-pki")),
		n.start("kube-proxy", nil, filepath.Join(n.bin, "kube-proxy"), "--kubeconfig", n.GetKubeconfig(),
			"--hostname-override", nodeName, "--proxy-mode", "nftables", "--cluster-cidr", o.PodCIDR,
			"--healthz-bind-address", o.onNode("10256"), "--metrics-bind-address", o.onNode("10249"),
			// Keeps the machine's own limits.
			"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s"),
		n.start("coredns", nil, filepath.Join(n.bin, "coredns"), "-conf", corefile))
	if err != nil {
		return err
	}
	if _, err := n.kubectl(ctx, "apply", "-f", dns); err != nil {
		return err
	}
	return n.tail(harness.Poll(ctx, n.checkNode), "kubelet")
}

// kubectl runs the pinned kubectl as the cluster's administrator.
func (c *Cluster) kubectl(ctx context.Context, args ...string) (string, error) {
	return run(ctx, []string{"KUBECONFIG=" + c.GetKubeconfig()}, filepath.Join(c.bin, "kubectl"), args...)
}

// checkNode returns an error if pods cannot run or cannot find each other yet.
func (n *node) checkNode(ctx context.Context) error {
	if err := n.checkProcesses(); err != nil {
		return err
	}
	// kube-proxy is healthy before it has written its first rules. It writes all of them at once.
	if _, err := run(ctx, nil, "nft", "list", "table", chosenFamily.Table, "kube-proxy"); err != nil {
		return fmt.Errorf("kube-proxy has no rules yet: %w", err)
	}
	if _, err := get(ctx, "http://"+chosenFamily.onNode("8181")+"/ready"); err != nil {
		return fmt.Errorf("DNS: %w", err)
	}
	client, err := kubernetes.NewForConfig(n.KubernetesRestConfig())
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}); err != nil {
		return err
	}
	object, err := client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range object.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			return fmt.Errorf("the node is not ready: %s", condition.Message)
		}
	}
	if len(object.Spec.Taints) > 0 {
		return fmt.Errorf("the node is tainted: %s", object.Spec.Taints[0].Key)
	}
	return nil
}
