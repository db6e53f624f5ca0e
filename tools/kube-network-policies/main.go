// Command kube-network-policies enforces the NetworkPolicies of the pods of one node, as that of kube-network-policies,
// which takes no kubeconfig. It asks the cluster of a kubeconfig, and lets all pass when it ends.
package main

import (
	"context"
	"flag"
	"log"
	"os/signal"
	"syscall"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
)

func main() {
	klog.InitFlags(nil)
	kubeconfig := flag.String("kubeconfig", "", "that of the cluster")
	config := networkpolicy.Config{FailOpen: true}
	flag.StringVar(&config.NodeName, "node", "", "the name of this node")
	flag.IntVar(&config.QueueID, "queue", 0, "the number of the queue of packets")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, *kubeconfig, config); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, kubeconfig string, config networkpolicy.Config) error {
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	controller, err := networkpolicy.NewController(client, factory.Networking().V1().NetworkPolicies(),
		factory.Core().V1().Namespaces(), factory.Core().V1().Pods(), nil, nil, nil, nil, config)
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	return controller.Run(ctx)
}
