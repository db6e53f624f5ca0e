// Package bundle tests that the OLM bundle matches its sources, and runs every validator that needs no cluster. `make
// validate-bundle` runs these tests with the command line tools; `make olm-e2e` installs the bundle.
package bundle

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/operator-framework/api/pkg/manifests"
	operatorsv1alpha1 "github.com/operator-framework/api/pkg/operators/v1alpha1"
	"github.com/operator-framework/api/pkg/validation"
	interfaces "github.com/operator-framework/api/pkg/validation/interfaces"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/example/memcached-operator/internal/testing/harness"
)

const root = "../.."

func TestMain(m *testing.M) {
	if err := harness.Built("validate-bundle", "crdify", "kustomize", "yq", "channels"); err != nil {
		fmt.Println("skipped:", err)
		return
	}
	m.Run()
}

func load(t *testing.T) *manifests.Bundle {
	t.Helper()
	bundle, err := manifests.GetBundleFromDir(bundleDir)
	require.NoError(t, err)
	return bundle
}

// validators are all validators of operator-framework/api that need only the bundle. Left out are:
// MultipleArchitecturesValidator, which pulls images with Docker; PackageManifestValidator, for the format before
// bundles; OperatorHubValidator and CommunityOperatorValidator, which are deprecated and replaced by others in this
// list.
var validators = map[string]interfaces.Validator{
	"ClusterServiceVersion":    validation.ClusterServiceVersionValidator,
	"CustomResourceDefinition": validation.CustomResourceDefinitionValidator,
	"Bundle":                   validation.BundleValidator,
	"OperatorHubV2":            validation.OperatorHubV2Validator,
	"StandardCapabilities":     validation.StandardCapabilitiesValidator,
	"StandardCategories":       validation.StandardCategoriesValidator,
	"Object":                   validation.ObjectValidator,
	"OperatorGroup":            validation.OperatorGroupValidator,
	"AlphaDeprecatedAPIs":      validation.AlphaDeprecatedAPIsValidator,
	"GoodPractices":            validation.GoodPracticesValidator,
}

func TestValidators(t *testing.T) {
	bundle := load(t)
	objects := bundle.ObjectsToValidate()
	for _, object := range bundle.Objects {
		objects = append(objects, object)
	}
	objects = append(objects, map[string]string{"k8s-version": "1.38"})
	for name, validator := range validators {
		for _, result := range validator.Validate(objects...) {
			for _, problem := range slices.Concat(result.Errors, result.Warnings) {
				t.Errorf("%s: %s", name, problem.Error())
			}
		}
	}
}

// TestImages: relatedImages lists the images in the operator's environment, and the operator's own. Tools that mirror
// the operator for a disconnected cluster copy only these.
func TestImages(t *testing.T) {
	csv := load(t).CSV
	container := csv.Spec.InstallStrategy.StrategySpec.DeploymentSpecs[0].Spec.Template.Spec.Containers[0]
	assert.Equal(t, container.Image, csv.Annotations["containerImage"], "the annotation containerImage")
	assert.Regexp(t, ":v"+regexp.QuoteMeta(csv.Spec.Version.String())+"$", container.Image)
	var related []operatorsv1alpha1.RelatedImage
	for _, env := range container.Env {
		if name, ok := strings.CutPrefix(env.Name, "RELATED_IMAGE_"); ok {
			related = append(related, operatorsv1alpha1.RelatedImage{Name: strings.ToLower(name), Image: env.Value})
		}
	}
	assert.NotEmpty(t, related, "images in the environment of the operator")
	related = append(related, operatorsv1alpha1.RelatedImage{Name: container.Name, Image: container.Image})
	assert.Equal(t, related, csv.Spec.RelatedImages, "relatedImages")
}

// TestDescriptors: each field has a descriptor, which names it on a console.
func TestDescriptors(t *testing.T) {
	bundle := load(t)
	owned := bundle.CSV.Spec.CustomResourceDefinitions.Owned[0]
	schema := bundle.V1CRDs[0].Spec.Versions[0].Schema.OpenAPIV3Schema
	described := map[string][2]string{}
	for _, d := range owned.SpecDescriptors {
		described["spec."+d.Path] = [2]string{d.DisplayName, d.Description}
	}
	for _, d := range owned.StatusDescriptors {
		described["status."+d.Path] = [2]string{d.DisplayName, d.Description}
	}
	fields := map[string]bool{}
	for _, part := range []string{"spec", "status"} {
		for field := range schema.Properties[part].Properties {
			fields[part+"."+field] = true
		}
	}
	// These fields have fields of ours; the fields of all others are those of core/v1.
	for _, field := range []string{"pod", "rollout", "disruptionBudget", "tls", "auth", "metrics", "networkPolicy",
		"proxy", "proxy.source", "discovery", "service", "agent", "rollout.warmUp", "tls.clientCA"} {
		s := schema.Properties["spec"]
		for name := range strings.SplitSeq(field, ".") {
			s = s.Properties[name]
		}
		for inner := range s.Properties {
			fields["spec."+field+"."+inner] = true
		}
	}
	for field := range fields {
		assert.NotContains(t, described[field], "", "%s has no descriptor with a name and a description", field)
	}
	for field := range described {
		assert.True(t, fields[field], "the descriptor %s describes no field", field)
	}
	if owned.DisplayName == "" || owned.Description == "" || len(owned.Resources) == 0 {
		t.Error("the owned kind has no name, description or resources")
	}
}

// TestExamples: alm-examples, from which the console fills its forms, are exactly the samples, which are tested.
func TestExamples(t *testing.T) {
	var examples []map[string]any
	require.NoError(t, json.Unmarshal([]byte(load(t).CSV.Annotations["alm-examples"]), &examples))
	files, _ := filepath.Glob(root + "/config/samples/cache_*.yaml")
	assert.NotEmpty(t, files)
	assert.Len(t, examples, len(files), "as many examples as samples")
	for _, file := range files {
		var sample map[string]any
		decode(t, file, &sample)
		assert.Contains(t, examples, sample, file)
	}
}

func TestListing(t *testing.T) {
	csv := load(t).CSV
	icon, err := os.ReadFile(root + "/config/manifests/icon.svg")
	require.NoError(t, err)
	if got := csv.Spec.Icon; len(got) != 1 || got[0].Data != base64.StdEncoding.EncodeToString(icon) {
		t.Error("the icon is not config/manifests/icon.svg: write its base64 into the base of the CSV")
	}
	if len(csv.Spec.Description) < 500 || len(csv.Spec.Maintainers) == 0 || len(csv.Spec.Links) == 0 ||
		len(csv.Spec.Keywords) == 0 {
		t.Error("description, maintainers, links or keywords are missing")
	}
	for _, name := range []string{"capabilities", "categories", "createdAt", "description", "repository", "support",
		"operatorframework.io/suggested-namespace",
		"features.operators.openshift.io/disconnected"} {
		assert.NotEmpty(t, csv.Annotations[name], "the annotation %s", name)
	}
	for _, arch := range []string{"amd64", "arm64", "ppc64le", "s390x"} {
		assert.Equal(t, "supported", csv.Labels["operatorframework.io/arch."+arch], "the label of %s", arch)
	}
}

var label = regexp.MustCompile(`(?m)^LABEL (\S+)=(\S+)$`)

// TestDockerfile: the labels in bundle.Dockerfile, which OLM v0 reads, equal metadata/annotations.yaml, which opm and
// OLM v1 read.
func TestDockerfile(t *testing.T) {
	var metadata struct{ Annotations map[string]string }
	decode(t, bundleDir+"/metadata/annotations.yaml", &metadata)
	dockerfile, err := os.ReadFile(root + "/bundle.Dockerfile")
	require.NoError(t, err)
	labels := map[string]string{}
	for _, match := range label.FindAllStringSubmatch(string(dockerfile), -1) {
		labels[match[1]] = match[2]
	}
	assert.NotEmpty(t, labels)
	assert.Equal(t, metadata.Annotations, labels)
	steps := regexp.MustCompile(`(?m)^(FROM scratch|COPY bundle/(manifests|metadata|tests/scorecard) .*)$`)
	assert.Len(t, steps.FindAllString(string(dockerfile), -1), 4, "copies the three folders into an empty image")
}

func decode(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(text, into, yaml.DisallowUnknownFields), file)
}

// TestByDigest: a release names the operator by digest in the annotation and the Deployment, memcached in the variable
// of the Deployment, and both in relatedImages, or mirrors would miss them.
func TestByDigest(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("0", 64)
	operator, memcached := "registry.example.com/operator"+digest, "registry.example.com/memcached"+digest
	pinned := filepath.Join(t.TempDir(), "bundle")
	byDigest := func(memcached string) error {
		_, err := harness.Command{}.Run(t.Context(), root+"/tools/bundle-by-digest", bundleDir, pinned, operator, memcached)
		return err
	}
	require.NoError(t, byDigest(memcached))
	bundle, err := manifests.GetBundleFromDir(pinned)
	require.NoError(t, err)
	container := bundle.CSV.Spec.InstallStrategy.StrategySpec.DeploymentSpecs[0].Spec.Template.Spec.Containers[0]
	variable := slices.IndexFunc(container.Env, func(e corev1.EnvVar) bool { return e.Name == "RELATED_IMAGE_MEMCACHED" })
	got := []string{bundle.CSV.Annotations["containerImage"], container.Image, container.Env[variable].Value}
	for _, related := range bundle.CSV.Spec.RelatedImages {
		got = append(got, related.Image)
	}
	require.Equal(t, []string{operator, operator, memcached, memcached, operator}, got)
	require.Error(t, byDigest("memcached:latest"), "an image by tag was accepted")
}

// TestOverlay: `make deploy IMG=...` and a release's install.yaml install the given image, even if a fork has renamed
// the image in config/manager.
func TestOverlay(t *testing.T) {
	dir, image := t.TempDir(), "registry.example.com/operator@sha256:"+strings.Repeat("0", 64)
	require.NoError(t, os.CopyFS(filepath.Join(dir, "config"), os.DirFS(root+"/config")))
	renamed := "images: [{name: controller, newName: ghcr.io/fork/operator}]\n" +
		"resources: [namespace.yaml, manager.yaml, metrics_service.yaml]\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config/manager/kustomization.yaml"), []byte(renamed), 0o644))
	overlay := filepath.Join(dir, "overlays", "one")
	_, err := harness.Command{}.Run(t.Context(), root+"/tools/overlay", overlay, image)
	require.NoError(t, err)
	out, err := harness.Command{}.Run(t.Context(), "kustomize", "build", overlay)
	require.NoError(t, err)
	installed := regexp.MustCompile(`(?m)^ +image: (\S.*)$`).FindAllStringSubmatch(out, -1)
	require.Len(t, installed, 1, "images")
	assert.Equal(t, image, installed[0][1])
}

// TestOPM: the version of opm that renders the catalog also serves it, and stands in for upstream's image in tests.
func TestOPM(t *testing.T) {
	versions := map[string]string{}
	for file, pattern := range map[string]string{
		"tools/opm/go.mod":     `github.com/operator-framework/operator-registry (v\S+)`,
		"catalog.Dockerfile":   `FROM quay.io/operator-framework/opm:(v[^@]+)@sha256:`,
		"tests/cluster/olm.go": `opmVersion\s+= "(v[^"]+)"`,
	} {
		text, err := os.ReadFile(filepath.Join(root, file))
		require.NoError(t, err)
		match := regexp.MustCompile(pattern).FindSubmatch(text)
		require.NotNil(t, match, "%s names no version of opm", file)
		versions[file] = string(match[1])
	}
	assert.Len(t, slices.Compact(slices.Sorted(maps.Values(versions))), 1, "one version of opm: %v", versions)
}
