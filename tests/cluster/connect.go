package cluster

import (
	"errors"
	"fmt"
	"os"

	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// Connect finds the cluster of that kind, which must be up, and returns an administrator's client. Commands of this
// process talk to that cluster too, and are the pinned tools.
func Connect(kind string) (*Cluster, client.WithWatch, error) {
	log.SetLogger(log.Log) // the client has nothing to say
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
		v1alpha1.AddToScheme(clientgoscheme.Scheme)); err != nil {
		return nil, nil, err
	}
	api, err := client.NewWithWatch(config, client.Options{Scheme: clientgoscheme.Scheme})
	return c, api, err
}
