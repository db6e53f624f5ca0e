package proxy

import (
	"encoding/base64"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/example/memcached-operator/agent/mover"
	"github.com/example/memcached-operator/tests/harness"
)

// TestModel: while the servers change, proxies in neighboring phases answer as one memcached would.
func TestModel(t *testing.T) {
	t.Parallel()
	f := startPair(t, 3)
	command, err := memcached()
	require.NoError(t, err)
	_, address := run(t, command)
	model := dial(t, address)
	proxies := f.proxies
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	operations := 0
	compare := func(n int, phases ...any) {
		for range n {
			requests := randomRequests(random)
			want := exchange(model, requests)
			require.Equal(t, want, exchange(proxies[random.IntN(2)].client, requests), "seed %d, phases %v: %q", seed, phases,
				requests)
			operations += len(requests)
		}
	}
	all := servers(f.addresses...)
	for _, p := range proxies {
		p.use(mover.Servers{After: all[:2]})
	}
	for n, change := range []mover.Servers{
		{Before: all[:2], After: all},
		{Before: all, After: all[:2]},
		{Before: all[:2], After: []mover.Server{all[0], all[2]}},
		{Before: []mover.Server{all[0], all[2]}, After: []mover.Server{all[0], all[2], all[1]}},
	} {
		moved := make(chan error, 1)
		move := func() {
			m := mover.Mover{Servers: change, Limit: rate.Inf}
			moved <- m.Run(t.Context(), slog.New(slog.DiscardHandler))
		}
		for _, phase := range []mover.Phase{mover.Purge, mover.PreferBefore, mover.PreferAfter} {
			change.Phase = phase
			for i := range proxies {
				proxies[i].use(change)
				compare(2000, n, phase, i)
			}
			if phase == mover.Purge {
				move()
				require.NoError(t, <-moved)
			}
		}
		go move()
		for len(moved) == 0 {
			compare(10, n, "moving")
		}
		require.NoError(t, <-moved)
		for i := range proxies {
			proxies[i].use(mover.Servers{After: change.After})
			compare(2000, n, "done", i)
		}
	}
	t.Logf("%d operations", operations)
}

// use writes the list of servers, and waits until the proxy uses the list.
func (f *proxyProcess) use(s mover.Servers) {
	f.Helper()
	f.write("servers", s.Files()["servers"])
	want := fmt.Sprintf("STAT funcs_%s 4", s.List())
	harness.Eventually(f, "load the list", harness.Patience, func() error {
		answer := dial(f.TB, f.proxy).ask("stats proxyfuncs") // the proxy may have been restarted
		answer = slices.DeleteFunc(answer, func(line string) bool { return !strings.HasPrefix(line, "STAT funcs_") })
		if !slices.Equal(answer, []string{want}) {
			return fmt.Errorf("want %s, got %q", want, answer)
		}
		return nil
	})
}

// casUnique matches the number that identifies a version of an item, in the answers to gets and to meta commands.
var casUnique = regexp.MustCompile(`( c|^VALUE \S+ \d+ \d+ )(\d+)`)

// exchange sends requests, and returns the answers. In a request, CAS stands for the last such number in an answer.
func exchange(c client, requests []string) (answers []string) {
	cas := "999999999999"
	for _, request := range requests {
		for _, line := range c.ask("%s", strings.ReplaceAll(request, "CAS", cas)) {
			if m := casUnique.FindStringSubmatch(line); m != nil {
				cas = m[2]
			}
			answers = append(answers, casUnique.ReplaceAllString(line, "${1}N"))
		}
	}
	return answers
}

// requests are all kinds of requests: KEY, SIZE and DATA are replaced, and BINARY by a key that is not text.
var requests = [][]string{
	{"get KEY"}, {"gets KEY"}, {"gat 0 KEY"}, {"gats 0 KEY"}, {"touch KEY 0"},
	{"set KEY 7 0 SIZE\r\nDATA"}, {"set KEY 7 0 SIZE\r\nDATA"}, {"set KEY 7 0 SIZE noreply\r\nDATA"},
	{"add KEY 3 0 SIZE\r\nDATA"}, {"replace KEY 4 0 SIZE\r\nDATA"}, {"append KEY 0 0 SIZE\r\nDATA"},
	{"prepend KEY 0 0 SIZE\r\nDATA"}, {"incr KEY 1"}, {"decr KEY 1"}, {"incr KEY 5 noreply"},
	{"delete KEY"}, {"delete KEY"}, {"delete KEY noreply"},
	{"gets KEY", "cas KEY 1 0 SIZE CAS\r\nDATA"}, {"cas KEY 1 0 SIZE 999999999999\r\nDATA"},
	{"mg KEY v f s k"}, {"mg KEY"}, {"mg KEY v q"}, {"mg KEY T0 v"}, {"mg KEY N0 v"}, {"mg KEY R20 v"},
	{"mg BINARY b v k"},
	{"ms KEY SIZE\r\nDATA"}, {"ms KEY SIZE F5 T0\r\nDATA"}, {"ms KEY SIZE ME\r\nDATA"}, {"ms KEY SIZE MA\r\nDATA"},
	{"ms KEY SIZE MP\r\nDATA"}, {"ms KEY SIZE MR\r\nDATA"}, {"ms KEY SIZE MA N0\r\nDATA"}, {"ms KEY SIZE I\r\nDATA"},
	{"mg KEY c", "ms KEY SIZE CCAS\r\nDATA"}, {"ms KEY SIZE q\r\nDATA"}, {"ms BINARY SIZE b\r\nDATA"},
	{"md KEY"}, {"md KEY q"}, {"mg KEY c", "md KEY CCAS"}, {"md KEY C999999999999"}, {"md KEY x"}, {"md BINARY b"},
	{"ma KEY"}, {"ma KEY N0 J5"}, {"ma KEY MD D2 v"}, {"ma KEY q"},
}

// randomRequests returns random requests that belong together.
func randomRequests(random *rand.Rand) (list []string) {
	data := strconv.Itoa(random.IntN(1000))
	if random.IntN(4) == 0 {
		data = strings.Repeat("x", random.IntN(20))
	}
	number := random.IntN(40)
	binary := base64.StdEncoding.EncodeToString([]byte{0, byte(number)})
	replacer := strings.NewReplacer("KEY", fmt.Sprintf("key-%d", number), "BINARY", binary,
		"SIZE", strconv.Itoa(len(data)), "DATA", data)
	for _, request := range requests[random.IntN(len(requests))] {
		list = append(list, replacer.Replace(request))
	}
	return list
}
