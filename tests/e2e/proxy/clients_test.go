package proxy

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/tests/cluster"
)

var (
	clientsFor  = flag.Duration("clients", 0, "how long the client programs run; 0 for one round of changes")
	clientsEach = flag.Int("processes", 8, "the number of processes of each client library")
	onlyClient  = flag.String("client", "", "the only client library whose programs run; empty for all")
)

// program is a program of the folder clients.
type program struct {
	command []string // reads the program from its standard input
	file    string
	env     []string
}

var php = []string{"/usr/bin/php.default", "-d", "extension=igbinary", "-d", "extension=msgpack", "-d",
	"extension=memcached"}

// programs are the programs by their libraries, all with the text protocol or meta commands, as the proxy needs.
var programs = map[string]program{
	"dalli":      {command: []string{"/usr/bin/ruby", "-"}, file: "dalli.rb"},
	"pymemcache": {command: []string{"/usr/bin/python3", "-"}, file: "python.py", env: []string{"LIBRARY=pymemcache"}},
	"pylibmc":    {command: []string{"/usr/bin/python3", "-"}, file: "python.py", env: []string{"LIBRARY=pylibmc"}},
	"php":        {command: php, file: "memcached.php"},
	"gomemcache": {file: "gomemcache"}, // is compiled
}

// clientsRoot returns the folder with interpreters and libraries.
var clientsRoot = sync.OnceValues(func() (string, error) {
	c, err := cluster.New("node")
	if err != nil {
		return "", err
	}
	return c.ClientsRoot(context.Background())
})

// counts are what a program prints.
type counts struct{ operations, lost, old, errors int }

// process is a running program.
type process struct {
	*exec.Cmd
	library     string
	out, report bytes.Buffer
}

// startPrograms starts processes of each library, which share no keys. Each process uses both proxies.
func (p pair) startPrograms(each, keys int) (list []*process) {
	p.Helper()
	root, err := clientsRoot()
	require.NoError(p, err)
	for library, program := range programs {
		if *onlyClient != "" && library != *onlyClient {
			continue
		}
		command, attributes := program.command, &syscall.SysProcAttr{Chroot: root}
		if command == nil {
			command, attributes = []string{filepath.Join(p.TempDir(), library)}, nil
			_, err := harness.Command{}.Run(p.Context(), "go", "build", "-o", command[0], "./clients/"+program.file)
			require.NoError(p, err)
		}
		for i := range each {
			c := &process{Cmd: exec.Command(command[0], command[1:]...), library: library}
			if attributes != nil {
				text, err := os.ReadFile(filepath.Join("clients", program.file))
				require.NoError(p, err)
				c.Stdin, c.SysProcAttr, c.Dir = bytes.NewReader(text), attributes, "/"
			}
			c.Env = append(slices.Clone(program.env), "NAME="+fmt.Sprintf("%s-%d", library, i), "KEYS="+strconv.Itoa(keys),
				"PROXIES="+p.proxies[0].proxy+","+p.proxies[1].proxy)
			c.Stdout, c.Stderr = &c.out, &c.report
			require.NoError(p, c.Start())
			p.Cleanup(func() {
				_ = c.Process.Kill() // it may have exited
				_ = c.Wait()
			})
			list = append(list, c)
		}
	}
	harness.Eventually(p, "write half of the keys", harness.Patience, func() error {
		stored := 0
		for _, address := range p.addresses {
			stored += items(p.TB, address)
		}
		if want := len(list) * keys / 2; stored < want {
			return fmt.Errorf("%d of %d items", stored, want)
		}
		return nil
	})
	return list
}

// stopPrograms stops the processes and returns the sums of their counts by their libraries.
func (p pair) stopPrograms(list []*process) map[string]counts {
	p.Helper()
	sums, problems := map[string]counts{}, map[string]string{}
	for _, c := range list {
		require.NoError(p, c.Process.Signal(syscall.SIGTERM))
	}
	for _, c := range list {
		err := c.Wait()
		require.NoError(p, err, "%s: %s%s", c.library, c.out.String(), c.report.String())
		var n counts
		_, err = fmt.Sscanf(c.out.String(), "%d operations, %d lost, %d old, %d errors\n", &n.operations, &n.lost, &n.old,
			&n.errors)
		require.NoError(p, err, "%s printed %q", c.library, c.out.String())
		sum := sums[c.library]
		sums[c.library] = counts{sum.operations + n.operations, sum.lost + n.lost, sum.old + n.old, sum.errors + n.errors}
		problems[c.library] += c.report.String()
	}
	for library, sum := range sums {
		const shown = 5
		lines := strings.SplitAfterN(problems[library], "\n", shown+1)
		p.Logf("%s: %+v\n%s", library, sum, strings.Join(lines[:min(len(lines), shown)], ""))
	}
	return sums
}

// TestClients: programs with the usual libraries of four languages find what they wrote last, while servers are added,
// removed and replaced, and items move. If items do not move, each program notices that. No other test runs at the same
// time, because the programs need the processors.
func TestClients(t *testing.T) {
	if testing.Short() {
		t.Skip("make moves runs it every night")
	}
	if os.Getuid() != 0 {
		t.Skip("the programs run in a folder with Debian packages as their root, which needs root")
	}
	t.Run("items move", func(t *testing.T) {
		p := startPair(t, 4)
		p.makePatient()
		// The mover is nearer to the servers than the proxies are: what it does to a key happens between two requests of
		// a proxy for the same key.
		network, all := newNetwork(t, servers(p.addresses...), 10*time.Millisecond)
		run := func(s contract.Servers) { require.NoError(t, move(t.Context(), network.without(s), moveLimit)) }
		p.use(contract.Servers{After: all[:3]})
		begin, list := time.Now(), p.startPrograms(*clientsEach, 100)
		used, spare := slices.Clone(all[:3]), all[3]
		for round := 0; round == 0 || time.Since(begin) < *clientsFor; round++ {
			more := append(slices.Clone(used), spare)
			p.change(contract.Servers{Before: used, After: more}, p.use, run)
			p.change(contract.Servers{Before: more, After: used}, p.use, run)
			before := slices.Clone(used)
			used[round%3], spare = spare, used[round%3]
			p.change(contract.Servers{Before: before, After: used}, p.use, run)
		}
		for library, n := range p.stopPrograms(list) {
			assert.Equal(t, counts{operations: n.operations}, n, library)
			assert.NotZero(t, n.operations, library)
		}
	})
	t.Run("items stay", func(t *testing.T) {
		p := startPair(t, 3)
		p.makePatient()
		_, all := newNetwork(t, servers(p.addresses...), time.Millisecond) // or programs would take the processors
		p.use(contract.Servers{After: all})
		list := p.startPrograms(1, 300)
		for range 3 { // each key is on another server, and then again on the one that has its old value
			p.use(contract.Servers{After: []contract.Server{all[1], all[2], all[0]}})
			time.Sleep(time.Second)
			p.use(contract.Servers{After: all})
			time.Sleep(time.Second)
		}
		for library, n := range p.stopPrograms(list) {
			assert.NotZero(t, n.lost, "%s notices no lost keys", library)
			assert.NotZero(t, n.old, "%s notices no old values", library)
		}
	})
}
