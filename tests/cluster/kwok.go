package cluster

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"text/template"
	"time"

	"k8s.io/client-go/discovery"

	"github.com/example/memcached-operator/internal/testing/harness"
)

//go:embed kwokctl.yaml
var kwokctlConfig string

//go:embed kwok-proxy.yaml
var proxyStage []byte

// auditPolicy logs the requests of all service accounts of a namespace: a watch when it starts, all others when they
// have ended.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:%s
- level: Metadata
  userGroups: ["system:serviceaccounts:%s"]
- level: None
`

// auditContents also logs what the operator writes, without leases, and each write of a Secret by anybody, so that a
// test can look for the contents of Secrets in what the operator writes.
const auditContents = `
- level: Metadata
  resources: [{group: coordination.k8s.io}]
  userGroups: ["system:serviceaccounts:` + OperatorNamespace + `"]
- level: Request
  verbs: [create, update, patch]
  userGroups: ["system:serviceaccounts:` + OperatorNamespace + `"]
- level: Request
  verbs: [create, update, patch]
  resources: [{group: "", resources: [secrets]}]`

// kwok is a control plane with simulated nodes and pods. A pod is Running a moment after it was scheduled.
type kwok struct{ *Cluster }

func (k *kwok) check(ctx context.Context) error { return k.checkControlPlane(ctx) }

func (k *kwok) up(ctx context.Context) error {
	if err := k.startControlPlane(ctx, nil); err != nil {
		return err
	}
	_, err := k.kubectl(ctx, "apply", "--filename", filepath.Join(k.root, "tests", "cluster", "kwok-deletion.yaml"))
	if err != nil {
		return err
	}
	// Each simulated node has room for a thousand pods.
	_, err = k.kwokctl(ctx, "scale", "node", "--replicas", strconv.Itoa(cmp.Or(k.Nodes, 3)),
		"--param", ".allocatable.pods=1000", "--param", ".allocatable.cpu=1000")
	return err
}

func (k *kwok) down(ctx context.Context) error {
	if err := k.kill(ctx, k.allPIDFiles()...); err != nil {
		return err
	}
	return os.RemoveAll(k.dir)
}

func (k *kwok) loadArchive(context.Context, string, string) error { return nil }

// startControlPlane runs etcd, kube-apiserver, kube-controller-manager and kube-scheduler with kwokctl, and kwok too
// unless there is a real node. All ports are free ones, so that clusters of several clones can run at the same time.
func (c *Cluster) startControlPlane(ctx context.Context, node *nodeOptions) error {
	if err := c.needTools("kubernetes", "kwok", "etcd"); err != nil {
		return err
	}
	var config bytes.Buffer
	policy := fmt.Sprintf(auditPolicy, auditContents, OperatorNamespace)
	if c.AuditedNamespace != "" {
		policy = fmt.Sprintf(auditPolicy, "", c.AuditedNamespace)
	}
	if err := errors.Join(os.MkdirAll(c.path("logs"), 0o755),
		os.WriteFile(c.path("audit-policy.yaml"), []byte(policy), 0o644)); err != nil {
		return err
	}
	values := map[string]any{"Bin": c.bin, "Node": node, "AuditPolicy": c.path("audit-policy.yaml"),
		"AuditLog": c.AuditLog()}
	err := template.Must(template.New("").Funcs(template.FuncMap{"port": harness.FreePort}).Parse(kwokctlConfig)).
		Execute(&config, values)
	if err != nil {
		return fmt.Errorf("kwokctl.yaml: %w", err)
	}
	if node == nil {
		if err := c.addStages(ctx, &config); err != nil {
			return err
		}
	}
	if err := os.WriteFile(c.path("kwokctl.yaml"), config.Bytes(), 0o644); err != nil {
		return err
	}
	_, err = c.kwokctl(ctx, "create", "cluster", "--config", c.path("kwokctl.yaml"), "--kubeconfig", c.GetKubeconfig(),
		"--wait", "60s")
	if err == nil {
		err = c.checkControlPlane(ctx)
	}
	if gone := c.gone(); err != nil && len(gone) > 0 {
		return c.tail(err, gone[0])
	}
	return err
}

// addStages adds what kwok simulates: its own defaults, which it leaves out as soon as there is any other stage, and
// proxies.
func (c *Cluster) addStages(ctx context.Context, config *bytes.Buffer) error {
	dir, _, err := harness.Module(ctx, filepath.Join(c.root, "tools/kwok"), "sigs.k8s.io/kwok")
	if err != nil {
		return err
	}
	for _, name := range []string{"node/fast/node-initialize", "node/heartbeat-with-lease/node-heartbeat-with-lease",
		"pod/fast/pod-ready", "pod/fast/pod-complete", "pod/fast/pod-delete"} {
		stage, err := os.ReadFile(filepath.Join(dir, "kustomize/stage", name+".yaml"))
		if err != nil {
			return err
		}
		fmt.Fprintf(config, "---\n%s", stage)
	}
	fmt.Fprintf(config, "---\n%s", proxyStage)
	return nil
}

// kwokctl runs kwokctl with its state in the cluster's folder. The programs that it starts inherit its environment.
func (c *Cluster) kwokctl(ctx context.Context, args ...string) (string, error) {
	command, args := filepath.Join(c.bin, "kwokctl"), append(args, "--name", "c")
	if c.Kind == "node" {
		command, args = inCgroup(command, args...)
	}
	return run(ctx, append([]string{"KWOK_WORKDIR=" + c.dir, "KUBECONFIG=" + c.GetKubeconfig()}, c.Env...), command,
		args...)
}

// checkControlPlane returns an error if a program is not running or the API server is not ready.
func (c *Cluster) checkControlPlane(ctx context.Context) error {
	if err := c.checkProcesses(); err != nil {
		return err
	}
	return c.checkAPI(ctx)
}

func (c *Cluster) checkAPI(ctx context.Context) error {
	config, err := RestConfig(c.GetKubeconfig())
	if err != nil {
		return err
	}
	config.Timeout = 5 * time.Second
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	return client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

// needTools returns an error that says how to build the tools, if one of them is not built.
func (c *Cluster) needTools(names ...string) error {
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(c.bin, ".built", name)); err != nil {
			return fmt.Errorf("%s is not built: run `make cluster-up CLUSTER=%s`, which builds what it needs", name, c.Kind)
		}
	}
	return nil
}
