package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// Prometheus runs Prometheus beside the cluster until stop is called, and returns its URL. It starts without data, and
// with these files in one folder; prometheus.yml is its configuration.
func (c *Cluster) Prometheus(ctx context.Context, files map[string][]byte) (url string, stop func() error, err error) {
	dir := c.path("prometheus")
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return "", nil, err
	}
	for name, content := range files {
		if err := os.WriteFile(c.path("prometheus", name), content, 0o600); err != nil {
			return "", nil, err
		}
	}
	address, err := harness.FreeAddress()
	if err != nil {
		return "", nil, err
	}
	stop, err = c.beside("prometheus", "--config.file="+c.path("prometheus", "prometheus.yml"),
		"--storage.tsdb.path="+c.path("prometheus", "data"), "--web.listen-address="+address)
	if err != nil {
		return "", nil, err
	}
	return "http://" + address, stop, c.await(ctx, "prometheus", stop, func(ctx context.Context) error {
		_, err := get(ctx, "http://"+address+"/-/ready")
		return err
	})
}

// StateMetrics runs kube-state-metrics beside the cluster as a service account until stop is called, and returns its
// address. It watches only the custom resources in its configuration.
func (c *Cluster) StateMetrics(ctx context.Context, namespace, account, config string) (address string,
	stop func() error, err error) {
	kubeconfig, err := c.KubeconfigOf(ctx, namespace, account)
	if err != nil {
		return "", nil, err
	}
	port, err1 := harness.FreePort()
	own, err2 := harness.FreePort() // for the metrics about kube-state-metrics itself
	if err := errors.Join(err1, err2); err != nil {
		return "", nil, err
	}
	stop, err = c.beside("kube-state-metrics", "--kubeconfig="+kubeconfig, "--custom-resource-state-only",
		"--custom-resource-state-config-file="+config, "--host=127.0.0.1", fmt.Sprint("--port=", port),
		"--telemetry-host=127.0.0.1", fmt.Sprint("--telemetry-port=", own))
	return fmt.Sprintf("127.0.0.1:%d", port), stop, err
}
