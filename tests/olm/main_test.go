// Package olm tests a release as users install it: by a Subscription to our catalog, with the real Operator Lifecycle
// Manager (OLM).
//
//	make olm-e2e CLUSTER=node            the newest OLM, from its own chart
//	make olm-e2e CLUSTER=node OLM=0.27.0 installed by operator-sdk olm install --version 0.27.0, from embedded manifests
//	make olm-e2e CLUSTER=kind            installed by operator-sdk olm install, in its default version; no stand-ins
//
// Whatever users do by a command, the tests do by the same command.
package olm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/example/memcached-operator/tests/cluster"
)

const (
	newestOLM = "0.40.0" // the pin of tools/olm
	chosenOLM = "0.28.0" // the default of operator-sdk
)

var (
	root       string // the repository
	work       string // folder for files of the tests
	kind       = cmp.Or(os.Getenv("CLUSTER"), "node")
	olmVersion = cmp.Or(os.Getenv("OLM"), map[string]string{"kind": chosenOLM}[kind], newestOLM)
	files      string // a copy of config/gitops/operator
	registry   string // host:port, plain HTTP; nodes pull images of example.com from it
	// from and to are the releases before and after the upgrade.
	from, to release
)

func TestMain(m *testing.M) {
	begin := time.Now()
	if err := setUp(context.Background()); err != nil {
		fmt.Println("FAIL:", err)
		dumpState()
		os.Exit(1)
	}
	code := m.Run()
	if code != 0 {
		dumpState()
	}
	if remains := os.RemoveAll(work); remains != nil {
		fmt.Println(remains)
	}
	milestones.add("everything", begin)
	fmt.Print(&milestones)
	os.Exit(code)
}

// setUp starts a cluster with OLM, and a registry with the images of two releases.
func setUp(ctx context.Context) (err error) {
	if root, err = filepath.Abs("../.."); err != nil {
		return err
	}
	if work, err = os.MkdirTemp("", "olm-"); err != nil {
		return err
	}
	c, err := cluster.New(kind)
	if err != nil {
		return err
	}
	err = errors.Join(os.Setenv("PATH", filepath.Join(root, "bin")+":"+os.Getenv("PATH")),
		os.Setenv("KUBECONFIG", c.GetKubeconfig()))
	if err != nil {
		return err
	}
	if _, err := c.Create(ctx); err != nil {
		return err
	}
	if registry, err = c.Registry(ctx); err != nil {
		return err
	}
	start := time.Now()
	if err := c.PublishOLM(ctx, olmVersion); err != nil {
		return err
	}
	milestones.add("images of OLM published", start)
	if kind == "node" { // this registry has the upstream images too
		if err := os.Setenv("OPM_IMAGE", registry+"/operator-framework/opm:latest"); err != nil {
			return err
		}
	}
	var releases, olm error
	var both sync.WaitGroup
	both.Go(func() { releases = buildReleases() })
	both.Go(func() { olm = installOLM() })
	both.Wait()
	return errors.Join(releases, olm)
}

// installOLM installs OLM, unless it is installed.
func installOLM() error {
	defer milestones.add("OLM installed", time.Now())
	if _, err := kubectl("get", "deployment", "olm-operator", "--namespace", "olm"); err == nil {
		return nil
	}
	if kind == "node" && olmVersion == newestOLM {
		return installChart()
	}
	if olmVersion == chosenOLM {
		return operatorSDK("olm", "install", "--timeout", "5m")
	}
	return operatorSDK("olm", "install", "--version", olmVersion, "--timeout", "5m")
}

// installChart installs OLM's manifests, rendered from its chart like the olm.yaml of a release.
func installChart() error {
	dir, err := command(time.Minute, "go", "list", "-C", "tools/olm", "-m", "-f", "{{.Dir}}",
		"github.com/operator-framework/operator-lifecycle-manager")
	if err != nil {
		return err
	}
	dir = filepath.Join(strings.TrimSpace(dir), "deploy")
	if _, err := kubectl("create", "-f", filepath.Join(dir, "chart", "crds")); err != nil {
		return err
	}
	if _, err := kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f",
		filepath.Join(dir, "chart", "crds")); err != nil {
		return err
	}
	args := []string{"template", "--namespace", "olm", "--values", filepath.Join(dir, "upstream", "values.yaml"),
		filepath.Join(dir, "chart")}
	for _, part := range []string{"olm", "catalog", "package"} {
		args = append(args, "--set", part+".image.ref=quay.io/operator-framework/olm:v"+olmVersion)
	}
	rendered, err := command(time.Minute, "helm", args...)
	if err != nil {
		return err
	}
	file := filepath.Join(work, "olm.yaml")
	if err := os.WriteFile(file, []byte(rendered), 0o644); err != nil {
		return err
	}
	if _, err := kubectl("create", "-f", file); err != nil {
		return err
	}
	_, err = kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=3m", "csv/packageserver",
		"--namespace", "olm")
	return err
}

// dumpState prints the state of the cluster after a failure.
func dumpState() {
	for _, args := range [][]string{
		{"get", "catalogsources,subscriptions,installplans.operators.coreos.com,csv,operatorgroups,memcacheds,pods",
			"--all-namespaces", "--output", "wide"},
		{"get", "events", "--all-namespaces", "--field-selector", "type=Warning", "--sort-by", "metadata.creationTimestamp"},
		{"logs", "--namespace", "olm", "deployment/catalog-operator", "--tail", "5"},
		{"logs", "--namespace", "olm", "deployment/olm-operator", "--tail", "5"},
	} {
		out, err := kubectl(args...)
		fmt.Println("kubectl", strings.Join(args, " "), err)
		fmt.Println(out)
	}
}
