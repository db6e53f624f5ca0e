// Command memcached-operator runs the controller of the Memcached API or, with the argument agent, the agent (sidecar)
// beside memcached.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/example/memcached-operator/agent"
	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/metricsauth"
	"github.com/example/memcached-operator/controllers/startup"
)

// version is set by the linker.
var version = "dev"

// options are the values of the flags.
type options struct {
	manager     ctrl.Options
	namespaces  string
	pullSecrets string
	showVersion bool
	zap         zap.Options
}

func main() {
	ctx := ctrl.SetupSignalHandler()
	var err error
	if len(os.Args) > 1 && os.Args[1] == contract.Command {
		err = agent.Run(ctx, os.Args[2:])
	} else {
		o := &options{}
		o.bindFlags(flag.CommandLine) // controller-runtime has bound --kubeconfig already
		flag.Parse()
		err = run(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "memcached-operator:", err)
		os.Exit(1)
	}
}

func (o *options) bindFlags(fs *flag.FlagSet) {
	m := &o.manager
	fs.StringVar(&m.Metrics.BindAddress, "metrics-bind-address", ":8443",
		"`address` of the metrics endpoint; 0 turns it off")
	fs.BoolVar(&m.Metrics.SecureServing, "metrics-secure", true,
		"serve metrics over HTTPS, to clients that the API server authenticates and authorizes")
	fs.StringVar(&m.Metrics.CertDir, "metrics-cert-dir", "",
		"`directory` of tls.crt and tls.key of the metrics endpoint; empty for a certificate that signs itself")
	fs.StringVar(&m.HealthProbeBindAddress, "health-probe-bind-address", ":8081",
		"`address` of /healthz and /readyz; 0 turns it off")
	fs.BoolVar(&m.LeaderElection, "leader-elect", false,
		"use leader election, so that only one of several replicas is active")
	fs.StringVar(&m.LeaderElectionNamespace, "leader-elect-namespace", "",
		"`namespace` of the lease (default the operator's own)")
	fs.IntVar(&m.Controller.MaxConcurrentReconciles, "max-concurrent-reconciles", 16,
		"`number` of Memcacheds reconciled at the same time")
	fs.StringVar(&o.namespaces, "watch-namespaces", os.Getenv("WATCH_NAMESPACE"),
		"comma-separated `namespaces` to watch; empty for all (default from WATCH_NAMESPACE)")
	fs.StringVar(&o.pullSecrets, "image-pull-secrets", os.Getenv("IMAGE_PULL_SECRETS"),
		"comma-separated `names` of the Secrets for pulling images, in the namespace of each Memcached without "+
			"spec.pod.imagePullSecrets (default from IMAGE_PULL_SECRETS)")
	fs.BoolVar(&o.showVersion, "version", false, "print the version and exit")
	o.zap.BindFlags(fs)
}

// names returns the names in a list that is separated by commas or spaces, sorted, each once.
func names(list string) []string {
	return sets.List(sets.New(strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })...))
}

func run(ctx context.Context, o *options) error {
	if o.showVersion {
		fmt.Println(version)
		return nil
	}
	image := os.Getenv("RELATED_IMAGE_MEMCACHED")
	if image == "" {
		return errors.New("RELATED_IMAGE_MEMCACHED is not set: it is the default of spec.image")
	}
	// Without these files, controller-runtime would sign a certificate itself.
	if dir := o.manager.Metrics.CertDir; dir != "" {
		if _, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")); err != nil {
			return fmt.Errorf("--metrics-cert-dir: %w", err)
		}
	}
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&o.zap)))
	if err := limitMemory(); err != nil {
		return err
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find a cluster (use --kubeconfig or KUBECONFIG outside of one): %w", err)
	}
	config.DisableCompression = true // the API server is near: compression costs more CPU than the transfer it saves
	o.manager.Scheme = newScheme()
	live, err := client.New(config, client.Options{Scheme: o.manager.Scheme})
	if err != nil {
		return fmt.Errorf("create a client: %w", err)
	}
	namespaces, err := startup.Namespaces(ctx, live, names(o.namespaces)) // an empty list means all namespaces
	if err != nil {
		return err
	}
	openShift, canResize, err := startup.Features(ctx, config)
	if err != nil {
		return err
	}
	agentImage, err := startup.AgentImage(ctx, live)
	if err != nil {
		return err
	}
	o.completeManager(namespaces)
	mgr, err := ctrl.NewManager(config, o.manager)
	if err != nil {
		return fmt.Errorf("create the manager: %w", err)
	}
	reconciler := &controllers.MemcachedReconciler{
		Client:     mgr.GetClient(),
		APIReader:  mgr.GetAPIReader(),
		Recorder:   mgr.GetEventRecorder("memcached-operator"),
		Now:        time.Now,
		AskAgent:   controllers.AskAgent,
		StopServer: controllers.StopServer,
		Options: desired.Options{DefaultImage: image, AgentImage: agentImage, OpenShift: openShift,
			CanResize: canResize, Namespace: os.Getenv("POD_NAMESPACE"),
			ImagePullSecrets: names(o.pullSecrets)},
	}
	if err := reconciler.SetupWithManager(mgr); err != nil {
		return fmt.Errorf("set up the controller: %w", err)
	}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck("ping", healthz.Ping)); err != nil {
		return fmt.Errorf("set up health checks: %w", err)
	}
	ctrl.Log.Info("starting", "version", version, "namespaces", namespaces, "image", image, "agent", agentImage,
		"openshift", openShift, "resize", canResize)
	return mgr.Start(ctx)
}

// limitMemory makes the garbage collector run more often near nine tenths of MEMORY_LIMIT, the memory limit of the
// container in bytes, unless GOMEMLIMIT is set. The rest is for memory that the Go runtime does not manage.
func limitMemory() error {
	text := os.Getenv("MEMORY_LIMIT")
	if text == "" || os.Getenv("GOMEMLIMIT") != "" {
		return nil
	}
	limit, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("MEMORY_LIMIT: %w", err)
	}
	debug.SetMemoryLimit(limit / 10 * 9)
	return nil
}

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	builder := runtime.NewSchemeBuilder(appsv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme,
		policyv1.AddToScheme, v1alpha1.AddToScheme)
	utilruntime.Must(builder.AddToScheme(scheme))
	return scheme
}

// completeManager sets the other options that have no flag.
func (o *options) completeManager(namespaces []string) {
	m := &o.manager
	m.Cache = controllers.CacheOptions()
	m.Cache.DefaultNamespaces = map[string]cache.Config{}
	for _, ns := range namespaces {
		m.Cache.DefaultNamespaces[ns] = cache.Config{}
	}
	if m.Metrics.SecureServing {
		m.Metrics.FilterProvider = metricsauth.Filter
	}
	m.LeaderElectionID = "memcached-operator.cache.example.com"
	// Releases the lease on exit, so that the next leader starts at once. This is safe, because the process exits as soon
	// as the manager stops.
	m.LeaderElectionReleaseOnCancel = true
}
