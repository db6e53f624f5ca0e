package proxy

import (
	"cmp"
	"fmt"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// poller reads keys again and again, and measures how long each of them was missing.
type poller struct {
	keys          []string
	gaps          []time.Duration
	reads, misses int
}

// poll sends a read of each key in one write, so that one connection reads all of them about a thousand times a second.
// No value is sent, because large ones would take the time of others.
func (p *poller) poll(t testing.TB, address string, stop <-chan struct{}) {
	conn, err := textproto.Dial("tcp", address)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	request := "mg " + strings.Join(p.keys, " s\r\nmg ") + " s\r\n"
	missing := make([]time.Time, len(p.keys))
	for {
		select {
		case <-stop:
			return // a key that is still missing is not kept
		default:
		}
		_, err = conn.W.WriteString(request)
		err = cmp.Or(err, conn.W.Flush())
		for i := range p.keys {
			line, err2 := conn.ReadLine()
			if err = cmp.Or(err, err2); err != nil {
				t.Error(err)
				return
			}
			switch hit := strings.HasPrefix(line, "HD"); {
			case hit && !missing[i].IsZero():
				p.gaps = append(p.gaps, time.Since(missing[i]))
				missing[i] = time.Time{}
			case line == "EN":
				p.misses++
				if missing[i].IsZero() {
					missing[i] = time.Now()
				}
			case !hit:
				t.Errorf("%s: %s", p.keys[i], line)
			}
		}
		p.reads += len(p.keys)
	}
}

// startPollers polls a half of the keys through each proxy, and returns a function that stops that.
func (p pair) startPollers(keys []string) (pollers []*poller, stop func()) {
	p.Helper()
	var running sync.WaitGroup
	stopped := make(chan struct{})
	half := len(keys) / 2
	for i, keys := range [][]string{keys[:half], keys[half:]} {
		poller := &poller{keys: keys}
		pollers = append(pollers, poller)
		running.Go(func() { poller.poll(p.TB, p.proxies[i].proxy, stopped) })
	}
	return pollers, func() {
		close(stopped)
		running.Wait()
	}
}

// gapsOf describes how long keys were missing.
func gapsOf(pollers []*poller) string {
	var gaps []time.Duration
	reads, misses := 0, 0
	for _, p := range pollers {
		gaps, reads, misses = append(gaps, p.gaps...), reads+p.reads, misses+p.misses
	}
	slices.Sort(gaps)
	at := func(percent int) string {
		if len(gaps) == 0 {
			return "-"
		}
		return gaps[(len(gaps)-1)*percent/100].Round(100 * time.Microsecond).String()
	}
	return fmt.Sprintf("%d\t%d of %d\t%s\t%s\t%s", len(gaps), misses, reads, at(50), at(99), at(100))
}
