package olmv1

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/example/memcached-operator/tests/cluster"
)

// release is a bundle in the registry, with the image and the program of its operator.
type release struct{ version, bundle, operator, manager string }

const csvFile = "manifests/memcached-operator.clusterserviceversion.yaml"

var (
	versionOf  = regexp.MustCompile(`(?m)^ {2}version: (\S+)$`)
	operatorOf = regexp.MustCompile(`(?m)^ {4}containerImage: (\S+)$`)
)

// image is the name, without a tag, of the operator's image, or of that of a part of the release, in the registry of
// the test.
func (w *world) image(part string) string {
	_, path := cluster.ImageBase()
	return w.registry + "/" + path + part
}

// public returns the name under which nodes and OLM know an image of the test's registry.
func (w *world) public(image string) string {
	registry, _ := cluster.ImageBase()
	return strings.Replace(image, w.registry, registry, 1)
}

// release pushes the bundle in a folder.
func (w *world) release(folder, manager string) release {
	w.Helper()
	csv, err := os.ReadFile(filepath.Join(folder, csvFile))
	w.must(err)
	version := string(versionOf.FindSubmatch(csv)[1])
	image := w.run("tools/image", "bundle", folder, w.image("-bundle")+":v"+version, version)
	return release{version, w.public(image), string(operatorOf.FindSubmatch(csv)[1]), manager}
}

// catalog pushes a catalog with these releases, each added as a release adds itself.
func (w *world) catalog(tag string, releases ...release) {
	w.Helper()
	folder := w.path("catalog-" + tag)
	w.run("tools/catalog", "empty", folder)
	for _, r := range releases {
		w.run("tools/catalog", "add", r.version, r.bundle, folder)
	}
	w.run("env", "MIRROR="+w.registry, "tools/catalog", "render", folder)
	// OLM v1 reads only the files of the catalog, so any image can replace opm.
	w.run("env", "OPM_IMAGE="+w.image("-bundle")+":v"+releases[0].version, "PLATFORMS=linux/amd64",
		"tools/image", "catalog", filepath.Join(folder, "memcached-operator"), w.image("-catalog")+":"+tag, "0")
}

// breaking returns a later version of a bundle whose CRD refuses values that the bundle's own CRD allows.
func (w *world) breaking(bundle, version string) (folder string) {
	w.Helper()
	w.must(os.CopyFS(w.path("breaking"), os.DirFS(bundle)))
	edit := func(file string, is *regexp.Regexp, becomes string) {
		text, err := os.ReadFile(w.path(file))
		w.must(err)
		w.write(file, is.ReplaceAllString(string(text), becomes))
	}
	csv, err := os.ReadFile(filepath.Join(bundle, csvFile))
	w.must(err)
	old := string(versionOf.FindSubmatch(csv)[1])
	edit("breaking/"+csvFile, regexp.MustCompile(regexp.QuoteMeta(old)), version)
	edit("breaking/manifests/cache.example.com_memcacheds.yaml", regexp.MustCompile(`maximum: \d+`), "maximum: 3")
	return w.path("breaking")
}
