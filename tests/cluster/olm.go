package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// The versions in tools, with which upstream tags the images.
const (
	scorecardVersion = "v1.42.3"
	olmVersion       = "v0.40.0"
	opmVersion       = "v1.73.0"
)

// PublishOLM makes the images of the OLM of tools/olm available to the nodes of a node cluster, with those of opm and
// of scorecard. It builds them from the binaries in bin and pushes them under their upstream names. The nodes of a kind
// cluster pull the real ones.
func (c *Cluster) PublishOLM(ctx context.Context) error {
	if c.Kind != "node" {
		return nil
	}
	n := &node{c}
	if err := n.needTools("opm", "operator-sdk", "grpc-health-probe"); err != nil {
		return err
	}
	shell, err := n.busybox(ctx) // its cp unpacks bundles, its sh the catalogs of `operator-sdk run bundle`
	if err != nil {
		return err
	}
	opm := map[string]file{"bin/opm": n.tool("opm"), "bin/grpc_health_probe": n.tool("grpc-health-probe"),
		"configs/": {mode: 0o755}}
	olm := map[string]file{}
	for _, name := range []string{"olm", "catalog", "package-server", "copy-content", "cpb"} {
		olm["bin/"+name] = n.tool(filepath.Join("olm-0.40", name))
	}
	for _, img := range []*image{
		{name: "quay.io/operator-framework/olm", tags: []string{olmVersion}, cmd: []string{"/bin/olm"}, files: olm},
		{
			name: "quay.io/operator-framework/opm", tags: []string{opmVersion, "latest"}, cmd: []string{"/bin/opm"}, files: opm,
			// For `operator-sdk run bundle`, which by default uses this image as an empty catalog.
			labels: map[string]string{"operators.operatorframework.io.index.configs.v1": "/configs"},
		},
		// An empty catalog in place of the community's: OLM resolves nothing while one of its default catalogs does not
		// answer.
		{name: "quay.io/operatorhubio/catalog", tags: []string{"latest"}, cmd: []string{"/bin/opm", "serve", "/configs"},
			files: opm},
		{name: "quay.io/operator-framework/scorecard-test", tags: []string{scorecardVersion},
			files: map[string]file{"bin/scorecard-test": n.tool("scorecard-test")}},
		{name: "quay.io/operator-framework/scorecard-untar", tags: []string{scorecardVersion}},
		{name: "registry.access.redhat.com/ubi9/ubi", tags: []string{"9.8"}}, // `operator-sdk run bundle` uses its gunzip
	} {
		img.user, img.env, img.files = "1001", defaultPath, merge(shell.files, img.files)
		if err := n.publish(ctx, img); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) tool(name string) file { return file{from: filepath.Join(n.bin, name), mode: 0o755} }

func merge(a, b map[string]file) map[string]file {
	both := maps.Clone(a)
	maps.Copy(both, b)
	return both
}

// Registry returns the address of a plain HTTP registry to which this machine can push. Nodes pull our images from it,
// under the registry of ImageBase or this address.
func (c *Cluster) Registry(ctx context.Context) (string, error) {
	r, ok := c.driver.(interface {
		registry(context.Context) (string, error)
	})
	if !ok {
		return "", fmt.Errorf("the nodes of a %s cluster pull no images", c.Kind)
	}
	return r.registry(ctx)
}

func (n *node) registry(context.Context) (string, error) {
	address, _, ok := strings.Cut(n.local("x"), "/")
	if !ok || address == "" {
		return "", errors.New("the node cluster is down")
	}
	return address, nil
}

// registry starts one registry, on the address of this machine that kind's nodes can reach, and configures their
// containerd.
func (k *kind) registry(ctx context.Context) (string, error) {
	known, err := os.ReadFile(k.path("registry.address"))
	if _, running := k.alive(k.path("pids", "registry.pid")); err == nil && running {
		return string(known), nil
	}
	gateways, err := run(ctx, nil, "docker", "network", "inspect", "kind", "--format",
		"{{range .IPAM.Config}}{{println .Gateway}}{{end}}")
	if err != nil {
		return "", err
	}
	port, err := harness.FreePort()
	if err != nil {
		return "", err
	}
	var address string
	for gateway := range strings.FieldsSeq(gateways) {
		if !strings.Contains(gateway, ":") { // not the IPv6 gateway
			address = fmt.Sprintf("%s:%d", gateway, port)
		}
	}
	if err := os.MkdirAll(k.path("registry"), 0o755); err != nil {
		return "", err
	}
	err = k.start("registry", nil, filepath.Join(k.bin, "crane"), "registry", "serve", "--address", address, "--disk",
		k.path("registry"))
	if err != nil {
		return "", err
	}
	hosts, err := (&node{k.Cluster}).configure(&nodeOptions{Registry: address}, "hosts.toml")
	if err != nil {
		return "", err
	}
	public, _ := ImageBase()
	for _, name := range []string{public, address} {
		dir := "/etc/containerd/certs.d/" + name
		_, err1 := run(ctx, nil, "docker", "exec", k.name+"-control-plane", "mkdir", "-p", dir)
		_, err2 := run(ctx, nil, "docker", "cp", hosts, k.name+"-control-plane:"+dir+"/hosts.toml")
		if err := errors.Join(err1, err2); err != nil {
			return "", err
		}
	}
	err = harness.Poll(ctx, func(ctx context.Context) error { _, err := get(ctx, "http://"+address+"/v2/"); return err })
	if err != nil {
		return "", k.tail(err, "registry")
	}
	return address, os.WriteFile(k.path("registry.address"), []byte(address), 0o644)
}
