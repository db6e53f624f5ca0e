package proxy

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/example/memcached-operator/agent/contract"
)

// network gives servers other addresses, at which they answer later, as over a network. It has their own addresses by
// those of the network.
type network map[string]string

// newNetwork returns the servers with addresses at which each packet arrives after a delay, in both directions.
func newNetwork(t testing.TB, servers []contract.Server, delay time.Duration) (n network, far []contract.Server) {
	t.Helper()
	n = network{}
	for _, s := range servers {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = listener.Close() })
		go func() {
			for {
				client, err := listener.Accept()
				if err != nil {
					return // the test has ended
				}
				server, err := net.Dial("tcp", s.Address)
				if err != nil {
					_ = client.Close()
					continue
				}
				go pass(server, client, delay)
				go pass(client, server, delay)
			}
		}()
		address := listener.Addr().String()
		n[address] = s.Address
		far = append(far, contract.Server{Name: s.Name, Address: address})
	}
	return n, far
}

// pass passes on what arrives, until a side closes its connection. What arrives later does not wait for what is on its
// way.
func pass(to, from net.Conn, delay time.Duration) {
	type packet struct {
		data []byte
		due  time.Time
	}
	packets := make(chan packet, 1000)
	go func() {
		for p := range packets {
			time.Sleep(time.Until(p.due))
			_, _ = to.Write(p.data) // fails if the connection is closed, which the other direction notices
		}
		_ = to.Close()
	}()
	for {
		data := make([]byte, 16<<10)
		size, err := from.Read(data)
		if size > 0 {
			packets <- packet{data[:size], time.Now().Add(delay)}
		}
		if err != nil {
			close(packets)
			return
		}
	}
}

// without returns the list with the servers' own addresses.
func (n network) without(s contract.Servers) contract.Servers {
	for _, list := range []*[]contract.Server{&s.Before, &s.After} {
		var replaced []contract.Server
		for _, server := range *list {
			replaced = append(replaced, contract.Server{Name: server.Name, Address: n[server.Address]})
		}
		*list = replaced
	}
	return s
}
