package cluster

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Metrics returns the metrics of the leader. On node and kind it authenticates with a token that may read metrics.
func (o *Operator) Metrics(ctx context.Context) (string, error) {
	leader, err := o.Leader(ctx)
	if err != nil {
		return "", err
	}
	if o.c.Kind == "kwok" {
		return o.process(leader).metrics(ctx)
	}
	token, err := o.metricsToken(ctx)
	if err != nil {
		return "", err
	}
	address, stop, err := o.c.Forward(ctx, OperatorNamespace, "pod/"+leader, 8443)
	if err != nil {
		return "", err
	}
	defer stop()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/metrics", nil)
	if err != nil {
		return "", err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // the certificate is self-signed
	defer transport.CloseIdleConnections()
	return do(&http.Client{Transport: transport}, request)
}

// metricsToken returns a token of a service account with the metrics reader role of config/rbac.
func (o *Operator) metricsToken(ctx context.Context) (string, error) {
	const reader = "memcached-operator-metrics-reader"
	file := o.c.path("metrics-reader.yaml")
	err := os.WriteFile(file, []byte(`apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: `+reader+`-test}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: `+reader+`}
subjects: [{kind: ServiceAccount, name: default, namespace: `+OperatorNamespace+`}]
`), 0o644)
	if err != nil {
		return "", err
	}
	if _, err := o.c.kubectl(ctx, "apply", "--filename", file); err != nil {
		return "", err
	}
	token, err := o.c.kubectl(ctx, "create", "token", "default", "--namespace", OperatorNamespace)
	return strings.TrimSpace(token), err
}

// Forward makes a port of a pod or Service available on this machine until stop is called.
func (c *Cluster) Forward(ctx context.Context, namespace, target string, port int) (address string, stop func(),
	err error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, "kubectl"), "--kubeconfig", c.GetKubeconfig(),
		"port-forward", "--namespace", namespace, "--address", "127.0.0.1", target, fmt.Sprintf(":%d", port))
	var problem strings.Builder
	cmd.Stderr = &problem
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "Forwarding from "); ok {
			address, _, _ = strings.Cut(rest, " ")
			return address, stop, nil
		}
	}
	stop()
	return "", nil, errors.New("port-forward: " + strings.TrimSpace(problem.String()))
}
