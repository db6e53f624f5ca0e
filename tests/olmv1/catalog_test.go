package olmv1

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// release is a bundle in the registry, with the image of its operator.
type release struct{ version, bundle, operator string }

const csvFile = "manifests/memcached-operator.clusterserviceversion.yaml"

var (
	versionOf  = regexp.MustCompile(`(?m)^ {2}version: (\S+)$`)
	operatorOf = regexp.MustCompile(`(?m)^ {4}containerImage: (\S+)$`)
)

// release pushes the bundle in a folder.
func (w *world) release(folder string) release {
	w.Helper()
	csv, err := os.ReadFile(filepath.Join(folder, csvFile))
	w.must(err)
	version := string(versionOf.FindSubmatch(csv)[1])
	image := w.run("tools/image", "bundle", folder, w.registry+"/memcached-operator-bundle:v"+version, version)
	return release{version, strings.Replace(image, w.registry, "example.com", 1), string(operatorOf.FindSubmatch(csv)[1])}
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
	w.run("env", "OPM_IMAGE="+strings.Replace(releases[0].bundle, "example.com", w.registry, 1), "PLATFORMS=linux/amd64",
		"tools/image", "catalog", filepath.Join(folder,
			"memcached-operator"), w.registry+"/memcached-operator-catalog:"+tag, "0")
}

// last returns the source of the last release, with its operator built. The test needs that operator, because the
// permissions of the last release may not suffice for a later operator.
func (w *world) last() (folder string) {
	w.Helper()
	commit := w.run("tools/release-commit", w.run("tools/catalog", "last"))
	w.run("git", "archive", "--output", w.path("last.tar"), "--prefix=last/", commit)
	w.run("tar", "--extract", "--file", w.path("last.tar"), "--directory", w.dir)
	w.run("go", "build", "-C", w.path("last"), "-o", "bin/manager", ".")
	return w.path("last")
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
