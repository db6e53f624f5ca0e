// Package cluster starts and ends the ephemeral Kubernetes clusters that the tests and the demo run on:
//
//   - kwok: a real control plane with simulated nodes; no root, seconds to start.
//   - node: the same control plane with one real node, as root on Linux, without Docker.
//   - kind: where a Docker engine is.
//
// All three are e2e-framework cluster providers. One cluster of a kind belongs to one clone of the repository:
// its state, kubeconfig and logs are in .cluster/<kind>, so the command line (tests/cluster/cmd) and a test
// process find the same cluster, and clones do not meet.
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

	"github.com/example/memcached-operator/tests/harness"
)

// Cluster is one ephemeral cluster. It does nothing until Create.
type Cluster struct {
	// Kind is kwok, node or kind.
	Kind string
	// Nodes is the number of simulated nodes of a kwok cluster; 0 means 3, or as many as there are.
	Nodes int
	// AuditPolicy is that of the API server of a new kwok cluster, which then writes AuditLog; empty for none.
	AuditPolicy string
	// Env is added to the environment of the programs of a new control plane, each NAME=value; those of kind have their
	// own.
	Env []string
	// Log receives progress, one line a step.
	Log io.Writer

	driver driver
	root   string // the repository
	bin    string // pinned tools
	dir    string // state of this cluster
	name   string

	packages sync.Mutex
}

// driver is what differs between the kinds.
type driver interface {
	// up starts the cluster on a clean slate and leaves its kubeconfig in place.
	up(ctx context.Context) error
	// down removes every trace of the cluster, whatever state it is in.
	down(ctx context.Context) error
	// check says what is missing for the cluster to be usable; nil means that it is up.
	check(ctx context.Context) error
	// loadArchive makes the images of a docker archive available to the nodes as ref.
	loadArchive(ctx context.Context, archive, ref string) error
}

var _ support.E2EClusterProviderWithImageLoader = (*Cluster)(nil)

// New returns the cluster of that kind of this clone of the repository.
func New(kind string) (*Cluster, error) {
	root, err := harness.Repository()
	if err != nil {
		return nil, err
	}
	hash := fnv.New32a()
	hash.Write([]byte(root))
	c := &Cluster{
		Kind: kind, Log: os.Stderr,
		root: root,
		bin:  filepath.Join(root, "bin"),
		dir:  filepath.Join(root, ".cluster", kind),
		name: fmt.Sprintf("memcached-operator-%08x", hash.Sum32()),
	}
	switch kind {
	case "kwok":
		c.driver = &kwok{c}
	case "node":
		c.driver = &node{c}
	case "kind":
		c.driver = newKind(c)
	default:
		return nil, fmt.Errorf("no cluster of kind %q: use kwok, node or kind", kind)
	}
	return c, nil
}

// WithNodes sets the number of simulated nodes of a kwok cluster.
func WithNodes(n int) support.ClusterOpts {
	return func(p support.E2EClusterProvider) {
		if c, ok := p.(*Cluster); ok {
			c.Nodes = n
		}
	}
}

// Create starts the cluster, or finds that it is up, and returns the path of its kubeconfig.
func (c *Cluster) Create(ctx context.Context, _ ...string) (string, error) {
	unlock, err := c.lock()
	if err != nil {
		return "", err
	}
	defer unlock()

	if err := c.driver.check(ctx); err == nil {
		if k, ok := c.driver.(*kwok); ok && c.Nodes > 0 {
			return c.GetKubeconfig(), k.scale(ctx, c.Nodes)
		}
		return c.GetKubeconfig(), nil
	}
	start := time.Now()
	if err := c.driver.down(ctx); err != nil {
		return "", fmt.Errorf("%s cluster: cleaning up what an earlier one left: %w", c.Kind, err)
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

// CreateWithConfig is Create: the clusters have no configuration files.
func (c *Cluster) CreateWithConfig(ctx context.Context, _ string) (string, error) {
	return c.Create(ctx)
}

// Destroy ends the cluster and removes its state. It may be called at any time, also twice.
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

// Check returns nil if the cluster is up, or what is missing.
func (c *Cluster) Check(ctx context.Context) error { return c.driver.check(ctx) }

// GetKubeconfig is the path of the cluster's kubeconfig, an administrator's.
func (c *Cluster) GetKubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// GenerateKubeconfig is GetKubeconfig.
func (c *Cluster) GenerateKubeconfig(...string) (string, error) { return c.GetKubeconfig(), nil }

// GetKubectlContext is empty: the kubeconfig has one context, and it is current.
func (c *Cluster) GetKubectlContext() string { return "" }

// KubernetesRestConfig is the administrator's client configuration, nil while the cluster is down.
func (c *Cluster) KubernetesRestConfig() *rest.Config {
	cfg, err := RestConfig(c.GetKubeconfig())
	if err != nil {
		return nil
	}
	return cfg
}

// RestConfig reads a kubeconfig, and the certificates that it names: client-go would take those of a cluster that was
// begun anew, in files of the same names, for the old ones.
func RestConfig(kubeconfig string) (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	return cfg, rest.LoadTLSFiles(cfg)
}

// ExportLogs copies the logs of the cluster's components to dest.
func (c *Cluster) ExportLogs(_ context.Context, dest string) error {
	var errs []error
	for _, log := range c.logs() {
		text, err := os.ReadFile(log)
		errs = append(errs, err)
		if err == nil {
			errs = append(errs, os.WriteFile(filepath.Join(dest, filepath.Base(log)), text, 0o644))
		}
	}
	return errors.Join(errs...)
}

// LoadImage makes an image of the local engine (see BuildImage) available to the nodes under its name.
// The nodes of a kwok cluster run nothing, so there it does nothing.
func (c *Cluster) LoadImage(ctx context.Context, image string, _ ...string) error {
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
	return c.LoadImageArchive(ctx, archive.Name(), image)
}

// LoadImageArchive makes the image of a docker archive available to the nodes under the name in args.
func (c *Cluster) LoadImageArchive(ctx context.Context, archive string, args ...string) error {
	if len(args) != 1 {
		return fmt.Errorf("load %s: exactly one image name is needed", archive)
	}
	return c.driver.loadArchive(ctx, archive, args[0])
}

// SetDefaults, WithName, WithVersion, WithPath and WithOpts complete the provider interface. Names, versions
// and paths are fixed by the clone and by the pinned tools.
func (c *Cluster) SetDefaults() support.E2EClusterProvider                  { return c }
func (c *Cluster) WithName(string) support.E2EClusterProvider               { return c }
func (c *Cluster) WithVersion(string) support.E2EClusterProvider            { return c }
func (c *Cluster) WithPath(string) support.E2EClusterProvider               { return c }
func (c *Cluster) WaitForControlPlane(context.Context, klient.Client) error { return nil }
func (c *Cluster) WithOpts(opts ...support.ClusterOpts) support.E2EClusterProvider {
	for _, o := range opts {
		o(c)
	}
	return c
}

// lock keeps two commands from starting or ending the same cluster at once; the second waits.
func (c *Cluster) lock() (func(), error) {
	if err := os.MkdirAll(filepath.Dir(c.dir), 0o755); err != nil {
		return nil, err
	}
	path := c.dir + ".lock"
	if c.Kind == "node" && os.Geteuid() == 0 {
		path = nodeRun + ".lock" // one a machine
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

// AuditLog is where the API server writes what AuditPolicy asks for, one event of the API audit.k8s.io a line. It is
// missing until there is a first one.
func (c *Cluster) AuditLog() string { return c.path("logs", "audit.log") }

func (c *Cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}

func (c *Cluster) logf(format string, args ...any) {
	fmt.Fprintf(c.Log, format+"\n", args...)
}
