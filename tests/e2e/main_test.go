// Package e2e tests sequences that YAML cannot express, on the cluster that CLUSTER names: kwok, node or kind.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/e2e-framework/pkg/env"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/envfuncs"
	"sigs.k8s.io/e2e-framework/pkg/features"
	"sigs.k8s.io/e2e-framework/pkg/types"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/tests/cluster"
	"github.com/example/memcached-operator/tests/e2e/truth"
)

var (
	testEnv     = env.NewWithConfig(envconf.New())
	testCluster *cluster.Cluster
	operator    *cluster.Operator
	api         client.WithWatch
)

func TestMain(m *testing.M) {
	cluster.Main("e2e", func(kind string) int {
		code, err := run(m, kind)
		if err != nil {
			fmt.Println("FAIL:", err)
			code = 1
		}
		return code
	})
}

// run runs the suite with one replica of the operator, and with the sampler, which watches every status. Each test must
// leave the operator running. Tests are parallel if they wait for pods most of the time, and neither stop the operator,
// count its requests, check each request of clients, nor change children: a status must follow that within a second.
func run(m *testing.M, kind string) (int, error) {
	ctx := context.Background()
	log.SetLogger(log.Log)
	var err error
	if testCluster, err = cluster.New(kind); err != nil {
		return 1, err
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		return 1, err
	}
	err = errors.Join(os.Setenv("PATH", filepath.Join(root, "bin")+":"+os.Getenv("PATH")),
		os.Setenv("KUBECONFIG", testCluster.GetKubeconfig()),
		v1alpha1.AddToScheme(clientgoscheme.Scheme))
	if err != nil {
		return 1, err
	}
	operator = testCluster.Operator(os.Getenv("IMG"))

	var sampler *truth.Sampler
	testEnv.Setup(envfuncs.CreateCluster(testCluster, ""), func(ctx context.Context, _ *envconf.Config) (context.Context,
		error) {
		config := testCluster.KubernetesRestConfig()
		config.QPS = -1
		// The running operator may be an older build.
		err := errors.Join(testCluster.ReachPods(ctx), operator.Install(ctx), operator.Stop(ctx), operator.Start(ctx, 1))
		if err == nil {
			api, err = client.NewWithWatch(config, client.Options{Scheme: clientgoscheme.Scheme})
		}
		if err == nil {
			sampler, err = truth.Start(ctx, config)
		}
		return ctx, err
	})
	testEnv.BeforeEachFeature(createNamespace)
	code := testEnv.Run(m)
	if sampler == nil {
		return code, nil
	}
	verdict, err := sampler.Stop(ctx)
	fmt.Println(verdict)
	if len(verdict.Lies) > 0 {
		err = errors.Join(err, errors.New("the status lied"))
	}
	return code, err
}

// needRealPods skips a test on clusters that only simulate pods.
func needRealPods(t *testing.T) {
	t.Helper()
	if !cluster.RealPods(testCluster.Kind) {
		t.Skip("kwok only simulates pods")
	}
}

// needMoreTime skips a test with -short where pods are real: simulated pods show almost as much, in a fraction of the
// time.
func needMoreTime(t *testing.T) {
	t.Helper()
	if testing.Short() && cluster.RealPods(testCluster.Kind) {
		t.Skip("make e2e CLUSTER=kwok runs it, and without ARGS=-short also real pods")
	}
}

// createNamespace creates a namespace for each feature.
func createNamespace(ctx context.Context, cfg *envconf.Config, t *testing.T, _ types.Feature) (context.Context, error) {
	t.Helper()
	ns, err := newNamespace(ctx, t)
	cfg.WithNamespace(ns)
	return ctx, err
}

// newNamespace creates a namespace that enforces the restricted Pod Security Standard, until the test ends.
func newNamespace(ctx context.Context, t *testing.T) (string, error) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "e2e-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	if err := api.Create(ctx, ns); err != nil {
		return "", err
	}
	t.Cleanup(func() {
		w := world{WithWatch: api, T: t, ctx: ctx, ns: ns.Name}
		if t.Failed() {
			w.dumpState()
			w.must(operator.Start(ctx, 1))
		}
		w.must(testCluster.KeepLogs(ns.Name))
		// The next test may stop the operator or count its requests, so nothing may be left.
		w.must(w.DeleteAllOf(ctx, &v1alpha1.Memcached{}, client.InNamespace(ns.Name)))
		w.eventually("delete the Memcacheds of the test", func() error {
			var left v1alpha1.MemcachedList
			err := w.List(ctx, &left, client.InNamespace(ns.Name))
			if n := len(left.Items); n > 0 {
				err = fmt.Errorf("%d Memcacheds are left", n)
			}
			return err
		})
		w.must(client.IgnoreNotFound(w.Delete(ctx, ns))) // a test may have deleted it
	})
	return ns.Name, nil
}

// dumpState logs the objects, the events and the operator's log.
func (w world) dumpState() {
	for _, args := range [][]string{{"get", "memcacheds,deployments,statefulsets", "-o", "yaml"},
		{"get", "pods", "-o", "wide"}, {"get", "events"}} {
		out, err := w.kubectl(args...)
		w.Logf("kubectl %v: %v\n%s", args, err, out)
	}
	logs, err := operator.Logs(w.ctx)
	w.Logf("operator: %v", err)
	for line := range strings.Lines(logs) {
		if strings.Contains(line, w.ns) {
			w.Log(line)
		}
	}
}

// step returns a step of a feature.
func step(do func(w world)) features.Func {
	return func(ctx context.Context, t *testing.T, cfg *envconf.Config) context.Context {
		do(world{WithWatch: api, T: t, ctx: ctx, ns: cfg.Namespace()})
		return ctx
	}
}
