package cluster

import (
	"cmp"
	"fmt"
	"os"
	"strings"
)

// Chosen returns the kind of cluster that CLUSTER names, as the make target of a suite sets it. Otherwise it returns an
// error that names the target: `go test ./...` must start no cluster, and use none that happens to run.
func Chosen(target string) (kind string, err error) {
	if kind = os.Getenv("CLUSTER"); kind == "" {
		err = fmt.Errorf("needs a cluster: make %s", target)
	}
	return kind, err
}

// Need returns the kind of cluster for a test, or skips the test.
func Need(t interface {
	Helper()
	Skip(args ...any)
}, target string) (kind string) {
	t.Helper()
	kind, err := Chosen(target)
	if err != nil {
		t.Skip(err)
	}
	return kind
}

// Main is the TestMain of a suite whose tests share a cluster. Without one, it runs no test.
func Main(target string, run func(kind string) (code int)) {
	kind, err := Chosen(target)
	if err != nil {
		fmt.Println("skipped:", err)
		return
	}
	os.Exit(run(kind))
}

// ImageBase returns the registry and the path of the operator's image, without a tag; the names of bundle and catalog
// begin with both. The make targets set it.
func ImageBase() (registry, path string) {
	registry, path, _ = strings.Cut(cmp.Or(os.Getenv("IMAGE_TAG_BASE"), "example.com/memcached-operator"), "/")
	return registry, path
}
