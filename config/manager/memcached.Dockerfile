# The default image of a Memcached. Nothing is built from this file: it has the form in which Dependabot finds and
# updates the version. `make manifests` writes the image wherever else it is named, by tag. A release names it by digest.
FROM docker.io/library/memcached:1.6.45@sha256:405a445c7c81bca205850426288baa5655c72859ae31d3de3fa823e6482be4ad
