// Command gomemcache uses the cache through each of its proxies, with keys of its own, until it gets SIGTERM. Because
// nobody else writes these keys, it knows what each answer must be.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

const lifetime = 3600 // seconds

var operations = strings.Fields(
	"set add set replace set cas incr append incr prepend touch gat get get_multi get delete")

func main() {
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var proxies []*memcache.Client
	for address := range strings.SplitSeq(os.Getenv("PROXIES"), ",") {
		cache := memcache.New(address)
		cache.Timeout = 5 * time.Second
		proxies = append(proxies, cache)
	}
	number, err := strconv.Atoi(os.Getenv("KEYS"))
	if err != nil {
		log.Fatal(err)
	}
	keys := make([]string, number)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s-%d", os.Getenv("NAME"), i)
	}
	n, count, values := 0, map[string]int{}, map[string]string{}
	for ; ctx.Err() == nil; n++ {
		position, operation := rand.IntN(number), operations[rand.IntN(len(operations))]
		key := keys[position]
		fresh := []string{"", "text-"}[rand.IntN(2)] + strconv.Itoa(n)
		found, want, next, err := use(operation, proxies[rand.IntN(len(proxies))], key, values[key], fresh)
		values[key] = next
		problem := ""
		switch {
		case err != nil:
			problem = "errors"
		case found == "" && want != "":
			problem = "lost"
		case found != want:
			problem = "old"
		}
		if problem != "" { // what the cache has for the key is not known from now on
			count[problem]++
			log.Printf("%s: %s %s: got %q, %v, want %q", problem, operation, key, found, err, want)
			keys[position] += "x"
		}
	}
	fmt.Printf("%d operations, %d lost, %d old, %d errors\n", n, count["lost"], count["old"], count["errors"])
}

// use returns what the cache has for the key by its answer, what it must have, and what it must have from now on; empty
// for nothing. Of requests whose answer is no value, it returns "yes" if the cache has the key.
func use(operation string, cache *memcache.Client, key, value, fresh string) (found, want, next string, err error) {
	item := &memcache.Item{Key: key, Value: []byte(fresh)}
	has := func(err error) (string, error) {
		if errors.Is(err, memcache.ErrCacheMiss) || errors.Is(err, memcache.ErrNotStored) ||
			errors.Is(err, memcache.ErrCASConflict) {
			return "", nil
		}
		return "yes", err
	}
	ifHas := func(next string) (string, string) {
		if value == "" {
			return "", ""
		}
		return "yes", next
	}
	switch operation {
	case "set":
		return "", "", fresh, cache.Set(item)
	case "add":
		if found, err = has(cache.Add(item)); found == "" { // not stored, because the cache has the key
			found = "yes"
		} else {
			found = ""
		}
		if want, next = ifHas(value); next == "" {
			next = fresh
		}
		return found, want, next, err
	case "replace":
		found, err = has(cache.Replace(item))
		want, next = ifHas(fresh)
	case "cas":
		var got *memcache.Item
		if got, err = cache.Get(key); err == nil {
			got.Value = item.Value
			err = cache.CompareAndSwap(got)
		}
		found, err = has(err)
		want, next = ifHas(fresh)
	case "append":
		found, err = has(cache.Append(&memcache.Item{Key: key, Value: []byte("x")}))
		want, next = ifHas(value + "x")
	case "prepend":
		found, err = has(cache.Prepend(&memcache.Item{Key: key, Value: []byte("x")}))
		want, next = ifHas("x" + value)
	case "touch":
		found, err = has(cache.Touch(key, lifetime))
		want, next = ifHas(value)
	case "delete":
		found, err = has(cache.Delete(key))
		want, _ = ifHas("")
	case "incr":
		if number, err := strconv.ParseUint(value, 10, 64); err == nil {
			next = strconv.FormatUint(number+1, 10)
			number, err = cache.Increment(key, 1)
			if found, err = has(err); found != "" {
				found = strconv.FormatUint(number, 10)
			}
			return found, next, next, err
		}
		fallthrough
	default:
		found, err = read(operation, cache, key)
		return found, value, value, err
	}
	return found, want, next, err
}

// read returns the value of a key; empty for none.
func read(operation string, cache *memcache.Client, key string) (string, error) {
	var item *memcache.Item
	var err error
	switch operation {
	case "get_multi":
		var items map[string]*memcache.Item
		items, err = cache.GetMulti([]string{key, "none"})
		item = items[key]
	case "gat":
		item, err = cache.GetAndTouch(key, lifetime)
	default:
		item, err = cache.Get(key)
	}
	if item == nil || errors.Is(err, memcache.ErrCacheMiss) {
		return "", ignoreMiss(err)
	}
	return string(item.Value), err
}

func ignoreMiss(err error) error {
	if errors.Is(err, memcache.ErrCacheMiss) {
		return nil
	}
	return err
}
