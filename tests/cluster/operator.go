package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// Names in config/default.
const (
	OperatorNamespace  = "memcached-operator-system"
	OperatorDeployment = "memcached-operator-controller-manager"
	operatorLease      = "memcached-operator.cache.example.com"
)

var errNoLeader = errors.New("no replica of the operator holds the lease")

// Operator runs the operator on a cluster. On node and kind it is the Deployment of config/default. On kwok, whose pods
// are simulated, each replica is a process of this machine with the flags, the environment and the service account of
// the Deployment. In both cases it has only the permissions of config/rbac.
type Operator struct {
	// Image is the image of the Deployment, by default that of config/default. On kwok, Manager runs instead.
	Image string
	// DefaultImage is the image of Memcacheds without spec.image, by default that of config/default.
	DefaultImage string
	// AgentImage is the image of agents, by default the operator's own.
	AgentImage string
	// Manager is the program that runs on kwok, by default bin/manager.
	Manager string

	c *Cluster
}

// Operator returns the operator of the cluster, running or not.
func (c *Cluster) Operator(image string) *Operator { return &Operator{Image: image, c: c} }

// Install applies config/default with 0 replicas: CRD, namespace and permissions, and on node and kind the Deployment.
func (o *Operator) Install(ctx context.Context) error {
	_, err := o.install(ctx, 0)
	return err
}

// Start installs the operator and runs this number of replicas. Replicas that already run are not restarted. It returns
// when all are ready.
func (o *Operator) Start(ctx context.Context, replicas int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("not ready after 2 minutes"))
	defer cancel()
	deployment, err := o.install(ctx, replicas)
	if err != nil {
		return fmt.Errorf("install the operator: %w", err)
	}
	if o.c.Kind == "kwok" {
		return o.startProcesses(ctx, deployment, replicas)
	}
	_, err = o.c.kubectl(ctx, "rollout", "status", "--namespace", OperatorNamespace, "deployment/"+OperatorDeployment)
	if err != nil {
		logs, _ := o.Logs(context.WithoutCancel(ctx))
		return fmt.Errorf("start the operator: %w\nlog of the operator:\n%s", err, logs)
	}
	return nil
}

// Run runs on a kwok cluster what the operator's Deployment there says, whoever installed it: its number of replicas
// as processes of this machine, with its flags, environment and service account. It returns when all are ready.
func (o *Operator) Run(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("not ready after 2 minutes"))
	defer cancel()
	client, err := kubernetes.NewForConfig(o.c.KubernetesRestConfig())
	if err != nil {
		return err
	}
	deployment, err := client.AppsV1().Deployments(OperatorNamespace).Get(ctx, OperatorDeployment, metav1.GetOptions{})
	if err != nil {
		return err
	}
	return o.startProcesses(ctx, deployment, int(*deployment.Spec.Replicas))
}

// Stop stops every replica with SIGTERM, so that the leader releases its lease, and waits until all are gone.
func (o *Operator) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("still there after a minute"))
	defer cancel()
	if o.c.Kind == "kwok" {
		var errs []error
		for _, p := range o.processes() {
			errs = append(errs, o.c.signal(ctx, p.pidFile, syscall.SIGTERM))
		}
		return errors.Join(errs...)
	}
	if err := o.c.KeepLogs(OperatorNamespace); err != nil {
		return err
	}
	if _, err := o.c.kubectl(ctx, "scale", "--namespace", OperatorNamespace, "deployment/"+OperatorDeployment,
		"--replicas=0"); err != nil {
		return err
	}
	return harness.Poll(ctx, func(ctx context.Context) error {
		out, err := o.c.kubectl(ctx, "get", "pods", "--namespace", OperatorNamespace, "--selector",
			"control-plane=controller-manager", "--output", "name")
		if out != "" {
			err = errors.Join(err, fmt.Errorf("still there: %s", out))
		}
		return err
	})
}

// Kill kills the leader with SIGKILL, like a crash: the lease stays until it expires. On kwok the replica stays dead
// until Start; elsewhere the kubelet restarts it.
func (o *Operator) Kill(ctx context.Context) error {
	leader, err := o.Leader(ctx)
	if err != nil {
		return err
	}
	if o.c.Kind == "kwok" {
		return o.c.signal(ctx, o.process(leader).pidFile, syscall.SIGKILL)
	}
	return o.c.KillContainer(ctx, OperatorNamespace, leader, "manager")
}

// Freeze stops the leader without ending it, until continues is called. The leader then does not know that it has lost
// its lease.
func (o *Operator) Freeze(ctx context.Context) (continues func() error, err error) {
	leader, err := o.Leader(ctx)
	if err != nil {
		return nil, err
	}
	if o.c.Kind == "kwok" {
		return o.c.Freeze(leader)
	}
	return func() error {
		// The kubelet may have replaced the container, because the probes failed.
		_ = o.c.SignalContainer(context.WithoutCancel(ctx), OperatorNamespace, leader, "manager", "SIGCONT")
		return nil
	}, o.c.SignalContainer(ctx, OperatorNamespace, leader, "manager", "SIGSTOP")
}

// Leader returns the name of the replica that holds the lease: of its pod or, on kwok, of its process.
func (o *Operator) Leader(ctx context.Context) (string, error) {
	if o.c.Kind == "kwok" {
		for _, p := range o.processes() {
			metrics, err := p.metrics(ctx)
			if err == nil && strings.Contains(metrics, `leader_election_master_status{name="`+operatorLease+`"} 1`) {
				return p.name, nil
			}
		}
		return "", errNoLeader
	}
	holder, err := o.Holder(ctx)
	pod, _, _ := strings.Cut(holder, "_")
	return pod, err
}

// Holder returns the identity in the lease, which differs for every start of a replica. After Kill, it is that of the
// killed replica until another one, or the restarted one, leads.
func (o *Operator) Holder(ctx context.Context) (string, error) {
	client, err := kubernetes.NewForConfig(o.c.KubernetesRestConfig())
	if err != nil {
		return "", err
	}
	lease, err := client.CoordinationV1().Leases(OperatorNamespace).Get(ctx, operatorLease, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		return "", errNoLeader
	}
	return *lease.Spec.HolderIdentity, nil
}

// Logs returns the last lines of every replica's log.
func (o *Operator) Logs(ctx context.Context) (string, error) {
	if o.c.Kind == "kwok" {
		var all strings.Builder
		logs, _ := filepath.Glob(o.c.path("logs", "operator-*.log"))
		for _, log := range logs {
			text, err := os.ReadFile(log)
			if err != nil {
				return "", err
			}
			all.WriteString(log + ":\n" + string(text))
		}
		return all.String(), nil
	}
	return o.c.kubectl(ctx, "logs", "--namespace", OperatorNamespace, "--selector", "control-plane=controller-manager",
		"--tail", "200", "--prefix")
}

// KillContainer kills the first process of a container with SIGKILL.
func (c *Cluster) KillContainer(ctx context.Context, namespace, pod, container string) error {
	return c.SignalContainer(ctx, namespace, pod, container, "SIGKILL")
}

// SignalContainer sends a signal to the first process of a container. A command in the container cannot do that: the
// kernel protects a container's first process from the others.
func (c *Cluster) SignalContainer(ctx context.Context, namespace, pod, container, signal string) error {
	id, err := c.kubectl(ctx, "get", "pod", pod, "--namespace", namespace, "--output",
		`jsonpath={.status['containerStatuses','initContainerStatuses'][?(@.name=="`+container+`")].containerID}`)
	if err != nil {
		return err
	}
	kill := []string{"ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", signal,
		strings.TrimPrefix(id, "containerd://")}
	if c.Kind == "kind" {
		_, err = run(ctx, nil, "docker", append([]string{"exec", c.name + "-control-plane"}, kill...)...)
	} else {
		_, err = (&node{c}).ctr(ctx, kill[3:]...)
	}
	return err
}

// install applies config/default and returns its Deployment, which it does not apply on kwok.
func (o *Operator) install(ctx context.Context, replicas int) (*appsv1.Deployment, error) {
	rendered, err := o.c.kubectl(ctx, "kustomize", filepath.Join(o.c.root, "config", "default"))
	if err != nil {
		return nil, err
	}
	var deployment appsv1.Deployment
	var manifests []string
	for manifest := range strings.SplitSeq(rendered, "\n---\n") {
		var object metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(manifest), &object); err != nil {
			return nil, err
		}
		if object.Kind == "Deployment" {
			if err := yaml.Unmarshal([]byte(manifest), &deployment); err != nil {
				return nil, err
			}
			container := &deployment.Spec.Template.Spec.Containers[0]
			for i := range container.Env {
				if e := &container.Env[i]; e.Name == "RELATED_IMAGE_MEMCACHED" {
					e.Value = cmp.Or(o.DefaultImage, e.Value)
				}
			}
			if o.AgentImage != "" {
				container.Env = append(container.Env, corev1.EnvVar{Name: "AGENT_IMAGE", Value: o.AgentImage})
			}
			if o.c.Kind == "kwok" {
				continue
			}
			count := int32(replicas)
			deployment.Spec.Replicas = &count
			container.Image = cmp.Or(o.Image, container.Image)
			text, err := yaml.Marshal(deployment)
			if err != nil {
				return nil, err
			}
			manifest = string(text)
		}
		manifests = append(manifests, manifest)
	}
	if deployment.Name != OperatorDeployment {
		return nil, fmt.Errorf("config/default has no Deployment %s", OperatorDeployment)
	}
	file := o.c.path("operator.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(manifests, "\n---\n")), 0o644); err != nil {
		return nil, err
	}
	if _, err := o.c.kubectl(ctx, "apply", "--server-side", "--force-conflicts", "--filename", file); err != nil {
		return nil, err
	}
	_, err = o.c.kubectl(ctx, "wait", "--for=condition=Established", "--timeout=30s", "crd/memcacheds.cache.example.com")
	return &deployment, err
}

// KubeconfigOf writes a kubeconfig with a token of a service account, and returns its path.
func (c *Cluster) KubeconfigOf(ctx context.Context, namespace, account string) (string, error) {
	config, err := clientcmd.LoadFromFile(c.GetKubeconfig())
	if err != nil {
		return "", err
	}
	token, err := c.kubectl(ctx, "create", "token", account, "--namespace", namespace, "--duration", "24h")
	if err != nil {
		return "", err
	}
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &api.AuthInfo{Token: strings.TrimSpace(token)}
	}
	file := c.path(account + ".kubeconfig")
	return file, clientcmd.WriteToFile(*config, file)
}
