package mover

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// fake is a memcached that has what the mover uses, and answers wrongly where a test wants it.
type fake struct {
	testing.TB
	address string
	// instead returns an answer in place of the usual one; empty for the usual one. It may take its time.
	instead func(request string) string

	mu       sync.Mutex
	items    map[string]*fakeItem // by their keys in bytes
	settings map[string]string
	cas      int
	requests []string
}

type fakeItem struct {
	value      string
	flags, ttl string
	cas        int
	binary     bool
	marks      string // as in an answer: " Z" or " W X"
}

func newFake(t testing.TB) *fake {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{TB: t, address: listener.Addr().String(), items: map[string]*fakeItem{},
		settings: map[string]string{"cas_enabled": "yes", "dump_enabled": "yes", "lru_crawler": "yes", "evictions": "on",
			"item_size_max": strconv.Itoa(64 << 20), "maxbytes": strconv.Itoa(64 << 20)}}
	var conns sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		conns.Wait()
	})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { f.serve(conn) })
		}
	}()
	return f
}

func (f *fake) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	r, w := bufio.NewReaderSize(conn, 1<<20), bufio.NewWriter(conn)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		line = strings.TrimSuffix(line, "\r\n")
		value := ""
		if fields := strings.Fields(line); fields[0] == "ms" {
			size, _ := strconv.Atoi(fields[2])
			data := make([]byte, size+2)
			if _, err := io.ReadFull(r, data); err != nil {
				return
			}
			value = string(data[:size])
		}
		answer := ""
		if f.instead != nil {
			answer = f.instead(line)
		}
		if answer == "" {
			answer = f.answer(line, value)
		}
		_, _ = w.WriteString(answer)
		if r.Buffered() == 0 {
			if w.Flush() != nil {
				return
			}
		}
	}
}

func (f *fake) answer(line, value string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, line)
	switch line {
	case "stats settings":
		var text strings.Builder
		for name, value := range f.settings {
			fmt.Fprintf(&text, "STAT %s %s\r\n", name, value)
		}
		return text.String() + "END\r\n"
	case "stats":
		return fmt.Sprintf("STAT curr_items %d\r\nEND\r\n", len(f.items))
	case "stats slabs":
		return "STAT total_malloced 0\r\nEND\r\n"
	case "lru_crawler mgdump hash":
		var text strings.Builder
		for key, i := range f.items {
			if i.binary {
				key = base64.StdEncoding.EncodeToString([]byte(key)) + " b"
			}
			text.WriteString("mg " + key + "\r\n")
		}
		return "OK\r\n" + text.String() + "EN\r\n"
	}
	words := strings.Split(line, " ")
	flags := words[2:]
	flag := func(name string) string {
		for _, flag := range flags {
			if token, ok := strings.CutPrefix(flag, name); ok {
				return token
			}
		}
		return ""
	}
	key, binary := words[1], slices.Contains(flags, "b")
	if decoded, err := base64.StdEncoding.DecodeString(key); binary && err == nil {
		key = string(decoded)
	}
	i := f.items[key]
	next := func() int {
		if e, err := strconv.Atoi(flag("E")); err == nil {
			return e
		}
		f.cas++
		return f.cas
	}
	if c := flag("C"); c != "" && (i == nil || c != strconv.Itoa(i.cas)) {
		if i == nil {
			return "NF\r\n"
		}
		return "EX\r\n"
	}
	switch words[0] {
	case "mg":
		if i == nil && flag("N") != "" {
			i = &fakeItem{ttl: flag("N"), cas: next()}
			f.items[key] = i
		}
		if i == nil {
			return "EN\r\n"
		}
		answer := "HD"
		if slices.Contains(flags, "v") {
			answer = fmt.Sprintf("VA %d", len(i.value))
		}
		for _, flag := range flags {
			switch flag {
			case "s":
				answer += fmt.Sprintf(" s%d", len(i.value))
			case "f":
				answer += " f" + i.flags
			case "t":
				answer += " t" + i.ttl
			case "c":
				answer += fmt.Sprintf(" c%d", i.cas)
			}
		}
		if answer += i.marks + "\r\n"; answer[0] == 'V' {
			answer += i.value + "\r\n"
		}
		return answer
	case "ms":
		ttl := flag("T")
		if ttl == "0" {
			ttl = "-1"
		}
		f.items[key] = &fakeItem{value: value, flags: flag("F"), ttl: ttl, cas: next(), binary: binary}
	case "md":
		if i == nil {
			return "NF\r\n"
		}
		delete(f.items, key)
	default:
		f.Errorf("unknown request %q", line)
	}
	return "HD\r\n"
}

// put adds an item.
func (f *fake) put(key, value string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cas++
	f.items[key] = &fakeItem{value: value, flags: "0", ttl: "-1", cas: f.cas}
}

// values returns the values of all items, by their keys.
func (f *fake) values() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	values := map[string]string{}
	for key, i := range f.items {
		values[key] = i.value
	}
	return values
}

// instead returns a function for fake.instead that gives an answer to requests that contain a text.
func instead(text, answer string) func(string) string {
	return func(request string) string {
		if strings.Contains(request, text) {
			return answer
		}
		return ""
	}
}
