// Command cluster starts and stops the ephemeral clusters from a shell.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/example/memcached-operator/tests/cluster"
)

const usage = `usage: cluster [-kind kwok|node|kind] command

  up                  start the cluster, if it is not up
  down                stop it and remove its state
  build IMAGE [FILE]  build an image from FILE (by default the operator's from Dockerfile)
  buildx IMAGE        build the operator's image for $PLATFORMS and push it
  push IMAGE          push a built image
  load IMAGE          make a built image available to the nodes
  operator-start IMAGE
                      install the operator from config/default, and start or restart it; on kwok, bin/manager runs on
                      this machine with the operator's service account
  operator-run        on kwok, run bin/manager as the operator's Deployment says that is already installed
  operator-stop       stop it
  pin-memcached       pin the newest packages of the stand-in for the memcached image
  shellcheck          download shellcheck into bin
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		stop()
		os.Exit(1)
	}
}

func command(ctx context.Context) error {
	kind := flag.String("kind", "kwok", "kwok, node or kind")
	flag.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	flag.Parse()
	c, err := cluster.New(*kind)
	if err != nil {
		return err
	}
	switch flag.Arg(0) {
	case "up":
		_, err := c.Create(ctx)
		return err
	case "down":
		return c.Destroy(ctx)
	case "operator-run":
		return c.Operator("").Run(ctx)
	case "operator-stop":
		return c.Operator("").Stop(ctx)
	case "pin-memcached":
		return c.PinMemcached(ctx)
	case "shellcheck":
		return c.DownloadShellCheck(ctx)
	}
	image := flag.Arg(1)
	if image == "" {
		flag.Usage()
		return errors.New("no such command, or no image")
	}
	switch flag.Arg(0) {
	case "build":
		return c.BuildImage(ctx, image, flag.Arg(2), os.Getenv("VERSION"))
	case "buildx":
		return c.BuildAndPushImage(ctx, image, os.Getenv("VERSION"), os.Getenv("PLATFORMS"))
	case "load":
		return c.LoadImage(ctx, image)
	case "push":
		return c.PushImage(ctx, image)
	case "operator-start":
		o := c.Operator(image)
		if err := o.Install(ctx); err != nil {
			return err
		}
		if err := errors.Join(o.Stop(ctx), o.Start(ctx, 1)); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "the operator runs on the %s cluster\n", c.Kind)
		return nil
	}
	flag.Usage()
	return errors.New("no such command")
}
