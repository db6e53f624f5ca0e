// Command gomemcache-tls writes and reads keys over TLS, with a password.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"net"
	"os"
	"strings"

	"github.com/bradfitz/gomemcache/memcache"
)

func main() {
	ca, err := os.ReadFile(os.Getenv("MEMCACHED_CA"))
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	// gomemcache dials addresses, so the name in the certificate has to be said.
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: os.Getenv("MEMCACHED_NAME")}}

	servers := new(memcache.ServerList)
	if err := servers.SetServers(strings.Split(os.Getenv("MEMCACHED_SERVERS"), ",")...); err != nil {
		log.Fatal(err)
	}
	cache := memcache.NewFromSelector(servers)
	cache.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if err := login(conn); err != nil {
			conn.Close()
			return nil, err
		}
		return conn, nil
	}

	for i := range 100 {
		key, value := fmt.Sprint("gomemcache-", i), fmt.Sprint("value-", i)
		if err := cache.Set(&memcache.Item{Key: key, Value: []byte(value), Expiration: 3600}); err != nil {
			log.Fatal(err)
		}
		item, err := cache.Get(key)
		if err != nil || string(item.Value) != value {
			log.Fatal(key, " is not found: ", err)
		}
	}
}

// login sends what memcached takes for a password: a set, the first command of a connection, of any key.
func login(conn net.Conn) error {
	login := os.Getenv("MEMCACHED_USER") + " " + os.Getenv("MEMCACHED_PASSWORD")
	fmt.Fprintf(conn, "set login 0 0 %d\r\n%s\r\n", len(login), login)
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && answer != "STORED\r\n" {
		err = fmt.Errorf("login: %s", answer)
	}
	return err
}
