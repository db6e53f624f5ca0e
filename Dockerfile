# docker, podman and buildah build this file:
#   docker build --build-arg VERSION=v0.0.1 -t example.com/memcached-operator:v0.0.1 .

# The compiler runs on the builder's own platform and crosses over to the target's, so no emulation is needed. For another
# platform, buildah 1.28 must be told its own: --build-arg BUILDPLATFORM=linux/amd64.
FROM --platform=$BUILDPLATFORM docker.io/library/golang:1.26 AS build
# Where there is a proxy for Go modules: --build-arg GOPROXY=... (and GOSUMDB). Unset, Go's own defaults hold.
ARG GOPROXY
ARG GOSUMDB
ENV GOCACHE=/cache/build GOMODCACHE=/cache/mod
WORKDIR /src
COPY . .
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=dev
RUN --mount=type=cache,target=/cache \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /manager .

# One static program and nothing else. Its only peer is the API server, whose authority the service account brings along.
FROM scratch
ARG VERSION=dev
LABEL org.opencontainers.image.title="memcached-operator" \
      org.opencontainers.image.description="Runs memcached servers from Memcached objects" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
COPY --from=build /manager /manager
USER 65532:65532
ENTRYPOINT ["/manager"]
