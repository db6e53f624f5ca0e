# docker, podman and buildah build this file:
#   docker build -t example.com/memcached-operator:dev .
# `make docker-build` and `make docker-buildx` add version, commit and the commit's time. Two such builds are equal bit
# for bit.

# The compiler runs on the builder's own platform and cross-compiles, so no emulation is needed. For another platform,
# buildah 1.28 needs its own platform as an argument: --build-arg BUILDPLATFORM=linux/amd64.
# The tag includes the patch version of the compiler: besides the source, only the compiler determines the binary.
FROM --platform=$BUILDPLATFORM docker.io/library/golang:1.26.8@sha256:3c3e25a4da13fd0478eed2df1eb35a0e667094a7124d3993a6a1d30f71c17e79 AS build
# With a proxy for Go modules: --build-arg GOPROXY=... (and GOSUMDB). By default, Go's own defaults apply.
ARG GOPROXY
ARG GOSUMDB
ENV GOCACHE=/cache/build GOMODCACHE=/cache/mod GOTOOLCHAIN=local
WORKDIR /src
COPY go.mod go.sum main.go ./
COPY agent agent
COPY api api
COPY controllers controllers
COPY credentials credentials
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=dev
RUN --mount=type=cache,target=/cache \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -buildvcs=false -trimpath -gcflags=all=-dwarf=false -ldflags "-s -w -X main.version=$VERSION" -o /manager .

# One static program and nothing else. It connects only to the API server, and mounts the API server's CA with the
# service account.
FROM scratch
ARG VERSION=dev
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="memcached-operator" \
      org.opencontainers.image.description="Runs memcached servers from Memcached objects" \
      org.opencontainers.image.vendor="The memcached-operator authors" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.url="https://github.com/example/memcached-operator" \
      org.opencontainers.image.source="https://github.com/example/memcached-operator" \
      org.opencontainers.image.documentation="https://github.com/example/memcached-operator#readme" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED"
COPY --from=build /manager /manager
USER 65532:65532
ENTRYPOINT ["/manager"]
