package gitops

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/argoproj/gitops-engine/pkg/sync/common"
	"github.com/stretchr/testify/assert"
)

// TestArgoWithoutOLM does the same as TestFluxWithoutOLM with config/gitops/argocd/app-without-olm.
func TestArgoWithoutOLM(t *testing.T) {
	releases(t)
	e := newEnv(t)
	e.withoutOperator()
	caches := e.namespace + "-caches"
	t.Cleanup(func() { _ = e.Delete(context.Background(), object(namespaceKind, "", caches)) })
	a := e.argo(true, caches, operatorNamespace)
	sample := object(memcachedKind, caches, "memcached-sample")
	commit := func(files map[string]string) {
		t.Helper()
		a.commit(files)
		built := a.run("bin/kustomize", "build", a.dir+"/config/gitops/argocd/app-without-olm")
		a.commit(map[string]string{"app/all.yaml": built})
	}
	commit(a.userRepository(olderTag, caches))
	a.try(3 * time.Second)
	assert.Contains(t, a.runOperator(), olderTag)
	a.sync()
	assert.Empty(t, rowOf("ready").mismatch(a.get(sample)))
	assert.False(t, a.knowsProxy())
	servers := a.servers(caches)

	commit(a.userRepository(tag, caches))
	a.exitOperator()
	a.try(3 * time.Second)
	assert.Contains(t, a.runOperator(), tag)
	a.sync()
	assert.True(t, a.knowsProxy())
	assert.ElementsMatch(t, servers, a.servers(caches))

	withoutOperator := a.userRepository(tag, caches)
	withoutOperator[operatorFile] = nothing
	withoutOperator[cachesFile] = strings.ReplaceAll(withoutOperator[cachesFile], "- namespace.yaml\n", "")
	a.exitOperator()
	commit(withoutOperator)
	a.sync()
	a.withoutDeployment()
	a.kept(caches)
	assert.ElementsMatch(t, servers, a.servers(caches))

	commit(a.userRepository(tag, caches))
	a.try(3 * time.Second)
	a.runOperator()
	a.sync()
	assert.ElementsMatch(t, servers, a.servers(caches))

	// Removal: first the caches, then the operator. In one commit, PruneLast deletes all at once.
	memcacheds := a.observe(memcachedKind, caches)
	withoutCaches := a.userRepository(tag, caches)
	withoutCaches[cachesFile] = nothing
	commit(withoutCaches)
	a.sync()
	memcacheds.until(sample.GetName(), gone)
	a.exitOperator()
	a.commit(nil)
	op := a.try(patience)
	assert.Equal(t, common.OperationSucceeded, op.phase, "%s: %v", op.message, op.results)
	a.withoutDeployment()
	a.kept(caches)
}
