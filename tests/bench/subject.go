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
	"syscall"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/tests/cluster"
)

// subject is an operator to measure, described by a file. The operator creates one workload for each object, with as
// many replicas as the size of the object: a Deployment, unless the object has workload: StatefulSet. $METRICS and
// $PROBES in command and metricsURL are replaced by free addresses, host:port.
type subject struct {
	Name string `json:"name"`
	// CRD is a manifest, or a folder with a kustomization.
	CRD string `json:"crd"`
	// Setup are further manifests, or folders with kustomizations, applied in this order.
	Setup []string `json:"setup,omitempty"`
	// ServiceAccount is the operator's service account, namespace/name, which one of the manifests creates.
	ServiceAccount string `json:"serviceAccount"`
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

func readSubject(file string) (*subject, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	s := &subject{}
	if err := yaml.UnmarshalStrict(text, s); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}

// workload returns the workload of an object.
func (s *subject) workload(name string) client.Object {
	meta := metav1.ObjectMeta{Name: name}
	if name != "any" {
		meta.Namespace = namespaceOf(name)
	}
	if strings.Contains(s.CR, "workload: StatefulSet") {
		return &appsv1.StatefulSet{ObjectMeta: meta}
	}
	return &appsv1.Deployment{ObjectMeta: meta}
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

	terminate context.CancelFunc
	exited    chan struct{}
}

// start runs the operator until stop. It calls fail if the operator exits by itself.
func (s *subject) start(ctx context.Context, kubeconfig, log string, fail func(error)) (*process, error) {
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
	ctx, terminate := context.WithCancel(context.WithoutCancel(ctx))
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	// SIGTERM makes the operator release its lease.
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGTERM) }, 30*time.Second
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	for name, value := range s.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	p := &process{started: time.Now(), metricsURL: expand(s.MetricsURL), terminate: terminate,
		exited: make(chan struct{})}
	if err := cmd.Start(); err != nil {
		terminate()
		return nil, err
	}
	p.pid = cmd.Process.Pid
	go func() {
		defer close(p.exited)
		if err := cmd.Wait(); ctx.Err() == nil {
			fail(fmt.Errorf("%s exited (%w): see %s", s.Name, cmp.Or(err, errors.New("status 0")), log))
		}
	}()
	return p, nil
}

// stop ends the process, and waits until it has exited. The floor has none.
func (p *process) stop() {
	if p != nil {
		p.terminate()
		<-p.exited
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
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(response.Body)
}
