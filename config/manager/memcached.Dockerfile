# The default image of a Memcached. Nothing is built from this file: it has the form in which Dependabot finds and
# updates the version. `make manifests` writes the image wherever else it is named.
FROM docker.io/library/memcached:1.6.45
