# The file-based catalog and nothing else: OLM extracts and serves it (grpcPodConfig.extractContent of a CatalogSource, or a
# ClusterCatalog).
FROM scratch
LABEL operators.operatorframework.io.index.configs.v1=/configs
COPY catalog/memcached-operator /configs/memcached-operator
