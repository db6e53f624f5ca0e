package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
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
	ip, err := o.c.kubectl(ctx, "get", "pod", leader, "--namespace", OperatorNamespace, "--output",
		"jsonpath={.status.podIP}")
	if err := errors.Join(err, o.c.ReachPods(ctx)); err != nil {
		return "", err
	}
	url := "https://" + net.JoinHostPort(ip, "8443") + "/metrics"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
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
	_, err := o.c.kubectl(ctx, "create", "clusterrolebinding", reader+"-test", "--clusterrole="+reader,
		"--serviceaccount="+OperatorNamespace+":default")
	if err != nil && !strings.Contains(err.Error(), "already exists") {
		return "", err
	}
	token, err := o.c.kubectl(ctx, "create", "token", "default", "--namespace", OperatorNamespace)
	return strings.TrimSpace(token), err
}
