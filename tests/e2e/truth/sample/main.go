// Command sample runs a command, and watches meanwhile whether the status of any Memcached on the cluster of KUBECONFIG
// lies. It exits with the status of the command, or with 1 if there was a lie.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/example/memcached-operator/tests/e2e/truth"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sample:", err)
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			os.Exit(exit.ExitCode())
		}
		os.Exit(1)
	}
}

func run(command []string) error {
	if len(command) == 0 {
		return errors.New("usage: sample COMMAND [ARGUMENT...]")
	}
	// An interrupt also reaches the command. sample continues until the command exits.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGTERM)
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	ctx := context.Background()
	sampler, err := truth.Start(ctx, config)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	ran := cmd.Run()
	verdict, err := sampler.Stop(ctx)
	fmt.Println(verdict)
	if len(verdict.Lies) > 0 {
		err = errors.Join(err, errors.New("the status lied"))
	}
	return errors.Join(ran, err)
}
