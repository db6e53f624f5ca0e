# The targets that every operator-sdk user knows, and the clusters and tools that the tests need.
# Everything is built from pinned Go modules into bin/: only Go, git and make have to be on the machine.

SHELL       := /bin/bash
BIN         := $(CURDIR)/bin
export PATH := $(BIN):$(PATH)

# tools/<name>/go.mod pins each tool and everything below it; `make tools-<name>` builds one.
# The tables say what a build needs besides: environment, linker flags, output name, and how long the first one takes.
TOOLS := $(patsubst tools/%/go.mod,%,$(wildcard tools/*/go.mod))

version_of = $$(awk '/^tool/ {t = 1} t && !p && /\// {p = $$NF} p && $$2 ~ /^v/ && index(p "/", $$1 "/") == 1 {print $$2; exit}' $(CURDIR)/tools/$1/go.mod)

env_chainsaw       := GOTOOLCHAIN=go1.25.10
out_etcd           := etcd
ldflags_kubernetes  = -X k8s.io/component-base/version.gitVersion=$(call version_of,kubernetes) -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37
ldflags_containerd  = -X github.com/containerd/containerd/v2/version.Version=$(call version_of,containerd)
about_kubernetes   := 6 min

$(BIN)/.built/%: tools/%/go.mod tools/%/go.sum
	@mkdir -p $(@D); printf 'building %s %s%s ... ' $* $(call version_of,$*) "$(if $(about_$*), (first time about $(about_$*) on 2 cores))"; \
	cd tools/$* && env CGO_ENABLED=0 $(env_$*) go build -trimpath -ldflags "-s -w $(ldflags_$*)" -o $(BIN)/$(out_$*) tool >$@.log 2>&1 \
		|| { echo failed; tail -n 30 $@.log; exit 1; }; \
	touch $@; echo "done in $$SECONDS s"

tools-%: $(BIN)/.built/% ;
.PRECIOUS: $(BIN)/.built/%

##@ Clusters

CLUSTER ?= kwok
tools_kwok := tools-kubernetes tools-etcd tools-kwok
tools_node := $(tools_kwok) tools-containerd tools-cni tools-coredns tools-crane
tools_kind := tools-kubernetes tools-kind
cluster := go run ./tests/cluster/cmd -kind $(CLUSTER)

.PHONY: cluster-up cluster-down
cluster-up: $(tools_$(CLUSTER)) ## Start the cluster CLUSTER=kwok (default), node or kind
	@$(cluster) up
cluster-down: ## End it
	@$(cluster) down
