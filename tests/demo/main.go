// Command demo demonstrates the operator on a cluster where it runs. It creates memcached servers from the sample of
// the tutorials, writes to them, reads from them and scales them. It may be repeated on the same cluster.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// sample is the sample of every operator-sdk tutorial, unchanged.
	sample = "config/samples/cache_v1alpha1_memcached.yaml"
	name   = "memcached-sample"
	// firstSize is the size in the sample.
	firstSize, laterSize = 3, 5

	showNodes = `kubectl get memcached ` + name + ` -o 'jsonpath={range .status.nodes[*]}{@}{"\n"}{end}'`
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "the cluster's kubeconfig (default: $KUBECONFIG, then ~/.kube/config)")
	kubectl := flag.String("kubectl", "", "the kubectl to run (default: that in $PATH)")
	protocol := flag.Bool("protocol", true,
		"talk to the servers; false on a cluster of simulated nodes, which run none")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := use(*kubeconfig, *kubectl)
	if err == nil {
		err = tour(ctx, *protocol)
	}
	if err != nil && ctx.Err() == nil {
		explain(ctx)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	farewell(*kubeconfig, *kubectl, *protocol)
}

// use makes all commands use a kubeconfig and a kubectl, if they are given.
func use(kubeconfig, kubectl string) (err error) {
	if kubeconfig != "" {
		err = os.Setenv("KUBECONFIG", kubeconfig)
	}
	if kubectl != "" {
		err = errors.Join(err, os.Setenv("PATH", filepath.Dir(kubectl)+":"+os.Getenv("PATH")))
	}
	return err
}

// tour is the whole demonstration.
func tour(ctx context.Context, protocol bool) error {
	heading("Servers from the sample of the tutorials")
	err := runAll(ctx, "kubectl apply -f "+sample, waitReady, "kubectl get memcached",
		"kubectl get deployment,service,poddisruptionbudget -l cache.example.com/name="+name, showNodes)
	if err != nil {
		return err
	}
	if protocol {
		err = check(ctx)
	} else {
		heading("No protocol part on this cluster")
		fmt.Println("Its nodes are simulated: the pods become ready, but no memcached runs in them that could be")
		fmt.Println("written to. As root on Debian or Ubuntu, or with a Docker engine, `make demo` shows that part too.")
	}
	if err != nil {
		return err
	}
	heading(fmt.Sprint("Scaled to ", laterSize))
	scale := fmt.Sprintf("kubectl scale memcached/%s --replicas=%d", name, laterSize)
	err = runAll(ctx, scale, waitReady, "kubectl get memcached", showNodes)
	if err == nil && protocol {
		err = checkGrowth(ctx)
	}
	return err
}

// waitReady waits until the operator reports that the last change is done.
const waitReady = "kubectl wait --for=condition=Ready memcached/" + name + " --timeout=180s"

// runAll runs one command after the other.
func runAll(ctx context.Context, commands ...string) error {
	for _, command := range commands {
		start := time.Now()
		if err := run(ctx, command); err != nil {
			return err
		}
		if command == waitReady {
			fmt.Printf("(after %.1f s)\n", time.Since(start).Seconds())
		}
	}
	return nil
}

// run prints a command as a user would type it, runs it and shows its output.
func run(ctx context.Context, command string) error {
	fmt.Println(bold("$"), command)
	cmd := exec.CommandContext(ctx, "sh", "-c", "exec "+command)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	return nil
}

// explain shows what helps to understand why the tour failed.
func explain(ctx context.Context) {
	heading("State of the cluster")
	for _, command := range []string{
		"kubectl describe memcached " + name,
		"kubectl get pods -o wide -l cache.example.com/name=" + name,
		"kubectl -n memcached-operator-system logs deployment/memcached-operator-controller-manager --tail=20",
	} {
		_ = run(ctx, command) // each one helps, even if the others fail
	}
	fmt.Println()
}

// farewell says how to go on. The lines before the empty one can be pasted into a shell.
func farewell(kubeconfig, kubectl string, protocol bool) {
	heading("It keeps running")
	if kubeconfig != "" {
		fmt.Println("  export KUBECONFIG=" + kubeconfig)
	}
	if kubectl != "" {
		fmt.Printf("  export PATH=%s:$PATH\n", filepath.Dir(kubectl))
	}
	fmt.Println("  kubectl get memcached,pods")
	fmt.Printf("  kubectl scale memcached/%s --replicas=2\n", name)
	if protocol {
		fmt.Printf("  kubectl port-forward deployment/%s 11211   # then, from another shell:\n", name)
		fmt.Println(`  bash -c 'exec 3<>/dev/tcp/127.0.0.1/11211; printf "stats\r\nquit\r\n" >&3; cat <&3'`)
	}
	fmt.Printf("  kubectl delete memcached %s\n", name)
	fmt.Println("\nmake demo-down deletes the cluster.")
}

func heading(text string) { fmt.Printf("\n%s\n", bold("── "+text+" ──")) }

// bold returns text unchanged if the output is not a terminal or NO_COLOR is set.
func bold(text string) string {
	info, err := os.Stdout.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 || os.Getenv("NO_COLOR") != "" {
		return text
	}
	return "\x1b[1m" + text + "\x1b[0m"
}
