package gitops

import (
	"strings"
	"testing"

	"github.com/argoproj/gitops-engine/pkg/diff"
	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCRDAppliedByAll applies the CRD in each common way, one after the other, as happens when users change tools. Each
// way must leave the same CRD, and no tool may find a difference afterwards.
func TestCRDAppliedByAll(t *testing.T) {
	f := newFlux(t)
	a := newArgo(t, false)
	crd := object(crdKind, "", "memcacheds.cache.example.com")
	var manifest string // the CRD as make operator-start applies it
	for _, text := range strings.Split(f.run("bin/kustomize", "build", "config/default"), "\n---\n") {
		if strings.Contains(text, "\nkind: CustomResourceDefinition\n") {
			manifest = text
		}
	}
	require.NotEmpty(t, manifest)
	files := map[string]string{"crd/crd.yaml": manifest}
	k := f.kustomization("crd", "./crd")
	var spec string
	check := func(who string, diffs ...string) {
		t.Helper()
		live := f.get(crd)
		if spec == "" {
			spec = toYAML(t, live.Object["spec"])
		}
		assert.Equal(t, spec, toYAML(t, live.Object["spec"]), who)
		size := 0
		for key, value := range live.GetAnnotations() {
			size += len(key) + len(value)
		}
		assert.Less(t, size, 262144, who)
		f.measured("%-35s CRD with annotations of %d bytes of 262144", who, size)
		for _, serverSide := range diffs {
			f.runWith(manifest, "bin/kubectl", "diff", "--server-side="+serverSide, "--force-conflicts="+serverSide,
				"--filename=-")
		}
	}

	f.runWith(manifest, "bin/kubectl", "apply", "--filename=-")
	check("client-side apply", "false", "true")
	f.runWith(manifest, "bin/kubectl", "apply", "--server-side", "--force-conflicts", "--filename=-")
	check("server-side apply", "false", "true")
	revision := f.push(files)
	f.create(k)
	f.await(k, applied(revision))
	check("Flux", "false", "true")
	a.push(files)
	// gitops-engine adds its own annotation, also to the last-applied configuration, so kubectl diff would find that. Each
	// sync includes the engine's own diff.
	check("gitops-engine")
	a.serverSide = true
	a.sync()
	check("gitops-engine, ServerSideApply=true")

	// Another sync changes nothing.
	before := f.get(crd)
	f.sync(k)
	a.sync()
	assert.Equal(t, before.GetGeneration(), f.get(crd).GetGeneration())
	result, err := diff.Diff(a.targets()[0], f.get(crd), diff.WithLogr(logr.Discard()))
	require.NoError(t, err)
	assert.False(t, result.Modified)

	// A CRD that is removed from git stays on the cluster, and with it every cache.
	uid := before.GetUID()
	f.await(k, applied(f.push(map[string]string{"crd/kustomization.yaml": "resources: []\n"})))
	a.push(nil)
	live := f.get(crd)
	assert.Equal(t, uid, live.GetUID())
	assert.Nil(t, live.GetDeletionTimestamp())
}
