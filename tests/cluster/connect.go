package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"

	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// RealPods reports whether clusters of this kind run pods; kwok only simulates them.
func RealPods(kind string) bool { return kind == "node" || kind == "kind" }

// ReachPods lets processes of this machine connect to pods and Services by their IP addresses, as on a node cluster. On
// kwok there is nothing to connect to.
func (c *Cluster) ReachPods(ctx context.Context) error {
	if k, ok := c.driver.(*kind); ok {
		return k.reachPods(ctx)
	}
	return nil
}

// Connect returns the running cluster of this kind, whose pods this process can reach, and an administrator's client.
// It also makes commands of this process use that cluster and the pinned tools.
func Connect(kind string) (*Cluster, client.WithWatch, error) {
	log.SetLogger(log.Log) // discards the logs of the client
	c, err := New(kind)
	if err != nil {
		return nil, nil, err
	}
	config := c.KubernetesRestConfig()
	if config == nil {
		return nil, nil, fmt.Errorf("the cluster is down: make cluster-up CLUSTER=%s", kind)
	}
	config.QPS = -1
	if err := errors.Join(os.Setenv("PATH", c.bin+":"+os.Getenv("PATH")), os.Setenv("KUBECONFIG", c.GetKubeconfig()),
		v1alpha1.AddToScheme(clientgoscheme.Scheme), c.ReachPods(context.Background())); err != nil {
		return nil, nil, err
	}
	api, err := client.NewWithWatch(config, client.Options{Scheme: clientgoscheme.Scheme})
	return c, api, err
}
