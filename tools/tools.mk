# The tools that the targets of the Makefile run, each built from a module of its own.
#
# tools/<name>/go.mod pins a tool and its dependencies. `make tools-<name>` builds what its tool directives name, and
# builds it again only if the module changed. What one tool has compiled serves another one with the same versions, so
# the modules of operator, tests and tools name the same versions of what several of them need. The variables below are
# further settings of a build, and the duration of the first build if that is long.
version_of = $$(awk '{sub(/^require /, "")} /^tool/ {t = 1} t && !p && /\// {p = $$NF} \
	p && $$2 ~ /^v/ && (index(p "/", $$1 "/") == 1 || p ~ /\/tools\// && $$1 ~ "/$1$$") {print $$2; exit}' $(CURDIR)/tools/$1/go.mod)
kubernetes_version = -X k8s.io/component-base/version.gitVersion=$(call version_of,kubernetes) \
	-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37

environment_crane     = GOTOOLCHAIN=go$(shell sed -n 's|^FROM .*/golang:\([0-9.]*\).*|\1|p' Dockerfile) # part of the digests of images
output_etcd          := etcd
ldflags_kubernetes    = $(kubernetes_version)
ldflags_kubelet       = $(kubernetes_version)
ldflags_kubectl       = $(kubernetes_version)
programs_kubernetes  := kube-apiserver kube-controller-manager kube-scheduler kubectl
programs_kubelet     := kubelet kube-proxy
ldflags_containerd    = -X github.com/containerd/containerd/v2/version.Version=$(call version_of,containerd)
ldflags_operator-sdk  = -X github.com/operator-framework/operator-sdk/internal/version.Version=$(call version_of,operator-sdk) \
	-X github.com/operator-framework/operator-sdk/internal/version.ImageVersion=$(call version_of,operator-sdk)
ldflags_syft          = -X main.version=$(call version_of,syft)
tags_operator-sdk    := containers_image_openpgp
tags_opm             := containers_image_openpgp,json1
tags_channels        := $(tags_opm)
tags_olm             := containers_image_openpgp,json1
ldflags_olm           = -X github.com/operator-framework/operator-lifecycle-manager/pkg/version.OLMVersion=$(call version_of,olm)
output_olm           := olm-0.40/
tags_operator-controller := containers_image_openpgp
tags_prometheus      := remove_all_sd,enable_kubernetes_sd
tags_promtool        := $(tags_prometheus)
ldflags_prometheus    = -X github.com/prometheus/common/version.Version=$(call version_of,../tests/monitoring)
takes_kubernetes     := 5 min
takes_kubectl        := 1 min
takes_kwok           := 1 min
takes_containerd     := 1 min
takes_coredns        := 1 min
takes_cert-manager   := 2 min
takes_kube-network-policies := 1 min
takes_golangci-lint  := 1 min
takes_chainsaw       := 1 min
takes_kustomize-controller := 5 min
takes_cosign         := 4 min
takes_syft           := 4 min
takes_operator-sdk   := 2 min
takes_opm            := 2 min
takes_crdify         := 1 min
takes_olm            := 3 min
takes_hugo           := 2 min
takes_helm           := 1 min
takes_operator-controller := 2 min
takes_prometheus     := 2 min
takes_promtool       := 3 min
takes_kube-state-metrics := 2 min

# $1 name, $2 module, $3 packages
define build_tool
	@mkdir -p $(@D); cd tools/$2 && \
		$(environment_$1) $(building) "building $1 $(call version_of,$2)$(if $(takes_$1), (about $(takes_$1) on 2 cores))" \
		go build -tags "$(tags_$1)" -ldflags "-s -w $(ldflags_$1)" -o $(BIN)/$(output_$1) $3 && touch $@
endef

tools-%: $(BIN)/.built/% ;
# The programs of a control plane, those of a node, and kubectl alone.
$(BIN)/.built/kubernetes $(BIN)/.built/kubelet $(BIN)/.built/kubectl: $(BIN)/.built/%: tools/kubernetes/go.mod tools/kubernetes/go.sum
	$(call build_tool,$*,kubernetes,$(addprefix k8s.io/kubernetes/cmd/,$(or $(programs_$*),$*)))
$(BIN)/.built/channels: tools/opm/go.mod tools/opm/go.sum $(wildcard tools/opm/channels/*.go)
	$(call build_tool,channels,opm,./channels)
$(BIN)/.built/prometheus $(BIN)/.built/promtool: $(BIN)/.built/%: tests/monitoring/go.mod tests/monitoring/go.sum
	$(call build_tool,$*,../tests/monitoring,github.com/prometheus/prometheus/cmd/$*)
$(BIN)/.built/shellcheck: tests/cluster/shellcheck.go
	@mkdir -p $(@D) && $(MAKE) --no-print-directory cluster-tool && $(BIN)/cluster shellcheck && touch $@
$(patsubst %,$(BIN)/.built/%,cert-manager coredns kube-network-policies): $(BIN)/.built/%: tools/%/main.go
$(BIN)/.built/%: tools/%/go.mod tools/%/go.sum
	$(call build_tool,$*,$*,tool)
.PRECIOUS: $(BIN)/.built/%
