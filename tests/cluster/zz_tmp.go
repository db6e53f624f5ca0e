package cluster

import "context"

type nodeOptions struct{ APIServiceIP, ServiceCIDR, NodeIP, PKI string }
type node struct{ *Cluster }

func (n *node) check(ctx context.Context) error                   { return nil }
func (n *node) up(ctx context.Context) error                      { return nil }
func (n *node) down(ctx context.Context) error                    { return nil }
func (n *node) loadArchive(context.Context, string, string) error { return nil }

type engine struct{}

func (c *Cluster) engine() engine                         { return engine{} }
func (engine) save(context.Context, string, string) error { return nil }
