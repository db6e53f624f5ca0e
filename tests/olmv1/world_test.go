package olmv1

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"

	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/tests/cluster"
)

// world is the cluster and the programs beside it. An error ends the test.
type world struct {
	*testing.T
	root, dir string // the repository, and a folder that is removed with the cluster
	registry  string // replaces that of the images
	began     time.Time
}

// newWorld starts the cluster, a registry and OLM v1.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, began: time.Now()}
	c, err := cluster.New(cluster.Need(t, "olmv1-e2e"))
	w.must(err)
	kubeconfig, err := c.Create(t.Context())
	w.must(err)
	w.root, err = filepath.Abs("../..")
	w.must(err)
	w.dir = filepath.Join(filepath.Dir(kubeconfig), "olmv1")
	t.Setenv("KUBECONFIG", kubeconfig)
	t.Setenv("PATH", filepath.Join(w.root, "bin")+":"+os.Getenv("PATH"))
	w.must(errors.Join(os.RemoveAll(w.dir), os.MkdirAll(w.dir, 0o755)))
	if out, err := w.try("kubectl", "get", "crd", "memcacheds.cache.example.com"); err == nil {
		t.Fatalf("%sthe cluster has the operator already: make olmv1-e2e starts a new one", out)
	}
	w.registry = w.freeAddress()
	w.start("registry", nil, "crane", "registry", "serve", "--address", w.registry)
	w.startOLM()
	w.logf("catalogd and operator-controller run")
	return w
}

// startOLM starts catalogd and operator-controller with the objects that they need. They pull our images from
// the registry of the test, and ignore this machine's settings for images.
func (w *world) startOLM() {
	w.Helper()
	module, _, err := harness.Module(w.Context(), filepath.Join(w.root, "tools/operator-controller"),
		"github.com/operator-framework/operator-controller")
	w.must(err)
	for _, crd := range []string{"catalogd/crd/bases/olm.operatorframework.io_clustercatalogs.yaml",
		"operator-controller/crd/bases/olm.operatorframework.io_clusterextensions.yaml"} {
		w.run("kubectl", "create", "--filename", filepath.Join(module, "config/base", crd))
	}
	w.run("kubectl", "create", "namespace", "olmv1-system")
	certificate, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", nil, nil)
	w.must(err)
	w.write("certificates/tls.crt", string(certificate))
	w.write("tls.key", string(key))
	registry, _ := cluster.ImageBase()
	w.write("home/.config/containers/registries.conf",
		fmt.Sprintf("[[registry]]\nprefix = %q\nlocation = %q\ninsecure = true\n", registry, w.registry))
	w.write("home/.config/containers/policy.json", `{"default": [{"type": "insecureAcceptAnything"}]}`)
	w.must(os.Mkdir(w.path("tmp"), 0o755))
	env := []string{"HOME=" + w.path("home"), "XDG_CONFIG_HOME=" + w.path("home/.config"), "XDG_RUNTIME_DIR=" +
		w.path("home"),
		"TMPDIR=" + w.path("tmp")}

	content, catalogd, controller := w.freeAddress(), w.freeAddress(), w.freeAddress()
	_, webhooks, _ := net.SplitHostPort(w.freeAddress())
	w.start("catalogd", env, "catalogd", "--system-namespace=olmv1-system", "--cache-dir="+w.path("catalogd"),
		"--catalogs-server-addr="+content, "--external-address="+content, "--webhook-server-port="+webhooks,
		"--metrics-bind-address=127.0.0.1:0",
		"--health-probe-bind-address="+catalogd, "--tls-cert="+w.path("certificates/tls.crt"), "--tls-key="+w.path("tls.key"))
	w.start("operator-controller", env, "operator-controller", "--system-namespace=olmv1-system",
		"--cache-path="+w.path("operator-controller"),
		"--catalogd-cas-dir="+w.path("certificates"), "--health-probe-bind-address="+controller)
	w.ready(catalogd)
	w.ready(controller)
}

// startOperator starts the operator of a release as its Deployment would, with the permissions that OLM granted.
func (w *world) startOperator(r release) (stop func()) {
	w.Helper()
	deployment := w.get(deployment)
	annotations, _, err := unstructured.NestedStringMap(deployment.Object, "spec", "template", "metadata", "annotations")
	w.must(err)
	watched, ok := annotations["olm.targetNamespaces"]
	if !ok || watched != "" {
		w.Errorf("the annotation olm.targetNamespaces is %q (%t), want an empty one for all namespaces", watched, ok)
	}
	name := deployment.GetName()
	config, err := clientcmd.LoadFromFile(os.Getenv("KUBECONFIG"))
	w.must(err)
	for user := range config.AuthInfos {
		config.AuthInfos[user] = &api.AuthInfo{Token: w.run("kubectl", "create", "token", name, "--namespace", namespace)}
	}
	w.must(clientcmd.WriteToFile(*config, w.path("operator.kubeconfig")))
	probes := w.freeAddress()
	containers, _, err := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "containers")
	w.must(err)
	container := containers[0].(map[string]any)
	image := container["image"].(string)
	if image != r.operator {
		w.Errorf("the Deployment runs %s, but the bundle of v%s has %s", image, r.version, r.operator)
	}
	env := []string{"WATCH_NAMESPACE=" + watched, "AGENT_IMAGE=" + image}
	variables, _, err := unstructured.NestedSlice(container, "env")
	w.must(err)
	for _, v := range variables {
		if value, ok := v.(map[string]any)["value"].(string); ok {
			env = append(env, v.(map[string]any)["name"].(string)+"="+value)
		}
	}
	stop = w.start("operator", env, r.manager, "--kubeconfig="+w.path("operator.kubeconfig"),
		"--leader-elect", "--leader-elect-namespace="+namespace, "--metrics-bind-address=0",
		"--health-probe-bind-address="+probes)
	w.ready(probes)
	return stop
}

// start runs a program until the test ends or stop is called.
func (w *world) start(name string, env []string, command string, args ...string) (stop func()) {
	w.Helper()
	log, err := os.OpenFile(w.path(name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	w.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, command, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that the operator releases its lease
	cmd.WaitDelay = 10 * time.Second
	w.must(cmd.Start())
	stop = func() { cancel(); _ = cmd.Wait(); _ = log.Close() }
	w.Cleanup(func() {
		if text, err := os.ReadFile(log.Name()); err == nil && w.Failed() {
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			w.Logf("the end of %s:\n%s", log.Name(), strings.Join(lines[max(0, len(lines)-10):], "\n"))
		}
		stop()
	})
	return stop
}

// ready waits until a program's readiness probe succeeds.
func (w *world) ready(address string) {
	w.Helper()
	w.eventually("probe "+address, func() error {
		response, err := http.Get("http://" + address + "/readyz")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	})
}

// eventually calls try until it returns nil.
func (w *world) eventually(what string, try func() error) {
	w.Helper()
	harness.Eventually(w, what, harness.Patience, try)
}

// run runs a command in the root of the repository and returns its output.
func (w *world) run(command string, args ...string) string {
	w.Helper()
	out, err := w.try(command, args...)
	w.must(err)
	return out
}

func (w *world) try(command string, args ...string) (string, error) {
	out, err := harness.Command{Dir: w.root}.Run(context.Background(), command, args...)
	return strings.TrimSpace(out), err
}

func (w *world) must(err error) {
	w.Helper()
	harness.Must(w, err)
}

func (w *world) write(name, text string) {
	w.Helper()
	w.must(errors.Join(os.MkdirAll(filepath.Dir(w.path(name)), 0o755), os.WriteFile(w.path(name), []byte(text), 0o600)))
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

// logf prints a message with the time since the start, also if the test succeeds.
func (w *world) logf(format string, args ...any) {
	fmt.Printf("%6.1f s  %s\n", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
}

func (w *world) freeAddress() string {
	w.Helper()
	address, err := harness.FreeAddress()
	w.must(err)
	return address
}
