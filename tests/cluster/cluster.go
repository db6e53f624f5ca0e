// Package cluster starts and stops the ephemeral Kubernetes clusters of the tests and of the demo:
//
//   - kwok: a real control plane with simulated nodes. It needs no root and starts in seconds.
//   - node: the same control plane with one real node. It needs root on Linux, but no Docker.
//   - kind: needs a Docker engine.
//
// All three implement the provider interface of e2e-framework. Each clone of the repository has at most one cluster of
// a kind, with its state, kubeconfig and logs in .cluster/<kind>. So the command line (tests/cluster/cmd) and a test
// process find the same cluster, and clones do not disturb each other.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/e2e-framework/klient"
	"sigs.k8s.io/e2e-framework/support"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// Cluster is one ephemeral cluster. It does nothing until Create.
type Cluster struct {
	// Kind is kwok, node or kind.
	Kind string
	// Nodes is the number of simulated nodes of a new kwok cluster; 0 means 3.
	Nodes int
	// AuditedNamespace is the namespace whose service accounts' requests the API server of a new cluster writes to its
	// audit log. By default, that is the operator's, and what the operator writes is logged too. kind clusters have no
	// such log.
	AuditedNamespace string
	// Env is added to the environment of a new control plane's programs, each entry as NAME=value. kind clusters ignore
	// it.
	Env []string
	// Log receives progress, one line for each step.
	Log io.Writer

	driver driver
	root   string // the repository
	bin    string // pinned tools
	dir    string // state of this cluster
	name   string

	packages sync.Mutex
}

// driver implements what differs between the kinds of clusters.
type driver interface {
	// up starts the cluster after down has removed an earlier one, and writes its kubeconfig.
	up(ctx context.Context) error
	// down removes the cluster completely, in any state.
	down(ctx context.Context) error
	// check returns nil if the cluster is up, or an error that names what is missing.
	check(ctx context.Context) error
	// loadArchive makes the images of a docker archive available to the nodes as ref.
	loadArchive(ctx context.Context, archive, ref string) error
}

var _ support.E2EClusterProvider = (*Cluster)(nil)

// New returns the cluster of this kind that belongs to this clone of the repository.
func New(kindName string) (*Cluster, error) {
	root, err := harness.Repository()
	if err != nil {
		return nil, err
	}
	hash := fnv.New32a()
	hash.Write([]byte(root))
	c := &Cluster{
		Kind: kindName, Log: os.Stderr,
		root: root,
		bin:  filepath.Join(root, "bin"),
		dir:  filepath.Join(root, ".cluster", kindName),
		name: fmt.Sprintf("memcached-operator-%08x", hash.Sum32()),
	}
	switch kindName {
	case "kwok":
		c.driver = &kwok{c}
	case "node":
		c.driver = &node{c}
	case "kind":
		c.driver = &kind{c}
	default:
		return nil, fmt.Errorf("no cluster of kind %q: use kwok, node or kind", kindName)
	}
	return c, nil
}

// Create starts the cluster if it is not up, and returns the path of its kubeconfig.
func (c *Cluster) Create(ctx context.Context, _ ...string) (string, error) {
	unlock, err := c.lock()
	if err != nil {
		return "", err
	}
	defer unlock()

	if err := c.driver.check(ctx); err == nil {
		return c.GetKubeconfig(), nil
	}
	start := time.Now()
	if err := c.driver.down(ctx); err != nil {
		return "", fmt.Errorf("%s cluster: remove an earlier one: %w", c.Kind, err)
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return "", err
	}
	if err := c.driver.up(ctx); err != nil {
		return "", fmt.Errorf("%s cluster: %w", c.Kind, err)
	}
	c.logf("%s cluster is up in %.1f s: export KUBECONFIG=%s", c.Kind, time.Since(start).Seconds(), c.GetKubeconfig())
	return c.GetKubeconfig(), nil
}

// Destroy stops the cluster and removes its state. It may be called in any state, also twice.
func (c *Cluster) Destroy(ctx context.Context) error {
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.driver.down(ctx); err != nil {
		return fmt.Errorf("%s cluster: %w", c.Kind, err)
	}
	return os.RemoveAll(c.dir)
}

// Check returns nil if the cluster is up, or an error that names what is missing.
func (c *Cluster) Check(ctx context.Context) error { return c.driver.check(ctx) }

// GetKubeconfig returns the path of the administrator's kubeconfig.
func (c *Cluster) GetKubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// KubernetesRestConfig returns the administrator's client configuration, or nil while the cluster is down.
func (c *Cluster) KubernetesRestConfig() *rest.Config {
	cfg, err := RestConfig(c.GetKubeconfig())
	if err != nil {
		return nil
	}
	return cfg
}

// RestConfig reads a kubeconfig and the content of its certificate files. If client-go read the files itself, it would
// reuse cached connections to an earlier cluster whose files had the same names.
func RestConfig(kubeconfig string) (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	return cfg, rest.LoadTLSFiles(cfg)
}

// LoadImage makes an image of the local engine (see BuildImage) available to the nodes. On a kwok cluster it does
// nothing, because simulated nodes run no containers.
func (c *Cluster) LoadImage(ctx context.Context, image string) error {
	if c.Kind == "kwok" {
		return nil
	}
	archive, err := os.CreateTemp("", "image-*.tar")
	if err != nil {
		return err
	}
	_ = archive.Close()
	defer os.Remove(archive.Name())
	if err := c.engine().save(ctx, image, archive.Name()); err != nil {
		return err
	}
	return c.driver.loadArchive(ctx, archive.Name(), image)
}

// The other methods of the provider interface of e2e-framework: names, versions and paths are fixed by the clone and by
// the pinned tools, the kubeconfig has one context, and the logs are in the cluster's folder.

func (c *Cluster) SetDefaults() support.E2EClusterProvider                    { return c }
func (c *Cluster) WithName(string) support.E2EClusterProvider                 { return c }
func (c *Cluster) WithVersion(string) support.E2EClusterProvider              { return c }
func (c *Cluster) WithPath(string) support.E2EClusterProvider                 { return c }
func (c *Cluster) WithOpts(...support.ClusterOpts) support.E2EClusterProvider { return c }
func (c *Cluster) WaitForControlPlane(context.Context, klient.Client) error   { return nil }
func (c *Cluster) CreateWithConfig(ctx context.Context, _ string) (string, error) {
	return c.Create(ctx)
}
func (c *Cluster) GenerateKubeconfig(...string) (string, error) { return c.GetKubeconfig(), nil }
func (c *Cluster) GetKubectlContext() string                    { return "" }
func (c *Cluster) ExportLogs(context.Context, string) error     { return nil }

// lock prevents two commands from starting or stopping the same cluster at the same time: the second one waits.
func (c *Cluster) lock() (func(), error) {
	if err := os.MkdirAll(filepath.Dir(c.dir), 0o755); err != nil {
		return nil, err
	}
	path := c.dir + ".lock"
	if c.Kind == "node" && os.Geteuid() == 0 {
		path = nodeRun + ".lock" // one node cluster for each machine
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	return func() { _ = file.Close() }, nil
}

// AuditLog returns the path of the audit log: one event of audit.k8s.io on each line. The file does not exist before
// the first event.
func (c *Cluster) AuditLog() string { return c.path("logs", "audit.log") }

// AuditLogs returns the paths of the audit log and of its earlier parts, the oldest first.
func (c *Cluster) AuditLogs() []string {
	earlier, _ := filepath.Glob(c.path("logs", "audit-*.log"))
	return append(earlier, c.AuditLog())
}

// KeepLogs keeps the logs of the containers that are in a namespace now: ContainerLogs returns them even if their pods
// are deleted. Only node clusters have such logs.
func (c *Cluster) KeepLogs(namespace string) error {
	logs, err := filepath.Glob(c.path("pods", namespace+"_*", "*", "*.log"))
	for _, log := range logs {
		container := filepath.Dir(log)
		dir := c.path("kept", filepath.Base(filepath.Dir(container)), filepath.Base(container))
		err = errors.Join(err, os.MkdirAll(dir, 0o755))
		e := os.Link(log, filepath.Join(dir, filepath.Base(log)))
		if !errors.Is(e, os.ErrExist) && !errors.Is(e, os.ErrNotExist) { // kept before, or the pod has just been deleted
			err = errors.Join(err, e)
		}
	}
	return err
}

// ContainerLogs returns the paths of the logs of containers with this name, of pods that exist and of those whose logs
// KeepLogs has kept. Only node clusters have such logs.
func (c *Cluster) ContainerLogs(name string) []string {
	logs, _ := filepath.Glob(c.path("pods", "*", name, "*.log"))
	kept, _ := filepath.Glob(c.path("kept", "*", name, "*.log"))
	return append(logs, kept...)
}

// OperatorLogs returns the paths of the logs of the operator's replicas.
func (c *Cluster) OperatorLogs() []string {
	processes, _ := filepath.Glob(c.path("logs", "operator-*.log"))
	return append(processes, c.ContainerLogs("manager")...)
}

func (c *Cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}

func (c *Cluster) logf(format string, args ...any) {
	fmt.Fprintf(c.Log, format+"\n", args...)
}
