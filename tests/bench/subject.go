package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/tests/cluster"
)

// subject is an operator to measure, described by a file. The operator creates one Deployment for each object, with as
// many replicas as the size of the object. $METRICS and $PROBES in command and metricsURL are replaced by free
// addresses, host:port.
type subject struct {
	Name string `json:"name"`
	// CRD is a manifest, or a folder with a kustomization.
	CRD string `json:"crd"`
	// Setup are further manifests, or folders with kustomizations, applied in this order.
	Setup []string `json:"setup,omitempty"`
	// ServiceAccount is the operator's service account, namespace/name. If it is empty, the benchmark creates one with all
	// permissions.
	ServiceAccount string `json:"serviceAccount,omitempty"`
	// Command and Env run the operator. KUBECONFIG is added to Env, with the credentials of the service account.
	Command []string          `json:"command,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	// MetricsURL is the URL of controller-runtime's metrics.
	MetricsURL string `json:"metricsURL"`
	// CR is the manifest of an object, with $NAME and $NAMESPACE.
	CR string `json:"cr"`
	// SizeField is the path of the field with the number of servers, such as spec.size.
	SizeField string `json:"sizeField"`
	// TemplatePatch is a merge patch of an object that changes the pod template. If it is empty, the phase template is
	// skipped.
	TemplatePatch map[string]any `json:"templatePatch,omitempty"`
	// Condition is the type of the condition that is True when an object is ready.
	Condition string `json:"condition"`
}

// ownNamespace is the namespace of the service accounts that the benchmark creates.
const ownNamespace = "bench-operator"

func readSubject(file string) (*subject, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	s := &subject{}
	if err := yaml.UnmarshalStrict(text, s); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	s.ServiceAccount = cmp.Or(s.ServiceAccount, ownNamespace+"/"+s.Name)
	return s, nil
}

// account returns the namespace and the name of the service account.
func (s *subject) account() (namespace, name string) {
	namespace, name, _ = strings.Cut(s.ServiceAccount, "/")
	return namespace, name
}

// object returns an object as a user would create it.
func (s *subject) object(name string, size int) (*unstructured.Unstructured, error) {
	text := strings.NewReplacer("$NAMESPACE", namespaceOf(name), "$NAME", name).Replace(s.CR)
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		return nil, fmt.Errorf("cr of %s: %w", s.Name, err)
	}
	return u, unstructured.SetNestedField(u.Object, int64(size), strings.Split(s.SizeField, ".")...)
}

// install prepares the cluster for the operator and returns the operator's kubeconfig.
func (s *subject) install(ctx context.Context, c *cluster.Cluster) (kubeconfig string, err error) {
	namespace, name := s.account()
	kubectl := func(args ...string) error {
		_, err := harness.Command{Env: []string{"KUBECONFIG=" + c.GetKubeconfig()}}.Run(ctx, "kubectl", args...)
		return err
	}
	for _, manifest := range append([]string{s.CRD}, s.Setup...) {
		flag := "--filename"
		if _, err := os.Stat(filepath.Join(manifest, "kustomization.yaml")); err == nil {
			flag = "--kustomize"
		}
		if err := kubectl("apply", "--server-side", "--force-conflicts", flag, manifest); err != nil {
			return "", err
		}
	}
	if namespace == ownNamespace {
		if err := errors.Join(kubectl("create", "namespace", namespace),
			kubectl("create", "serviceaccount", name, "--namespace", namespace),
			kubectl("create", "clusterrolebinding", "bench-"+name, "--clusterrole=cluster-admin",
				"--serviceaccount="+namespace+":"+name)); err != nil {
			return "", err
		}
	}
	if err := kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all"); err != nil {
		return "", err
	}
	return c.KubeconfigOf(ctx, namespace, name)
}

// process is a running operator.
type process struct {
	pid        int
	started    time.Time
	metricsURL string

	cmd      *exec.Cmd
	stopping atomic.Bool
	exited   chan struct{}
}

// start runs the operator until stop. It calls fail if the operator exits by itself.
func (s *subject) start(kubeconfig, log string, fail func(error)) (*process, error) {
	metrics, err1 := harness.FreeAddress()
	probes, err2 := harness.FreeAddress()
	out, err3 := os.Create(log)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	defer out.Close()
	expand := strings.NewReplacer("$METRICS", metrics, "$PROBES", probes).Replace
	args := make([]string, len(s.Command))
	for i, arg := range s.Command {
		args[i] = expand(arg)
	}
	p := &process{metricsURL: expand(s.MetricsURL), exited: make(chan struct{})}
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	for name, value := range s.Env {
		p.cmd.Env = append(p.cmd.Env, name+"="+value)
	}
	p.started = time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.pid = p.cmd.Process.Pid
	go func() {
		err := p.cmd.Wait()
		close(p.exited)
		if !p.stopping.Load() {
			fail(fmt.Errorf("%s exited (%w): see %s", s.Name, cmp.Or(err, errors.New("status 0")), log))
		}
	}()
	return p, nil
}

// stop sends SIGTERM, so that the process releases its lease, and waits until the process has exited.
func (p *process) stop() error {
	if p == nil {
		return nil
	}
	p.stopping.Store(true)
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
		return nil
	case <-time.After(30 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.exited
		return fmt.Errorf("%s did not exit on SIGTERM", p.cmd.Path)
	}
}

// scrape reads the metrics of the process.
func (p *process) scrape(ctx context.Context) (metrics, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.metricsURL, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		return nil, fmt.Errorf("%s: %s: %s", p.metricsURL, response.Status, text)
	}
	return parseMetrics(response.Body)
}
