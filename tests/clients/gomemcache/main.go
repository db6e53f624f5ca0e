// Command gomemcache reads keys through the cache.
package main

import (
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

func main() {
	servers := new(memcache.ServerList)
	if err := servers.SetServers(strings.Split(os.Getenv("MEMCACHED_SERVERS"), ",")...); err != nil {
		log.Fatal(err)
	}
	cache := memcache.NewFromSelector(servers)
	cache.Timeout = 500 * time.Millisecond

	var found int
	for range 60 {
		found = 0
		for i := range 100 {
			key, value := fmt.Sprint("gomemcache-", i), fmt.Sprint("value-", i)
			item, err := cache.Get(key) // Any error is a miss.
			if err == nil && string(item.Value) == value {
				found++
				continue
			}
			_ = cache.Set(&memcache.Item{Key: key, Value: []byte(value), Expiration: 3600})
		}
		fmt.Println(found, "of 100 keys found")
		time.Sleep(time.Second)
	}
	if found < 100 {
		os.Exit(1)
	}
}
