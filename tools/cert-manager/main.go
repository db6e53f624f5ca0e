// Command cert-manager is cert-manager's controller with the self-signed and the CA issuer, and without ACME, Vault and
// the clients of clouds, which take minutes to compile. There is no webhook either: the CRDs validate.
package main

import (
	"context"
	"flag"
	"log"

	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"

	"github.com/cert-manager/cert-manager/pkg/controller"
	"golang.org/x/sync/errgroup"
)

func main() {
	options := controller.ContextOptions{KubernetesAPIQPS: 50, KubernetesAPIBurst: 100}
	flag.StringVar(&options.Kubeconfig, "kubeconfig", "", "that of the cluster")
	flag.Parse()
	log.Fatal(run(options))
}

// run runs all controllers that the imports made known.
func run(options controller.ContextOptions) error {
	all, ctx := errgroup.WithContext(context.Background())
	factory, err := controller.NewContextFactory(ctx, options)
	if err != nil {
		return err
	}
	shared, err := factory.Build()
	if err != nil {
		return err
	}
	for _, construct := range controller.Known() {
		c, err := construct(factory)
		if err != nil {
			return err
		}
		all.Go(func() error { return c.Run(1, ctx) })
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	return all.Wait()
}
