// Command demo demonstrates the operator on a cluster where it is deployed. It creates memcached servers from the
// sample of the tutorials, writes to them, reads from them and scales them.
//
//	demo [flags]        the whole tour
//	demo [flags] check  only the protocol part, for an existing Memcached; fails if a server loses or misses a key
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// The tour applies the sample of every operator-sdk tutorial, unchanged.
const (
	sample     = "config/samples/cache_v1alpha1_memcached.yaml"
	sampleName = "memcached-sample"
)

// demo is one tour and its settings.
type demo struct {
	kubectl    string
	kubeconfig string
	namespace  string
	name       string
	keys       int
	scaleTo    int
	protocol   bool
	timeout    time.Duration

	config *rest.Config
	client client.Client
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context) error {
	d := demo{}
	flag.StringVar(&d.kubeconfig, "kubeconfig", "", "the cluster's kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	flag.StringVar(&d.kubectl, "kubectl", "kubectl", "the kubectl to run")
	flag.StringVar(&d.namespace, "namespace", "", "namespace of the Memcached (default: that of the kubeconfig)")
	flag.StringVar(&d.name, "name", sampleName, "name of the Memcached to check; the tour has its own")
	flag.IntVar(&d.keys, "keys", 1000, "number of keys to spread over the servers")
	flag.IntVar(&d.scaleTo, "scale-to", 5, "number of servers that the tour scales to")
	flag.BoolVar(&d.protocol, "protocol", true,
		"talk to the servers; false on a cluster of simulated nodes, which run none")
	flag.DurationVar(&d.timeout, "timeout", 3*time.Minute, "how long to wait for the servers to be ready")
	flag.Parse()

	if err := d.connect(); err != nil {
		return err
	}
	switch {
	case flag.NArg() == 0:
		d.name = sampleName
		err := d.tour(ctx)
		if err != nil && ctx.Err() == nil {
			d.explain(ctx)
		}
		return err
	case flag.NArg() == 1 && flag.Arg(0) == "check":
		_, err := d.check(ctx)
		return err
	}
	return fmt.Errorf("unknown arguments %q: there is only check", flag.Args())
}

func (d *demo) connect() error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	if d.kubeconfig != "" {
		path, err := filepath.Abs(d.kubeconfig)
		if err != nil {
			return err
		}
		d.kubeconfig, rules.ExplicitPath = path, path
	}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil)
	var err error
	if d.config, err = loader.ClientConfig(); err != nil {
		return err
	}
	if d.namespace == "" {
		if d.namespace, _, err = loader.Namespace(); err != nil {
			return err
		}
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return err
	}
	d.client, err = client.New(d.config, client.Options{Scheme: scheme})
	return err
}

// tour runs the whole demonstration. It may be repeated on the same cluster.
func (d *demo) tour(ctx context.Context) error {
	object := "memcached/" + d.name
	heading("Servers from the sample of the tutorials")
	if err := d.run(ctx, "apply", "-f", sample); err != nil {
		return err
	}
	if err := d.waitReady(ctx); err != nil {
		return err
	}
	if err := d.run(ctx, "get", "memcached"); err != nil {
		return err
	}
	if err := d.run(ctx, "get", "deployment,service,poddisruptionbudget", "-l",
		"app.kubernetes.io/instance="+d.name); err != nil {
		return err
	}
	if err := d.showNodes(ctx); err != nil {
		return err
	}
	servers := 0
	if d.protocol {
		var err error
		if servers, err = d.check(ctx); err != nil {
			return err
		}
	} else {
		heading("No protocol part on this cluster")
		fmt.Println("Its nodes are simulated: the pods become ready, but no memcached runs in them that could be")
		fmt.Println("written to. As root on Debian or Ubuntu, or with a Docker engine, `make demo` shows that part too.")
	}

	heading(fmt.Sprintf("Scaled to %d", d.scaleTo))
	if err := d.run(ctx, "scale", object, fmt.Sprintf("--replicas=%d", d.scaleTo)); err != nil {
		return err
	}
	if err := d.waitReady(ctx); err != nil {
		return err
	}
	if err := d.run(ctx, "get", "memcached"); err != nil {
		return err
	}
	if err := d.showNodes(ctx); err != nil {
		return err
	}
	if d.protocol {
		if err := d.checkGrowth(ctx, servers); err != nil {
			return err
		}
	}
	d.farewell()
	return nil
}

// check waits until a Memcached is ready, talks to each of its servers, and returns their number.
func (d *demo) check(ctx context.Context) (int, error) {
	servers, err := d.servers(ctx)
	if err != nil {
		return 0, err
	}
	defer servers.close()
	heading("Each server by itself, in the memcached protocol")
	if err := servers.greet(); err != nil {
		return 0, err
	}
	heading("All servers together, behind a client that hashes")
	_, err = servers.spreadKeys(d.keys)
	return len(servers.list), err
}

// checkGrowth writes the keys again after the number of servers changed, and fails if more keys were lost than
// necessary.
func (d *demo) checkGrowth(ctx context.Context, before int) error {
	servers, err := d.servers(ctx)
	if err != nil {
		return err
	}
	defer servers.close()
	kept, err := servers.spreadKeys(d.keys)
	if err != nil {
		return err
	}
	after := len(servers.list)
	expected := d.keys * min(before, after) / max(before, after)
	fmt.Printf("From %d to %d servers, %d of the %d keys are found again. With consistent hashing, about %d are\n"+
		"expected; a client that takes the remainder of a hash finds far fewer.\n", before, after, kept, d.keys, expected)
	if kept < expected*5/6 {
		return fmt.Errorf("%d keys are found again, want about %d", kept, expected)
	}
	return nil
}

func (d *demo) waitReady(ctx context.Context) error {
	start := time.Now()
	if err := d.run(ctx, "wait", "--for=condition=Ready", "memcached/"+d.name,
		fmt.Sprintf("--timeout=%.0fs", d.timeout.Seconds())); err != nil {
		return err
	}
	fmt.Printf("(after %.1f s)\n", time.Since(start).Seconds())
	return nil
}

func (d *demo) showNodes(ctx context.Context) error {
	return d.run(ctx, "get", "memcached", d.name, "-o", `jsonpath={range .status.nodes[*]}{@}{"\n"}{end}`)
}

// explain shows what helps to understand why the tour failed.
func (d *demo) explain(ctx context.Context) {
	heading("State of the cluster")
	for _, args := range [][]string{
		{"describe", "memcached", d.name},
		{"get", "pods", "-o", "wide", "-l", "app.kubernetes.io/instance=" + d.name},
		{"-n", "memcached-operator-system", "logs", "deployment/memcached-operator-controller-manager", "--tail=20"},
	} {
		_ = d.run(ctx, args...) // Each one helps, even if the others fail.
	}
	fmt.Println()
}

func (d *demo) farewell() {
	heading("It keeps running")
	kubectl, err := filepath.Abs(d.kubectl)
	if _, stat := os.Stat(kubectl); err != nil || stat != nil {
		kubectl = "" // Found in the PATH.
	}
	if d.kubeconfig != "" {
		fmt.Println("  export KUBECONFIG=" + d.kubeconfig)
	}
	if kubectl != "" {
		fmt.Printf("  export PATH=%s:$PATH\n", filepath.Dir(kubectl))
	}
	namespace := d.namespaceFlag()
	fmt.Printf("  kubectl%s get memcached,pods\n", namespace)
	fmt.Printf("  kubectl%s scale memcached/%s --replicas=2\n", namespace, d.name)
	if d.protocol {
		fmt.Printf("  kubectl%s port-forward deployment/%s 11211   # then, from another shell:\n", namespace, d.name)
		fmt.Println(`  bash -c 'exec 3<>/dev/tcp/127.0.0.1/11211; printf "stats\r\nquit\r\n" >&3; cat <&3'`)
	}
	fmt.Printf("  kubectl%s delete memcached %s\n", namespace, d.name)
	fmt.Println("\nmake demo-down deletes the cluster.")
}
