package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// kind is a cluster in a container of Docker. KIND_NODE_IMAGE selects another version of Kubernetes.
type kind struct{ *Cluster }

func (k *kind) check(ctx context.Context) error { return k.checkAPI(ctx) }

func (k *kind) up(ctx context.Context) error {
	if err := k.needTools("kind", "kubectl"); err != nil {
		return err
	}
	if _, err := run(ctx, nil, "docker", "version"); err != nil {
		return fmt.Errorf("kind needs a Docker engine that answers: %w", err)
	}
	args := []string{"create", "cluster", "--wait", "2m"}
	if image := os.Getenv("KIND_NODE_IMAGE"); image != "" {
		args = append(args, "--image", image)
	}
	return k.kind(ctx, append(args, "--kubeconfig", k.GetKubeconfig())...)
}

func (k *kind) down(ctx context.Context) error {
	if !isDir(k.dir) {
		return nil
	}
	err := errors.Join(k.kill(ctx, k.allPIDFiles()...), k.deleteRoutes(ctx),
		k.kind(ctx, "delete", "cluster", "--kubeconfig", k.GetKubeconfig()))
	if err != nil {
		return err
	}
	return os.RemoveAll(k.dir)
}

// kind runs kind for this cluster.
func (k *kind) kind(ctx context.Context, args ...string) error {
	_, err := run(ctx, nil, filepath.Join(k.bin, "kind"), append(args, "--name", k.name)...)
	return err
}

func (k *kind) loadArchive(ctx context.Context, archive, _ string) error {
	return k.kind(ctx, "load", "image-archive", archive)
}

// reachPods routes the addresses of pods and Services through the node, which is a neighbor of this machine on Docker's
// bridge. The routes need root; only Linux has such a bridge.
func (k *kind) reachPods(ctx context.Context) error {
	if runtime.GOOS != "linux" {
		return errors.New("this test connects to pods, which Docker runs in a virtual machine here: use Linux")
	}
	node, err := k.kubectl(ctx, "get", "nodes", "--output",
		`jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}`)
	if err != nil {
		return err
	}
	for _, cidr := range []string{podCIDR, serviceCIDR} {
		if k.hasRoute(ctx, cidr, node) {
			continue
		}
		if err := k.route(ctx, "add", cidr, node); err != nil {
			return err
		}
	}
	return os.WriteFile(k.path("routed"), []byte(node), 0o644)
}

// deleteRoutes deletes what reachPods added.
func (k *kind) deleteRoutes(ctx context.Context) error {
	node, err := os.ReadFile(k.path("routed"))
	if err != nil {
		return nil // reachPods was not called
	}
	for _, cidr := range []string{podCIDR, serviceCIDR} {
		if k.hasRoute(ctx, cidr, string(node)) {
			err = errors.Join(err, k.route(ctx, "delete", cidr, string(node)))
		}
	}
	return err
}

func (k *kind) hasRoute(ctx context.Context, cidr, node string) bool {
	found, err := run(ctx, nil, "ip", "route", "show", "exact", cidr)
	return err == nil && strings.Contains(found, " via "+node+" ")
}

// route adds or deletes a route. It asks for no password: it rather fails with the command in its error.
func (k *kind) route(ctx context.Context, do, cidr, node string) error {
	command := []string{"ip", "route", do, cidr, "via", node}
	if os.Geteuid() != 0 {
		command = append([]string{"sudo", "--non-interactive"}, command...)
	}
	k.logf("%s", strings.Join(command, " "))
	_, err := run(ctx, nil, command[0], command[1:]...)
	return err
}
