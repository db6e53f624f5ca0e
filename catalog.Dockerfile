# The file-based catalog, with the program that serves it to OLM v0; OLM v1 reads only the files. OLM could provide that
# program (grpcPodConfig.extractContent), but the version that operator-sdk installs by default cannot do so in a
# restricted namespace.
FROM quay.io/operator-framework/opm:v1.73.0@sha256:e5a6220603fb4504d58c6e3e488386b817e3695c906a62ee0370b5faedc3799a
LABEL operators.operatorframework.io.index.configs.v1=/configs
COPY catalog/memcached-operator /configs/memcached-operator
# The cache is built here, so that the server starts at once and only serves what is in the image.
RUN ["/bin/opm", "serve", "/configs", "--cache-dir=/tmp/cache", "--cache-only"]
ENTRYPOINT ["/bin/opm"]
CMD ["serve", "/configs", "--cache-dir=/tmp/cache", "--cache-enforce-integrity"]
