// Package api tests the Memcached API on a real API server: validation, defaults and descriptions.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/internal/testing/apiserver"
)

const (
	root    = "../.."
	crdFile = root + "/config/crd/bases/cache.example.com_memcacheds.yaml"
)

var (
	config     *rest.Config
	kubeconfig string // file
	assets     string // directory of kube-apiserver, etcd and kubectl
	c          client.WithWatch
	raw        *rest.RESTClient // sends YAML unchanged
)

func TestMain(m *testing.M) {
	flag.Parse()
	var err error
	if assets, err = apiserver.Programs(); err != nil {
		fmt.Println("skipped:", err)
		return
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "tests/api:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	env := apiserver.New(root, "config/crd/bases")
	defer func() { err = errors.Join(err, env.Stop()) }()
	if config, err = env.Start(); err != nil {
		return 1, err
	}
	config.QPS = -1

	dir, err := os.MkdirTemp("", "tests-api-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	kubeconfig = filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, env.KubeConfig, 0o600); err != nil {
		return 1, err
	}

	if err := v1alpha1.AddToScheme(scheme.Scheme); err != nil {
		return 1, err
	}
	if c, err = client.NewWithWatch(config, client.Options{Scheme: scheme.Scheme}); err != nil {
		return 1, err
	}
	rc := rest.CopyConfig(config)
	rc.APIPath, rc.GroupVersion, rc.NegotiatedSerializer = "/apis", &v1alpha1.GroupVersion,
		scheme.Codecs.WithoutConversion()
	if raw, err = rest.RESTClientFor(rc); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// dryRun sends a document unchanged as a create request, with strict field validation and as a dry run. The API server
// reads long documents much faster as JSON than as YAML.
func dryRun(ctx context.Context, document string) (*unstructured.Unstructured, error) {
	contentType := "application/yaml"
	if json.Valid([]byte(document)) {
		contentType = "application/json"
	}
	res := raw.Post().Namespace("default").Resource("memcacheds").
		Param("dryRun", "All").Param("fieldValidation", "Strict").
		SetHeader("Content-Type", contentType).SetHeader("Accept", "application/json").
		Body([]byte(document)).Do(ctx)
	if err := res.Error(); err != nil {
		return nil, err
	}
	body, err := res.Raw()
	if err != nil {
		return nil, err
	}
	obj := &unstructured.Unstructured{}
	err = obj.UnmarshalJSON(body)
	return obj, err
}

// document returns the manifest of a Memcached with a spec, as JSON if the spec is.
func document(spec string) string {
	return `{"apiVersion": "cache.example.com/v1alpha1", "kind": "Memcached", "metadata": {"name": "test"}, "spec": ` +
		spec + "}"
}

// kubectl runs kubectl against the API server.
func kubectl(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(assets, "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "KUBECACHEDIR="+filepath.Dir(kubeconfig))
	out, err := cmd.CombinedOutput()
	return string(out), err
}
