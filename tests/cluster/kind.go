package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"

	"sigs.k8s.io/e2e-framework/support"
	kindprovider "sigs.k8s.io/e2e-framework/support/kind"
)

// kind is e2e-framework's own provider, with the pinned kind and with the kubeconfig in the same place as the other
// clusters. KIND_NODE_IMAGE selects another version of Kubernetes.
type kind struct {
	*Cluster
	provider support.E2EClusterProviderWithImageLoader
}

func newKind(c *Cluster) *kind {
	provider := kindprovider.NewCluster(c.name)
	provider.WithPath(c.bin + "/kind")
	provider.WithOpts(kindprovider.WithImage(os.Getenv("KIND_NODE_IMAGE")))
	return &kind{c, provider}
}

func (k *kind) check(ctx context.Context) error { return k.checkAPI(ctx) }

func (k *kind) up(ctx context.Context) error {
	if err := k.needTools("kind", "kubectl"); err != nil {
		return err
	}
	if _, err := run(ctx, nil, "docker", "version"); err != nil {
		return fmt.Errorf("kind needs a Docker engine that answers: %w", err)
	}
	kubeconfig, err := k.provider.Create(ctx, "--wait", "2m")
	if err != nil {
		return err
	}
	return os.Rename(kubeconfig, k.GetKubeconfig())
}

func (k *kind) down(ctx context.Context) error {
	if !isDir(k.dir) {
		return nil
	}
	if err := errors.Join(k.kill(ctx, k.allPIDFiles()...), k.provider.Destroy(ctx)); err != nil {
		return err
	}
	return os.RemoveAll(k.dir)
}

func (k *kind) loadArchive(ctx context.Context, archive, _ string) error {
	return k.provider.LoadImageArchive(ctx, archive)
}
