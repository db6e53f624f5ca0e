package cluster

import (
	"context"
	"errors"
	"net"
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
	address, err = harness.FreeAddress()
	if err != nil {
		return "", nil, err
	}
	own, err := harness.FreeAddress() // for the metrics about kube-state-metrics itself
	if err != nil {
		return "", nil, err
	}
	args := []string{"--kubeconfig=" + kubeconfig, "--custom-resource-state-only",
		"--custom-resource-state-config-file=" + config}
	for prefix, address := range map[string]string{"": address, "telemetry-": own} {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return "", nil, err
		}
		args = append(args, "--"+prefix+"host="+host, "--"+prefix+"port="+port)
	}
	stop, err = c.beside("kube-state-metrics", args...)
	return address, stop, err
}
