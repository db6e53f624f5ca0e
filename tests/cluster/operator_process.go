package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// process is a replica of the operator on a kwok cluster.
type process struct {
	name    string
	pidFile string
	// addressFile has the address of the metrics.
	addressFile string
}

// process returns a replica by its name.
func (o *Operator) process(name string) process {
	return process{name, o.c.path("pids", "operator", name+".pid"), o.c.path("pids", "operator", name+".addresses")}
}

// processes returns the running replicas.
func (o *Operator) processes() (running []process) {
	files, _ := filepath.Glob(o.c.path("pids", "operator", "*.pid"))
	for _, file := range files {
		if _, ok := o.c.alive(file); ok {
			running = append(running, o.process(strings.TrimSuffix(filepath.Base(file), ".pid")))
		}
	}
	return running
}

// startProcesses runs replicas until there is this number of replicas, as the Deployment would.
func (o *Operator) startProcesses(ctx context.Context, deployment *appsv1.Deployment, replicas int) error {
	for i := range replicas {
		if err := o.startProcess(ctx, deployment, fmt.Sprintf("operator-%d", i+1)); err != nil {
			return err
		}
	}
	return nil
}

// StartBeside runs another process of the operator with these flags beside the replicas, such as one of another release
// that does not wait for the lease. Only kwok clusters can do that; elsewhere the error is errors.ErrUnsupported.
func (o *Operator) StartBeside(ctx context.Context, name string, flags ...string) (stop func() error, err error) {
	if o.c.Kind != "kwok" {
		return nil, errors.ErrUnsupported
	}
	deployment, err := o.install(ctx, 0)
	if err != nil {
		return nil, err
	}
	return func() error { return o.c.signal(context.WithoutCancel(ctx), o.process(name).pidFile, syscall.SIGKILL) },
		o.startProcess(ctx, deployment, name, flags...)
}

// startProcess runs a replica, unless it runs already, and waits until it is ready.
func (o *Operator) startProcess(ctx context.Context, deployment *appsv1.Deployment, name string,
	flags ...string) error {
	manager := cmp.Or(o.Manager, filepath.Join(o.c.bin, "manager"))
	if _, err := os.Stat(manager); err != nil {
		return fmt.Errorf("%s is not built: run `make build`", manager)
	}
	p := o.process(name)
	if _, ok := o.c.alive(p.pidFile); ok {
		return nil
	}
	kubeconfig, err := o.c.KubeconfigOf(ctx, OperatorNamespace, OperatorDeployment)
	if err != nil {
		return err
	}
	container := deployment.Spec.Template.Spec.Containers[0]
	env := []string{"AGENT_IMAGE=" + container.Image} // a process has no pod; the Deployment may override it
	for _, e := range container.Env {
		switch {
		case e.ValueFrom == nil:
			env = append(env, e.Name+"="+e.Value)
		case e.ValueFrom.ResourceFieldRef != nil:
			env = append(env, fmt.Sprintf("%s=%d", e.Name, container.Resources.Limits.Memory().Value()))
		}
	}
	metrics, err1 := harness.FreeAddress()
	probes, err2 := harness.FreeAddress()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	args := slices.Concat(container.Args, []string{"--kubeconfig=" + kubeconfig,
		"--leader-elect-namespace=" + OperatorNamespace,
		"--metrics-secure=false", "--metrics-cert-dir=", "--metrics-bind-address=" + metrics,
		"--health-probe-bind-address=" + probes}, flags)
	if err := o.c.startAs(p.pidFile, name, env, manager, args...); err != nil {
		return err
	}
	if err := os.WriteFile(p.addressFile, []byte(metrics), 0o644); err != nil {
		return err
	}
	err = harness.Poll(ctx, func(ctx context.Context) error {
		if _, ok := o.c.alive(p.pidFile); !ok {
			return nil // it exited: stop waiting
		}
		_, err := get(ctx, "http://"+probes+"/readyz")
		return err
	})
	if _, ok := o.c.alive(p.pidFile); !ok {
		err = fmt.Errorf("%s exited", name)
	}
	return o.c.tail(err, name)
}

// metrics returns the metrics of the replica.
func (p process) metrics(ctx context.Context) (string, error) {
	address, err := os.ReadFile(p.addressFile)
	if err != nil {
		return "", err
	}
	return get(ctx, "http://"+string(address)+"/metrics")
}

func get(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	return do(http.DefaultClient, request)
}

func do(client *http.Client, request *http.Request) (string, error) {
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", request.URL, response.Status, body)
	}
	return string(body), err
}
