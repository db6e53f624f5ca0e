package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// server is one memcached server, reachable through a loopback port of this machine.
type server struct {
	pod     string
	address string
}

// servers are all servers of one Memcached, in the order of status.nodes.
type servers struct {
	list  []server
	close func()
}

// servers waits until the Memcached is ready, and forwards a port to each pod in its status.
func (d *demo) servers(ctx context.Context) (*servers, error) {
	mc, err := d.ready(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case len(mc.Status.Nodes) == 0:
		return nil, fmt.Errorf("memcached %s is ready and has no servers: scale it up first", d.name)
	case int32(len(mc.Status.Nodes)) != *mc.Spec.Size:
		return nil, fmt.Errorf("memcached %s is ready with size %d, but status.nodes has %d names: %v", d.name, *mc.Spec.Size,
			len(mc.Status.Nodes), mc.Status.Nodes)
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &servers{close: cancel}
	for _, pod := range mc.Status.Nodes {
		address, err := d.forward(ctx, pod, mc.Spec.ContainerPort)
		if err != nil {
			cancel()
			return nil, fmt.Errorf("port-forward to pod %s: %w", pod, err)
		}
		s.list = append(s.list, server{pod, address})
	}
	return s, nil
}

// ready waits until the current generation of the Memcached is ready, and returns the Memcached.
func (d *demo) ready(ctx context.Context) (*v1alpha1.Memcached, error) {
	mc := &v1alpha1.Memcached{}
	var condition *metav1.Condition
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, d.timeout, true,
		func(ctx context.Context) (bool, error) {
			if err := d.client.Get(ctx, types.NamespacedName{Namespace: d.namespace, Name: d.name}, mc); err != nil {
				return false, err
			}
			condition = meta.FindStatusCondition(mc.Status.Conditions, v1alpha1.ConditionReady)
			return condition != nil && condition.Status == metav1.ConditionTrue &&
				condition.ObservedGeneration == mc.Generation && mc.Status.ObservedGeneration == mc.Generation, nil
		})
	if wait.Interrupted(err) && condition != nil {
		return nil, fmt.Errorf("memcached %s is not ready after %s: %s: %s", d.name, d.timeout, condition.Reason,
			condition.Message)
	}
	return mc, err
}

// forward listens on a free loopback port and forwards it to a pod, as `kubectl port-forward` does, until ctx ends.
func (d *demo) forward(ctx context.Context, pod string, port int32) (string, error) {
	host, err := url.Parse(d.config.Host)
	if err != nil {
		return "", err
	}
	transport, upgrader, err := spdy.RoundTripperFor(d.config)
	if err != nil {
		return "", err
	}
	target := host.JoinPath("api/v1/namespaces", d.namespace, "pods", pod, "portforward")
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, target)

	opened := make(chan struct{})
	forwarder, err := portforward.NewOnAddressesWithContext(ctx, dialer, []string{"127.0.0.1"},
		[]string{fmt.Sprintf("0:%d", port)}, opened, io.Discard, io.Discard)
	if err != nil {
		return "", err
	}
	failed := make(chan error, 1)
	go func() { failed <- forwarder.ForwardPorts() }()
	select {
	case err := <-failed:
		return "", err
	case <-opened:
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0].Local), nil
}
