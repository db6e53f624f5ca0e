// Package olm tests a release as users install it: by a Subscription to our catalog, with the real Operator Lifecycle
// Manager (OLM).
//
//	make olm-e2e CLUSTER=node            the newest OLM, from its own chart
//	make olm-e2e CLUSTER=kind OLM=newest the same, with the images of upstream
//	make olm-e2e CLUSTER=kind            the version that operator-sdk olm install installs
//
// Whatever users do by a command, the tests do by the same command.
package olm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/tests/cluster"
	"github.com/example/memcached-operator/tests/earlier"
)

var (
	root string // the repository
	work string // folder for files of the tests
	kind string // of the cluster
	// newest says that the newest OLM is tested, that of tools/olm.
	newest bool
	files  string // a copy of config/gitops/operator
	// registry is host:port, plain HTTP. Nodes pull our images from it.
	registry string
	// from and to are the versions before and after the upgrade; from is built from source.
	from, to release
	source   earlier.Version
)

func TestMain(m *testing.M) {
	cluster.Main("olm-e2e CLUSTER=node", func(chosen string) int {
		kind, newest = chosen, chosen == "node" || os.Getenv("OLM") == "newest"
		return run(m)
	})
}

func run(m *testing.M) (code int) {
	begin := time.Now()
	if err := setUp(context.Background()); err != nil {
		fmt.Println("FAIL:", err)
		dumpState()
		return 1
	}
	code = m.Run()
	if code != 0 {
		dumpState()
	}
	if remains := os.RemoveAll(work); remains != nil {
		fmt.Println(remains)
	}
	milestones.add("everything", begin)
	fmt.Print(&milestones)
	return code
}

// setUp starts a cluster with OLM, and a registry with the images of two versions.
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
	if err := c.PublishOLM(ctx); err != nil {
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
	both.Go(func() { releases = buildReleases(ctx) })
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
	if newest {
		return installChart()
	}
	return operatorSDK("olm", "install", "--timeout", "5m")
}

// installChart installs OLM's manifests, rendered from its chart like the olm.yaml of a release.
func installChart() error {
	dir, version, err := harness.Module(context.Background(), filepath.Join(root, "tools", "olm"),
		"github.com/operator-framework/operator-lifecycle-manager")
	if err != nil {
		return err
	}
	dir = filepath.Join(dir, "deploy")
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
		args = append(args, "--set", part+".image.ref=quay.io/operator-framework/olm:"+version)
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
