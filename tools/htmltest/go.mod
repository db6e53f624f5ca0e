module github.com/example/memcached-operator/tools/htmltest

go 1.26.0

tool github.com/wjdp/htmltest

require (
	github.com/badoux/checkmail v1.2.1 // indirect
	github.com/docopt/docopt-go v0.0.0-20180111231733-ee0de3bc6815 // indirect
	github.com/fatih/color v1.19.0 // indirect
	github.com/imdario/mergo v0.3.12 // indirect
	github.com/mattn/go-colorable v0.1.16 // indirect
	github.com/mattn/go-isatty v0.0.24 // indirect
	github.com/wjdp/htmltest v0.17.0 // indirect
	golang.org/x/net v0.62.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	gopkg.in/seborama/govcr.v2 v2.4.2 // indirect
	gopkg.in/yaml.v2 v2.4.0 // indirect
)
