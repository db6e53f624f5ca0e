# The image of every Memcached that names none. Nothing is built from this file: it has the form in which Dependabot finds
# the version and raises it. `make manifests` writes the image wherever else it is named.
FROM docker.io/library/memcached:1.6.45
