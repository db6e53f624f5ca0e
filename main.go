// Command memcached-operator runs the controller of the Memcached API or, with the argument agent, what runs beside
// each memcached.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/example/memcached-operator/agent"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers"
	"github.com/example/memcached-operator/controllers/desired"
)

// container is the name of the operator's container in config/manager.
const container = "manager"

// version is set by the linker.
var version = "dev"

// options are what the command line and the environment say.
type options struct {
	metricsAddr   string
	metricsSecure bool
	probeAddr     string
	leaderElect   bool
	leaderElectNS string
	concurrency   int
	namespaces    string
	showVersion   bool
	zap           zap.Options
}

func main() {
	tune()
	ctx := ctrl.SetupSignalHandler()
	start := func() error { return run(ctx, os.Args, os.Stdout) }
	if len(os.Args) > 1 && os.Args[1] == agent.Command {
		start = func() error { return agent.Run(ctx, os.Args[2:]) }
	}
	switch err := start(); {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "memcached-operator:", err)
		os.Exit(1)
	}
}

// tune suits the runtime to a process that waits for others most of its life: one processor serves all that it does,
// and a second one would mostly look for work. Near the memory limit of the container, which MEMORY_LIMIT has in bytes,
// it collects garbage more often, for the kernel would end it. GOMAXPROCS and GOMEMLIMIT have the last word.
func tune() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	if limit, err := strconv.ParseInt(os.Getenv("MEMORY_LIMIT"), 10, 64); err == nil && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit / 10 * 9)
	}
}

func parse(args []string, stdout io.Writer) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet(filepath.Base(args[0]), flag.ContinueOnError)
	fs.StringVar(&o.metricsAddr, "metrics-bind-address", ":8443", "`address` of the metrics endpoint; 0 turns it off")
	fs.BoolVar(&o.metricsSecure, "metrics-secure", true,
		"serve metrics over HTTPS, to clients that the API server authenticates and authorizes")
	fs.StringVar(&o.probeAddr, "health-probe-bind-address", ":8081", "`address` of /healthz and /readyz; 0 turns it off")
	fs.BoolVar(&o.leaderElect, "leader-elect", false, "take a lease before working, so that of several replicas one works")
	fs.StringVar(&o.leaderElectNS, "leader-elect-namespace", "", "`namespace` of the lease (default the operator's own)")
	fs.IntVar(&o.concurrency, "max-concurrent-reconciles", 16,
		"`number` of Memcacheds reconciled at the same time, at least 1")
	fs.StringVar(&o.namespaces, "watch-namespaces", os.Getenv("WATCH_NAMESPACE"),
		"comma-separated `namespaces` to watch; empty for all (default from WATCH_NAMESPACE)")
	fs.BoolVar(&o.showVersion, "version", false, "print the version and exit")
	// kubeconfig is registered by controller-runtime on the global flag set.
	if f := flag.CommandLine.Lookup("kubeconfig"); f != nil {
		fs.Var(f.Value, f.Name, f.Usage)
	}
	o.zap.BindFlags(fs)
	fs.SetOutput(io.Discard) // main prints the error, and nobody wants all flags behind it
	switch err := fs.Parse(args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		fs.SetOutput(stdout)
		fs.PrintDefaults()
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w (--help lists the flags)", err)
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if o.concurrency < 1 {
		return nil, fmt.Errorf("--max-concurrent-reconciles is %d, must be at least 1", o.concurrency)
	}
	for _, ns := range o.watched() {
		if problems := validation.IsDNS1123Label(ns); len(problems) > 0 {
			return nil, fmt.Errorf("--watch-namespaces (or WATCH_NAMESPACE): %q is not a namespace: %s", ns,
				strings.Join(problems, "; "))
		}
	}
	return o, nil
}

// watched lists the namespaces to watch, none for all.
func (o *options) watched() []string {
	list := strings.FieldsFunc(o.namespaces, func(r rune) bool { return r == ',' || r == ' ' })
	slices.Sort(list)
	return slices.Compact(list)
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	o, err := parse(args, stdout)
	if err != nil {
		return err
	}
	if o.showVersion {
		_, err := fmt.Fprintln(stdout, version)
		return err
	}
	image := os.Getenv("RELATED_IMAGE_MEMCACHED")
	if image == "" {
		return errors.New("RELATED_IMAGE_MEMCACHED is not set: it is the image of every Memcached that names none")
	}
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&o.zap)))

	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find a cluster (use --kubeconfig or KUBECONFIG outside of one): %w", err)
	}
	config.DisableCompression = true // which costs both ends more than the short way between them does
	mgr, err := ctrl.NewManager(config, managerOptions(o))
	if err != nil {
		return fmt.Errorf("create the manager: %w", err)
	}
	reconciler := &controllers.MemcachedReconciler{
		Client:    mgr.GetClient(),
		APIReader: mgr.GetAPIReader(),
		Recorder:  mgr.GetEventRecorder("memcached-operator"),
		Options:   desired.Options{DefaultImage: image},
	}
	if reconciler.Options.OpenShift, err = openShift(config); err != nil {
		return err
	}
	if reconciler.Options.AgentImage, err = agentImage(ctx, mgr.GetAPIReader()); err != nil {
		return err
	}
	if err := reconciler.SetupWithManager(mgr, o.concurrency); err != nil {
		return fmt.Errorf("set up the controller: %w", err)
	}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck("ping", healthz.Ping)); err != nil {
		return fmt.Errorf("set up health checks: %w", err)
	}
	ctrl.Log.Info("starting", "version", version, "namespaces", o.watched(), "image", reconciler.Options.DefaultImage,
		"agent", reconciler.Options.AgentImage, "openshift", reconciler.Options.OpenShift)
	return mgr.Start(ctx)
}

// openShift reports whether the cluster assigns users to pods, as the security context constraints of OpenShift do.
func openShift(config *rest.Config) (bool, error) {
	discoverer, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return false, fmt.Errorf("create a client for discovery: %w", err)
	}
	groups, err := discoverer.ServerGroups()
	if err != nil {
		return false, fmt.Errorf("ask the API server for its API groups: %w", err)
	}
	return slices.ContainsFunc(groups.Groups,
		func(g metav1.APIGroup) bool { return g.Name == "security.openshift.io" }), nil
}

// agentImage is the image that the operator itself runs in, so that whoever installs the operator from elsewhere need
// not say so twice. AGENT_IMAGE is for an operator outside of a pod.
func agentImage(ctx context.Context, reader client.Reader) (string, error) {
	if image := os.Getenv("AGENT_IMAGE"); image != "" {
		return image, nil
	}
	key := client.ObjectKey{Namespace: os.Getenv("POD_NAMESPACE"), Name: os.Getenv("POD_NAME")}
	if key.Name == "" {
		return "", errors.New("neither POD_NAME nor AGENT_IMAGE is set: the operator's own image runs beside servers too")
	}
	pod := &corev1.Pod{}
	if err := reader.Get(ctx, key, pod); err != nil {
		return "", fmt.Errorf("look up the operator's own image: %w", err)
	}
	for _, c := range pod.Spec.Containers {
		if c.Name == container {
			return c.Image, nil
		}
	}
	return "", fmt.Errorf("look up the operator's own image: pod %s has no container %s", key.Name, container)
}

func managerOptions(o *options) ctrl.Options {
	scheme := k8sruntime.NewScheme()
	for _, add := range []func(*k8sruntime.Scheme) error{appsv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme,
		policyv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err) // two types of one name, which the first start of a build shows
		}
	}
	m := metricsserver.Options{BindAddress: o.metricsAddr, SecureServing: o.metricsSecure}
	if o.metricsSecure {
		m.FilterProvider = withAccessReview
	}
	c := controllers.CacheOptions()
	for _, ns := range o.watched() {
		if c.DefaultNamespaces == nil {
			c.DefaultNamespaces = map[string]cache.Config{}
		}
		c.DefaultNamespaces[ns] = cache.Config{}
	}
	return ctrl.Options{
		Scheme:                 scheme,
		Cache:                  c,
		Metrics:                m,
		HealthProbeBindAddress: o.probeAddr,
		LeaderElection:         o.leaderElect,
		LeaderElectionID:       "memcached-operator.cache.example.com",
		// The lease is given up on exit, so that the next process need not wait for its end. That is safe because the process
		// ends as soon as the manager does.
		LeaderElectionReleaseOnCancel: true,
		LeaderElectionNamespace:       o.leaderElectNS,
	}
}
