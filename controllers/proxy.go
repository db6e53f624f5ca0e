package controllers

import (
	"slices"

	"github.com/example/memcached-operator/controllers/children"
	"github.com/example/memcached-operator/controllers/names"
)

func (p *pass) proxyConfigKey() children.Key {
	return children.Key{Kind: "ConfigMap", Name: names.Proxy(p.mc)}
}

// withholdServers leaves out what the proxies read while the name of a server is somebody else's: they would send items
// there.
func (p *pass) withholdServers(changes []children.Change) []children.Change {
	foreign := slices.ContainsFunc(changes, func(c children.Change) bool {
		return c.Kind == "Service" && c.Live != nil && p.owner.Relation(c.Live) == children.Foreign
	})
	return slices.DeleteFunc(changes, func(c children.Change) bool {
		return foreign && c.Key == p.proxyConfigKey() && c.Desired != nil
	})
}
