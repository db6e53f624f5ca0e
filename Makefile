# The usual targets of operator-sdk, and the tests, clusters and tools of this project.
# Everything is built from pinned Go modules into bin/: only Go, git and make must be installed.

VERSION        ?= 0.1.0
IMAGE_TAG_BASE ?= example.com/memcached-operator
IMG            ?= $(IMAGE_TAG_BASE):v$(VERSION)
BUNDLE_IMG     ?= $(IMAGE_TAG_BASE)-bundle:v$(VERSION)
CATALOG_IMG    ?= $(IMAGE_TAG_BASE)-catalog:v$(VERSION)
# The platforms of the images of operator and catalog, unless they are built only for this machine.
PLATFORMS      ?= linux/amd64,linux/arm64,linux/ppc64le,linux/s390x
# The default image of a Memcached.
MEMCACHED_IMAGE = $(shell sed -n 's/^FROM \([^@]*\).*/\1/p' config/manager/memcached.Dockerfile)
memcached_version = docker\.io/library/memcached:[0-9]+\.[0-9]+\.[0-9]+
# The cluster of tests: kwok (simulated nodes), node (a real node, as root on Linux) or kind (with Docker).
CLUSTER        ?= kwok
# Further arguments for the program that a target runs, such as ARGS='-run TestScale' for e2e.
ARGS           ?=

SHELL       := /bin/bash
BIN         := $(CURDIR)/bin
export PATH := $(BIN):$(PATH)
# The same flags for everything: operator, image, tests and tools/kubernetes share most packages in the same versions,
# and would compile them again with other flags. No C, no paths of this machine, and no state of git, which not every
# checkout has. No data for debuggers, which take a fifth of the time to compile and which no program here keeps. Tests
# are not vetted, because make lint does that.
go_flags := -trimpath -buildvcs=false -gcflags=all=-dwarf=false -vet=off
export CGO_ENABLED := 0
export GOFLAGS     := $(go_flags) $(filter-out $(go_flags),$(shell go env GOFLAGS))
# Compilers that collect garbage less often take a seventh less time, and more memory, up to a limit for each of them.
building := GOGC=400 GOMEMLIMIT=1GiB $(CURDIR)/tools/progress
KUBECONFIG_OF_CLUSTER = $(CURDIR)/.cluster/$(CLUSTER)/kubeconfig
tools_kwok := tools-kubernetes tools-etcd tools-kwok
tools_node := $(tools_kwok) tools-kubelet tools-containerd tools-cni tools-coredns tools-crane
tools_kind := tools-kubectl tools-kind
tools_catalog := tools-channels tools-opm tools-crane tools-yq
# If the machine has a kubectl, it is used: the pinned one takes a while to build.
NEED_KUBECTL = $(if $(shell command -v kubectl),,tools-kubectl)

.PHONY: help
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "; printf "usage: make <target> [IMG=…] [CLUSTER=kwok|node|kind] [ARGS=…]\n"} \
		/^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Develop

.PHONY: generate manifests fmt vet lint cross lint-modules govulncheck verify-generated verify-bundle build run
generate: tools-controller-gen tools-crd-ref-docs ## Generate the deep copies of the API types, and their reference in docs
	controller-gen object paths=./api/...
	crd-ref-docs --source-path=api/v1alpha1 --config=tools/crd-ref-docs/config.yaml --renderer=markdown \
		--templates-dir=tools/crd-ref-docs/templates --output-path=docs/reference/api.md --log-level=ERROR

manifests: tools-controller-gen ## Generate CRD and RBAC from the markers in the code, and write the default image wherever code and manifests name it
	@grep -rlE '$(memcached_version)' api config controllers internal tests | xargs sed -i -E 's|$(memcached_version)|$(MEMCACHED_IMAGE)|'
	controller-gen rbac:roleName=manager-role crd paths=./api/... paths=./controllers/... output:crd:artifacts:config=config/crd/bases

fmt: ## Format the code
	go fmt ./...

vet: ## Vet the code
	go vet ./...
	go -C tests vet ./...

# Where apt is, ShellCheck is Debian's; elsewhere it is that of the machine, if it has one.
tools_shellcheck := $(if $(wildcard /usr/lib/apt/apt-helper),tools-shellcheck)
lint: tools-golangci-lint tools-actionlint $(tools_shellcheck) ## Lint operator, tests, workflows and scripts
	golangci-lint run --allow-parallel-runners
	cd tests && golangci-lint run --allow-parallel-runners
	actionlint
	@if command -v zizmor >/dev/null; then zizmor --offline --quiet .github; else echo "zizmor is not installed: only actionlint checks the workflows"; fi
	@if command -v shellcheck >/dev/null; then shellcheck --severity=warning $$(git grep -l '^#!/usr/bin/env bash'); else echo "shellcheck is not installed: nothing checks the scripts"; fi

cross: ## Compile the operator, and what make demo runs, for macOS and for Linux on arm64
	@for platform in darwin/arm64 darwin/amd64 linux/arm64; do echo "$$platform" && export GOOS=$${platform%/*} GOARCH=$${platform#*/} && \
		go build -o /dev/null . && (cd tests && go build ./cluster/... ./demo) || exit 1; done

lint-modules: tools-golangci-lint ## Lint the other modules with code of ours, whose dependencies take minutes to compile
	@for module in $$(git ls-files 'tests/*/go.mod' 'tools/*/go.mod' | xargs -n 1 dirname); do \
		[ -z "$$(git ls-files "$$module/*.go")" ] || (echo "$$module" && cd $$module && \
		golangci-lint run --allow-parallel-runners) || exit 1; done

govulncheck: tools-govulncheck ## Look for known vulnerabilities in code that the operator calls
	govulncheck .

# Generates in place what is committed, and fails if that differs: $(call current,TARGET,FILES).
current = @before=$$(mktemp -d) && trap "rm -rf $$before" EXIT && tar -c $2 | tar -x -C $$before && \
	$(MAKE) --no-print-directory $1 && for file in $2; do diff -r $$before/$$file $$file || \
	{ echo "$$file was not current and has been generated again: commit it"; exit 1; }; done
verify-generated: tools-controller-gen tools-crd-ref-docs ## Check that deep copies, CRD, RBAC and the reference of the API are current
	$(call current,generate manifests,api config/crd config/rbac docs/reference/api.md)

verify-bundle: tools-controller-gen tools-operator-sdk tools-kustomize tools-yq ## Check that bundle/ is current
	$(call current,bundle,config bundle bundle.Dockerfile)

build: ## Build the operator into bin/manager
	@$(building) 'building the operator' go build -ldflags "-s -w -X main.version=v$(VERSION)" -o $(BIN)/manager .

run: ## Run the operator on this machine, for the cluster of KUBECONFIG; it has no webhooks to disable
	RELATED_IMAGE_MEMCACHED=$(MEMCACHED_IMAGE) AGENT_IMAGE=$(IMG) go run -ldflags "-X main.version=v$(VERSION)" . $(ARGS)

##@ Test

.PHONY: golden test verify test-unit test-slow race fuzz crash-points specs chainsaw e2e production-e2e monitoring-test
.PHONY: kube-state-metrics-test monitoring-e2e
test: ## Run the tests that a change needs, the fastest first, on the kwok cluster, which is deleted if they pass
	@tools/steps verify-generated lint test-unit chainsaw 'e2e ARGS=-short' 'cluster-down CLUSTER=kwok'

verify: ## Run what else a merge needs: pages, bundle, chart, alerts, generated specs, crash points
	@tools/steps verify-bundle validate-bundle install-test test-docs docs-lint test-slow monitoring-test lint-modules

# How many tests wait at the same time: real pods need a processor, also for chainsaw. Packages of tests run one after
# the other, because some tests check each request of clients.
parallel_kwok := 8
parallel_node := 2
parallel_kind := 2

# Runs tests, and then prints the slowest of them: $(call gotest,FORMAT,ARGUMENTS).
gotest = gotestsum --format $1 --jsonfile-timing-events $(TIMES) \
	--post-run-command 'gotestsum tool slowest --threshold 5s --jsonfile $(TIMES)' -- $2 $(ARGS)
TIMES  := $(BIN)/times.json
# Fails if the last gotest has skipped a test on a cluster with real pods, where nothing is missing.
no_skips = { [ $(CLUSTER) = kwok ] || { [ -s $(TIMES) ] && ! grep '"Action":"skip".*"Test"' $(TIMES); }; }
# Tests that need root. make moves runs two of them too.
need_root = $(if $(filter 0,$(shell id -u)),,-skip '^(TestClients|TestDocumentedClients|TestSlowMover)$$')
envtest = KUBEBUILDER_ASSETS=$(BIN) KUBEBUILDER_CONTROLPLANE_START_TIMEOUT=2m KUBEBUILDER_CONTROLPLANE_STOP_TIMEOUT=2m

golden: ## Write the golden manifests again, from the code
	go test ./controllers/desired -run TestGolden -update

test-unit: tools-kubernetes tools-etcd tools-gotestsum ## Run unit tests, golden manifests, and tests of the API server's validation
	$(envtest) $(call gotest,pkgname,./...)
	cd tests && $(envtest) $(call gotest,pkgname,./api ./cluster/... ./e2e/truth ./leak ./ring)

test-slow: tools-kubernetes tools-etcd ## Try some specs and crash points, and run each Go benchmark once
	cd tests && $(envtest) go test -count=1 -run Specs ./simulation -specs=400 -accepted=40
	@$(MAKE) --no-print-directory crash-points ARGS="-every=12 -run '/^(change_the_template_of_a_StatefulSet|delete_and_create_again)'"
	go test -run '^$$' -bench . -benchtime 1x ./controllers

test-docs: tools-gotestsum ## Test the pages: links, names that the code has, YAML and commands
	cd tests && $(call gotest,pkgname,./docs ./permissions)

# TestAttack measures memory, of which the race detector takes much.
race: tools-kubernetes tools-etcd tools-gotestsum ## Run the unit tests with the race detector, which needs a C compiler
	CGO_ENABLED=1 $(envtest) $(call gotest,pkgname,-race -timeout=30m -skip '^TestAttack$$' ./...)

fuzz: ## Fuzz what reads text of others, each target for FUZZTIME (1m); ARGS=Parse selects targets
	@FUZZTIME=$(or $(FUZZTIME),1m) tests/fuzz $(ARGS)

crash-points: tools-kubernetes tools-etcd ## Let each request of the operator fail in each way that it can, and let the operator crash there; ARGS=-every=40 tries one of 40 points
	cd tests/simulation && GOGC=400 KUBEBUILDER_ASSETS=$(BIN) \
		go test -count=1 -timeout=5h -parallel=10 -skip Specs -every=1 $(ARGS)

specs: tools-kubernetes tools-etcd ## Try generated specs on an API server, with the operator, and with CLUSTER=node on a real memcached; ARGS='-specs=200 -accepted=50' tries fewer
	cd tests && KUBEBUILDER_ASSETS=$(BIN) CLUSTER=$(CLUSTER) go test -count=1 -timeout=5h -parallel=6 -run Specs -v ./simulation -specs=10000 $(ARGS)

chainsaw: tools-chainsaw operator-start ## Test what a user sees, on CLUSTER; ARGS=--quiet=false prints more
	cd tests && KUBECONFIG=$(KUBECONFIG_OF_CLUSTER) go run ./e2e/truth/sample chainsaw test chainsaw --config chainsaw/.chainsaw.yaml --quiet \
		$(if $(filter kwok,$(CLUSTER)),,--parallel=4) $(if $(MAKE_TERMOUT),,--no-color) $(ARGS)

# With ARGS=-run, few requests of the operator and no Secret can be expected in the audit log. kind has no such log.
e2e: tools-gotestsum cluster-up operator-$(CLUSTER) ## Test sequences that YAML cannot express, on CLUSTER; ARGS=-short leaves out those that take minutes
	cd tests && since=$$(date -u +%FT%TZ) && KUBECONFIG=$(KUBECONFIG_OF_CLUSTER) CLUSTER=$(CLUSTER) IMG=$(IMG) \
		$(call gotest,testname,-count=1 -timeout=40m -p=1 -parallel=$(parallel_$(CLUSTER)) $(need_root) ./e2e/...) && \
		$(if $(filter -short,$(ARGS)),true,$(no_skips)) && \
		{ [ $(CLUSTER) = kind ] || CLUSTER=$(CLUSTER) go test -count=1 -v -run 'TestRequests$(if $(findstring -run,$(ARGS)),,|TestSecretContents)' \
		./permissions -since=$$since $(if $(filter-out $(if $(filter kwok,$(CLUSTER)),-short),$(ARGS)),,-complete); }

.PHONY: ipv6-e2e
ipv6-e2e: ## Test servers, proxies and agents on a new node cluster with IPv6 alone, which is deleted if they pass
	@$(MAKE) --no-print-directory cluster-down CLUSTER=node
	@$(MAKE) --no-print-directory e2e CLUSTER=node IP_FAMILY=ipv6 ARGS='-run TestIPFamily'
	@$(MAKE) --no-print-directory cluster-down CLUSTER=node

.PHONY: docs-e2e
docs-e2e: tools-gotestsum tools-kustomize operator-start ## Run the commands of README and docs, on CLUSTER
	cd tests && KUBECONFIG=$(KUBECONFIG_OF_CLUSTER) CLUSTER=$(CLUSTER) gotestsum --format testname -- -count=1 -timeout=40m ./docs/run $(ARGS)

need_real_pods = @[ $(CLUSTER) != kwok ] || { echo "kwok only simulates pods: make $@ CLUSTER=node, or kind"; exit 1; }
.PHONY: clients-e2e
clients-e2e: tools-gotestsum ## Test the client programs of docs/how-to/clients, on CLUSTER=node or kind
	$(need_real_pods)
	@$(MAKE) --no-print-directory operator-start
	cd tests && CLUSTER=$(CLUSTER) $(call gotest,testname,-count=1 -timeout=20m ./clients) && $(no_skips)

monitoring-test: tools-promtool tools-kustomize ## Test alerts by promtool, dashboard and monitors by the libraries that read them
	cd tests/monitoring && go test -count=1 . $(ARGS)

kube-state-metrics-test: ## Test the metrics that kube-state-metrics derives from an object with config/kube-state-metrics
	cd tools/kube-state-metrics && go test -count=1 . $(ARGS)

monitoring-e2e: tools-prometheus tools-promtool tools-kube-state-metrics tools-gotestsum ## Test alerts and dashboard with a real Prometheus and real faults, on CLUSTER=node or kind
	$(need_real_pods)
	@$(MAKE) --no-print-directory operator-start kube-state-metrics-test ARGS=
	cd tests/monitoring && CLUSTER=$(CLUSTER) $(call gotest,standard-verbose,-count=1 -timeout=20m ./e2e) && $(no_skips)

production-e2e: tools-cert-manager tools-kube-network-policies tools-gotestsum ## Test TLS with a real cert-manager, and enforced NetworkPolicies, on CLUSTER=node or kind
	$(need_real_pods)
	@$(MAKE) --no-print-directory operator-start
	cd tests && CLUSTER=$(CLUSTER) $(call gotest,testname,-count=1 -timeout=20m ./production) && $(no_skips)

.PHONY: chaos
chaos: cluster-up operator-$(CLUSTER) ## Break operator, control plane and children at random, on CLUSTER=kwok or node; ARGS=-lasts=1h goes on for so long
	cd tests && KUBECONFIG=$(KUBECONFIG_OF_CLUSTER) CLUSTER=$(CLUSTER) IMG=$(IMG) go test -count=1 -v -timeout=9h ./chaos $(ARGS)

.PHONY: soak
soak: ## Run make chaos for eight hours, on CLUSTER=kwok or node
	@$(MAKE) --no-print-directory chaos ARGS='-run TestChaos -lasts=8h $(ARGS)'

.PHONY: cache-e2e
cache-e2e: tools-gotestsum ## Measure what a cache keeps through rollouts, resizes and losses, on CLUSTER=node or kind
	$(need_real_pods)
	@$(MAKE) --no-print-directory operator-start
	cd tests && CLUSTER=$(CLUSTER) IMG=$(IMG) $(call gotest,standard-verbose,-count=1 -timeout=20m ./cache) && $(no_skips)

.PHONY: moves
moves: override CLUSTER := node
moves: tools-gotestsum ## Let many clients write while items move for minutes, with processes of real memcached on this machine; needs root
	cd tests && CLUSTER=$(CLUSTER) $(call gotest,standard-verbose,-count=1 -timeout=60m \
		-run 'TestModel$$|TestClients/items_move|TestSlowMover' ./e2e/proxy -model 5m -clients 3m -many) && \
		$(no_skips)

.PHONY: bench bench-proxy
bench: $(tools_kwok) build cluster-tool ## Measure what the operator costs, compared with what no operator can avoid, on new kwok clusters
	@$(building) 'building the benchmark' go build -C tests -o $(BIN)/bench ./bench
	@$(BIN)/bench $(ARGS); result=$$?; $(BIN)/cluster -kind kwok down; exit $$result

bench-proxy: ## Measure the proxy, and moving 1 GiB of items, with processes of real memcached on this machine
	cd tests && CLUSTER=node go test -run '^$$' -bench . -benchtime 5x -timeout 30m ./e2e/proxy $(ARGS)

.PHONY: first-command install-test install-e2e gitops-e2e nightly
install-test: tools-kustomize tools-yq tools-helm tools-channels tools-gotestsum ## Test that chart, kustomization and install.yaml install the same objects
	cd tests && gotestsum --format testname -- -count=1 -skip E2E ./install ./earlier $(ARGS)

install-e2e: $(tools_kwok) tools-kustomize tools-yq tools-helm tools-crane tools-channels tools-gotestsum build ## Test install, upgrade and removal by Helm, kustomize and install.yaml, on a new kwok cluster, which is deleted if they pass
	@$(MAKE) --no-print-directory cluster-down cluster-up CLUSTER=kwok
	cd tests && CLUSTER=kwok VERSION=$(VERSION) gotestsum --format testname -- -count=1 -timeout=20m -run E2E ./install $(ARGS)
	@$(MAKE) --no-print-directory cluster-down CLUSTER=kwok

nightly: ## Run what takes longer than .ci/run: GitOps, OLM, chaos, a part of specs and crash-points, TLS, images, a release
	.ci/run nightly

first-command: ## Run the README's first command as on a new machine
	tests/first-command $(ARGS)

gitops-e2e: tools-kustomize-controller tools-kustomize ## Test Flux and Argo CD's engine with the operator, on a kwok cluster
	@$(MAKE) --no-print-directory operator-start CLUSTER=kwok
	cd tests/gitops && KUBECONFIG=$(CURDIR)/.cluster/kwok/kubeconfig go test -count=1 -timeout=20m $(ARGS)

# The version of OLM on kind: empty for that of operator-sdk, or newest, with upstream's images. A node has the newest.
OLM ?=
tools_olm_newest := tools-olm tools-helm
tools_olm_node   := $(tools_olm_newest) tools-grpc-health-probe
.PHONY: olm-e2e
olm-e2e: $(tools_$(CLUSTER)) $(tools_olm_$(CLUSTER)) $(tools_olm_$(OLM)) $(tools_catalog) tools-operator-sdk cluster-tool ## Test install, upgrade and removal by a Subscription, on a new CLUSTER=node or kind
	@[ $(CLUSTER) != kwok ] || { echo "OLM runs in pods, which are simulated on kwok: make olm-e2e CLUSTER=node, or kind"; exit 1; }
	@[ -z "$(filter-out newest,$(OLM))" ] || { echo "OLM=$(OLM) is unknown: choose newest, or none for that of operator-sdk"; exit 1; }
	@$(cluster) down
	cd tests/olm && CLUSTER=$(CLUSTER) OLM=$(OLM) VERSION=$(VERSION) IMAGE_TAG_BASE=$(IMAGE_TAG_BASE) \
		PLATFORMS=linux/$$(go env GOARCH) go test -count=1 -timeout=40m $(ARGS)

.PHONY: olmv1-e2e
olmv1-e2e: tools-operator-controller $(tools_catalog) $(tools_kwok) build ## Test install, upgrade and removal by OLM v1, on a new kwok cluster, which is deleted if they pass
	@$(MAKE) --no-print-directory cluster-down cluster-up CLUSTER=kwok
	cd tests/olmv1 && CLUSTER=kwok VERSION=$(VERSION) IMAGE_TAG_BASE=$(IMAGE_TAG_BASE) go test -count=1 -timeout=20m $(ARGS)
	@$(MAKE) --no-print-directory cluster-down CLUSTER=kwok

##@ Clusters

cluster    := $(BIN)/cluster -kind $(CLUSTER)

.PHONY: cluster-up cluster-down memcached-packages operator-start operator-stop demo demo-tools demo-on demo-down
cluster-up: $(tools_$(CLUSTER)) cluster-tool ## Start CLUSTER=kwok (default), node or kind
	@$(cluster) up

memcached-packages: cluster-tool ## Pin the newest Debian packages that replace the memcached image on CLUSTER=node
	@$(BIN)/cluster pin-memcached

cluster-down: cluster-tool ## Delete the cluster
	@$(cluster) down

operator-start: cluster-up operator-$(CLUSTER) ## Build the operator and start or restart it on CLUSTER
	@$(cluster) operator-start $(IMG)

operator-stop: cluster-tool ## Stop the operator
	@$(cluster) operator-stop

# On kwok, the operator is a process of this machine; elsewhere it runs from an image.
.PHONY: operator-kwok operator-node operator-kind
operator-kwok: build
operator-node operator-kind: cluster-up docker-build
	@$(cluster) load $(IMG)

# kind with a Docker engine, else a real node as root on Debian or Ubuntu, else simulated nodes.
demo_cluster = $(shell if docker info >/dev/null 2>&1; then echo kind; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then echo node; else echo kwok; fi)
demo: ## Start a cluster on this machine with memcached servers, write and read keys, and scale
	@cluster=$(demo_cluster); mkdir -p .cluster && echo $$cluster >.cluster/demo; [ $$cluster != kwok ] || \
		echo "You are not root on Debian or Ubuntu, and there is no Docker engine: nodes are simulated, and memcached does not run."; \
	[ $$cluster = kind ] || [ -e $(BIN)/.built/kubernetes ] || \
		echo "The first time, Kubernetes is built from source, which takes 11 to 17 minutes on two cores."; \
	$(MAKE) --no-print-directory demo-on CLUSTER=$$cluster

demo-tools: ## Build what the demo needs
	@$(MAKE) --no-print-directory $(tools_$(demo_cluster))

demo-on: operator-start
	@$(building) 'building the demo' go build -C tests -o $(BIN)/demo ./demo
	@$(BIN)/demo -kubeconfig $(KUBECONFIG_OF_CLUSTER) -kubectl $(BIN)/kubectl $(if $(filter kwok,$(CLUSTER)),-protocol=false) $(ARGS)

demo-down: ## Delete the cluster of the demo
	@$(MAKE) --no-print-directory cluster-down CLUSTER=$$(cat .cluster/demo 2>/dev/null || echo $(CLUSTER)) && rm -f .cluster/demo

##@ Documentation

.PHONY: docs docs-serve docs-lint docs-links
# The address at which the site is published.
DOCS_URL ?= /
# The site has the version in its title, and links to the pages of other versions, whose tags this clone has.
hugo     := cd docs/site && HUGO_MODULE_PROXY=$$(go env GOPROXY) HUGO_TITLE='memcached-operator v$(VERSION)' \
	HUGO_PARAMS_VERSIONS="$$(git tag --list 'v*' --sort=-v:refname 2>/dev/null | grep -vxF 'v$(VERSION)' | xargs)"
docs: tools-hugo ## Build the site of docs/ into docs/site/public, for the address DOCS_URL
	@$(hugo) $(CURDIR)/tools/progress 'building the site' hugo --noBuildLock --cleanDestinationDir --baseURL $(DOCS_URL)

docs-serve: tools-hugo ## Serve the site on this machine, and show changes at once
	@$(hugo) hugo server --noBuildLock

docs-lint: docs tools-htmltest tools-vale ## Check the words of the pages and comments, and the links and headings of the site
	@vale --config tools/vale/vale.ini README.md CONTRIBUTING.md RELEASING.md docs api config
	@cd docs/site && htmltest --conf htmltest.yaml --skip-external

docs-links: docs tools-htmltest ## Check also the links from the site to others
	@cd docs/site && htmltest --conf htmltest.yaml

##@ Deploy

.PHONY: docker-build docker-push docker-buildx install uninstall deploy undeploy
docker-build: cluster-tool ## Build the image IMG with CONTAINER_TOOL: docker, podman or buildah, by default the first that works
	@{ [ "$(CONTAINER_TOOL)" != buildah ] && docker info >/dev/null 2>&1; } || $(MAKE) -s tools-crane
	@VERSION=v$(VERSION) $(BIN)/cluster build $(IMG)

docker-push: cluster-tool ## Push IMG
	@$(BIN)/cluster push $(IMG)

docker-buildx: cluster-tool ## Build IMG for PLATFORMS and push the result
	@{ [ "$(CONTAINER_TOOL)" != buildah ] && docker info >/dev/null 2>&1; } || $(MAKE) -s tools-crane
	@VERSION=v$(VERSION) PLATFORMS=$(PLATFORMS) $(BIN)/cluster buildx $(IMG)

install: tools-kustomize $(NEED_KUBECTL) ## Install the CRD into the cluster of KUBECONFIG
	kustomize build config/crd | kubectl apply --server-side -f -

uninstall: tools-kustomize $(NEED_KUBECTL) ## Remove the CRD, and with it every Memcached
	kustomize build config/crd | kubectl delete --ignore-not-found -f -

# An overlay sets the image, so that config/ stays as it is committed.
OVERLAY := .cluster/deploy
deploy: tools-kustomize tools-yq $(NEED_KUBECTL) ## Deploy the operator as IMG to the cluster of KUBECONFIG
	@tools/overlay $(OVERLAY) $(IMG)
	kustomize build $(OVERLAY) | kubectl apply --server-side -f -

undeploy: tools-kustomize $(NEED_KUBECTL) ## Delete every Memcached, wait until all are deleted, and remove the operator
	@tools/undeploy

.PHONY: chart
chart: tools-kustomize tools-yq tools-helm ## Package the Helm chart of VERSION, which installs IMG, as dist/memcached-operator-VERSION.tgz
	@mkdir -p $(OVERLAY)
	tools/install-yaml $(OVERLAY) $(IMG) >$(OVERLAY)/install.yaml
	tools/chart $(VERSION) $(OVERLAY)/install.yaml dist

##@ Bundle and catalog for OLM

.PHONY: bundle bundle-build bundle-push catalog catalog-add catalog-build catalog-push validate-bundle scorecard
bundle: tools-operator-sdk tools-kustomize tools-yq manifests ## Generate bundle/ for VERSION and IMG
	tools/bundle $(VERSION) $(IMG) $(IMAGE_TAG_BASE)-catalog:latest

bundle-build: cluster-tool ## Build the bundle's image BUNDLE_IMG with Docker, podman or buildah
	@$(BIN)/cluster build $(BUNDLE_IMG) bundle.Dockerfile

bundle-push: ## Push BUNDLE_IMG
	@$(MAKE) --no-print-directory docker-push IMG=$(BUNDLE_IMG)

# A registry to pull from instead of those that the bundles name: one in memory, or that of a dry run.
with_mirror = $(if $(MIRROR),,tools/with-registry MIRROR)
catalog: $(tools_catalog) ## Render catalog/ from its template, with the published bundles
	$(with_mirror) tools/catalog render

catalog-add: $(tools_catalog) ## Add the release VERSION, with the image BUNDLE by digest, to catalog/
	tools/catalog add $(VERSION) $(BUNDLE)
	@$(MAKE) --no-print-directory catalog

catalog-build: cluster-tool ## Build the catalog's image CATALOG_IMG
	@$(BIN)/cluster build $(CATALOG_IMG) catalog.Dockerfile

catalog-push: ## Push CATALOG_IMG
	@$(MAKE) --no-print-directory docker-push IMG=$(CATALOG_IMG)

validate-bundle: $(tools_catalog) tools-operator-sdk tools-kustomize tools-crdify ## Run every check of bundle/ and catalog/ that needs no cluster, also the six tests of scorecard
	operator-sdk bundle validate ./bundle --select-optional suite=operatorframework
	@echo "Ignore the warning about events: a rule for events.k8s.io has no version, and the operator uses v1, not the removed v1beta1."
	tools/catalog verify
	cd tools/opm && go test -count=1 -tags $(tags_opm) ./channels
	cd tests && go test -count=1 ./bundle $(ARGS)

scorecard: tools-operator-sdk $(NEED_KUBECTL) ## Run the six tests of scorecard on the cluster of KUBECONFIG
	operator-sdk scorecard ./bundle --namespace default --wait-time 120s --pod-security restricted $(ARGS)

##@ Release

tools_release := $(tools_catalog) tools-operator-sdk tools-kustomize tools-cosign tools-helm tools-oras tools-syft
release_environment = IMAGE_TAG_BASE=$(IMAGE_TAG_BASE) PLATFORMS=$(PLATFORMS)
.PHONY: release release-build release-publish catalog-release registry-login registry-logout release-dry-run verify-images
release: release-build release-publish ## Build, publish and sign operator, bundle and catalog of VERSION as IMAGE_TAG_BASE

release-build: $(tools_release) ## Build all of a release into dist/, and publish nothing
	@$(release_environment) tools/with-registry STAGE tools/release build $(VERSION)

release-publish: tools-cosign tools-crane tools-yq ## Publish and sign what release-build left in dist/
	@$(release_environment) tools/release publish $(VERSION)

catalog-release: $(tools_release) ## Build, publish and sign the catalog of this commit alone, such as after a deprecation
	@$(release_environment) tools/with-registry STAGE tools/release build catalog
	@$(release_environment) tools/release publish catalog

registry = $(firstword $(subst /, ,$(IMAGE_TAG_BASE)))
registry-login: tools-crane ## Log in to the registry of IMAGE_TAG_BASE, as REGISTRY_USER with REGISTRY_PASSWORD of the environment
	@printenv REGISTRY_PASSWORD | crane auth login $(registry) --username "$$REGISTRY_USER" --password-stdin

registry-logout: tools-crane ## Log out from the registry of IMAGE_TAG_BASE
	@crane auth logout $(registry)

verify-images: cluster-tool tools-crane ## Build the operator's image twice with the Dockerfile and twice as a release does, and compare
	cd tests && PLATFORMS=$(PLATFORMS) VERSION=$(VERSION) ../tools/with-registry REGISTRY go test -v -count=1 -timeout=60m ./images

# make verify-images builds the operator for all platforms.
release-dry-run: PLATFORMS = linux/amd64,linux/arm64
release-dry-run: $(tools_release) ## Rehearse a release with failures, and five releases in order, to a registry in memory
	@cd tests && $(release_environment) VERSION=$(VERSION) ../tools/with-registry MIRROR go test -v -count=1 -timeout=60m ./release $(ARGS)

.PHONY: rename-test
rename-test: $(tools_release) ## Rename a clone of the last commit, and run there what builds, tests, installs and releases; with CLUSTER=node or kind also OLM v0; ARGS='-run TestFork/make_test' runs one target
	cd tests && CLUSTER=$(CLUSTER) go test -v -count=1 -timeout=5h ./rename $(ARGS)

##@ Tools

.PHONY: tools clean cluster-tool
tools: $(patsubst tools/%/go.mod,tools-%,$(wildcard tools/*/go.mod)) tools-kubectl tools-kubelet tools-channels \
	tools-prometheus tools-promtool $(tools_shellcheck) ## Build all tools, which takes long

cluster-tool:
	@$(building) 'building bin/cluster' go build -C tests -o $(BIN)/cluster ./cluster/cmd

clean: ## Remove what was built; delete clusters first
	@if ls -d .cluster/*/kubeconfig 2>/dev/null; then echo "delete these clusters first: make cluster-down CLUSTER=…"; exit 1; fi
	rm -rf bin dist .cluster docs/site/public

include tools/tools.mk
