package earlier

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/example/memcached-operator/internal/testing/harness"
)

// The Memcacheds that the operator creates before and after the upgrade, in a namespace of their own.
const before, after, namespace = "before", "after", "upgrade"

// Cache is a Memcached that exists during the upgrade.
type Cache struct {
	t        harness.T
	kubectl  func(args ...string) (string, error)
	from     Version
	template podTemplate
	pods     []string
}

// podTemplate holds what differs between the pod templates of two versions: default image, image of the agent, and
// grace period, which stands for all that the builder builds.
type podTemplate [3]string

// Create lets the operator of the version before the upgrade create a Memcached with an agent. kubectl runs kubectl.
func Create(t harness.T, from Version, kubectl func(args ...string) (string, error)) *Cache {
	t.Helper()
	c := &Cache{t: t, kubectl: kubectl, from: from}
	c.run("create", "namespace", namespace)
	c.create(before)
	c.template, c.pods = c.templateOf(before), c.podsOf(before)
	if !from.Released() && (c.template[2] != graceSeconds || c.knowsNewField()) {
		t.Fatalf("v0.0.0 is not as it was made: pod template %s, field %s %t", c.template, newField, c.knowsNewField())
	}
	return c
}

// Upgraded checks after the upgrade that the new operator replaces no server and preserves the pod template, until a
// restart, and that new caches get what the new operator builds. Then it deletes the caches.
func (c *Cache) Upgraded() {
	c.t.Helper()
	if !c.knowsNewField() {
		c.t.Fatalf("the upgrade did not bring the new CRD")
	}
	c.run("scale", "--namespace", namespace, "memcached/"+before, "--replicas=2") // the new operator writes the workload
	c.ready(before)
	for _, pod := range c.pods {
		if now := c.podsOf(before); !slices.Contains(now, pod) {
			c.t.Fatalf("the upgrade has replaced or restarted server %s: now %s", pod, now)
		}
	}
	if now := c.templateOf(before); now != c.template {
		c.t.Fatalf("the upgrade has changed the pod template: %s, was %s", now, c.template)
	}

	c.create(after)
	built := c.templateOf(after)
	for i := range built {
		if built[i] == c.template[i] && (!c.from.Released() || i == 1) { // two releases may have the others in common
			c.t.Fatalf("a new cache gets the pod template %s: v%s had %s", built, c.from.Version, c.template)
		}
	}
	c.run("annotate", "--namespace", namespace, "memcached/"+before, "cache.example.com/restartedAt=now")
	harness.Eventually(c.t, "a restart brings the new pod template", harness.Patience, func() error {
		if now := c.templateOf(before); now != built {
			return fmt.Errorf("it is %s, want %s", now, built)
		}
		return nil
	})
	c.ready(before)
	c.run("delete", "memcacheds", "--all", "--namespace", namespace, "--timeout=90s")
	c.run("delete", "namespace", namespace, "--timeout=90s")
}

// create creates a Memcached with one server, and waits until it is ready.
func (c *Cache) create(name string) {
	c.t.Helper()
	file := filepath.Join(c.from.Source, name+".yaml")
	text := fmt.Sprintf(`{apiVersion: cache.example.com/v1alpha1, kind: Memcached, metadata: {name: %s},
		spec: {size: 1, metrics: {}}}`, name)
	harness.Must(c.t, os.WriteFile(file, []byte(text), 0o644))
	c.run("create", "--namespace", namespace, "--filename", file)
	c.ready(name)
}

func (c *Cache) ready(name string) {
	c.t.Helper()
	c.run("wait", "--for=condition=Ready", "--timeout=2m", "--namespace", namespace, "memcached/"+name)
}

func (c *Cache) templateOf(name string) (t podTemplate) {
	c.t.Helper()
	const pod = "{.spec.template.spec"
	parts := strings.Fields(c.run("get", "deployment", name, "--namespace", namespace, "--output", "jsonpath="+
		pod+".containers[0].image} "+pod+".initContainers[0].image} "+pod+".terminationGracePeriodSeconds}"))
	if copy(t[:], parts) != len(t) {
		harness.Must(c.t, errors.New("the pod template lacks an image: "+strings.Join(parts, " ")))
	}
	return t
}

// podsOf returns the UIDs of the servers, each with the number of its restarts.
func (c *Cache) podsOf(name string) []string {
	c.t.Helper()
	return strings.Fields(c.run("get", "pods", "--namespace", namespace, "--selector", "cache.example.com/name="+name,
		"--output", `jsonpath={range .items[*]}{.metadata.uid}/{.status.containerStatuses[0].restartCount}{"\n"}{end}`))
}

// knowsNewField reports whether the API server has the CRD of the new version.
func (c *Cache) knowsNewField() bool {
	c.t.Helper()
	return c.run("get", "crd", "memcacheds.cache.example.com", "--output",
		"jsonpath={.spec.versions[0].schema.openAPIV3Schema.properties.spec.properties."+newField+".type}") != ""
}

func (c *Cache) run(args ...string) string {
	c.t.Helper()
	out, err := c.kubectl(args...)
	harness.Must(c.t, err)
	return out
}
