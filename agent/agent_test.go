package agent

import (
	"errors"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/agent/memcached"
	"github.com/example/memcached-operator/credentials"
	"github.com/example/memcached-operator/internal/testing/harness"
)

// TestArgs: the agent parses the arguments that the operator sets.
func TestArgs(t *testing.T) {
	t.Parallel()
	for _, want := range []contract.Options{
		{Port: 11211},
		{Port: 12000, MetricsPort: 9150, TLS: credentials.CheckClient, Auth: true},
		{Port: 12000, MetricsPort: 9150, TLS: credentials.CheckPair},
		{Port: 12000, MetricsPort: 9150, ReportPort: 9151, Proxy: true},
		{Port: 12000, ReportPort: 9151, DiscoveryPort: 9152},
	} {
		if got, err := contract.ParseOptions(want.Args()[1:]); err != nil || got != want {
			t.Errorf("%+v becomes %+v, %v", want, got, err)
		}
	}
	for _, args := range [][]string{{`{"port":"x"}`}, {`{"unknown":1}`}, {"--port=1"}, nil} {
		if _, err := contract.ParseOptions(args); err == nil {
			t.Errorf("%q is understood", args)
		}
	}
}

// TestGoMemoryLimit: whatever limit a user sets, the Go runtime gets most of the memory, and no more.
func TestGoMemoryLimit(t *testing.T) {
	t.Parallel()
	for limit, want := range map[int64]string{0: "0MiB", 20 << 20: "17MiB", 64 << 20: "54MiB", 100e6: "81MiB",
		97 << 50: "88530013388MiB", math.MaxInt64: "7476679068876MiB"} { // 97 Pi once overflowed
		if got := contract.GoMemoryLimit(limit); got != want {
			t.Errorf("a limit of %d bytes became %s, want %s", limit, got, want)
		}
	}
}

// mounted creates a folder for a Secret, and returns a function that writes content there as the kubelet does.
func mounted(t *testing.T, s *secret) func(credentials.Data) {
	t.Helper()
	s.path = t.TempDir()
	for _, key := range s.keys {
		if err := os.Symlink(filepath.Join("..data", key), filepath.Join(s.path, key)); err != nil {
			t.Fatal(err)
		}
	}
	return func(content credentials.Data) {
		t.Helper()
		project(t, s.path, content)
		s.read()
	}
}

// project writes content as the kubelet does: into a new folder, to which the link ..data then points.
func project(t *testing.T, path string, content credentials.Data) {
	t.Helper()
	folder, err := os.MkdirTemp(path, "..version") //nolint:usetesting // beside the link
	if err != nil {
		t.Error(err)
	}
	for key, b := range content {
		if err := os.WriteFile(filepath.Join(folder, key), b, 0o600); err != nil {
			t.Error(err)
		}
	}
	link := filepath.Join(path, "..data")
	before, _ := os.Readlink(link)
	if err := errors.Join(os.Symlink(filepath.Base(folder), link+"_tmp"), os.Rename(link+"_tmp", link)); err != nil {
		t.Error(err)
	}
	if before != "" {
		if err := os.RemoveAll(filepath.Join(path, before)); err != nil {
			t.Error(err)
		}
	}
}

// with is content with one key of other content.
func with(content credentials.Data, key string, other credentials.Data) credentials.Data {
	content = maps.Clone(content)
	content[key] = other[key]
	return content
}

// newSecrets returns the Secrets of an agent with these options.
func newSecrets(o contract.Options) *reloader {
	return newReloader(o, &client{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
}

// TestInvalidContent: invalid content counts as one failure, and content that was active before must be reloaded.
func TestInvalidContent(t *testing.T) {
	t.Parallel()
	ours := newCA(t)
	first, second := issue(t, ours), issue(t, ours)
	s := newSecrets(contract.Options{TLS: credentials.CheckCA}).tls
	put := mounted(t, s)
	if !s.pendingSince.IsZero() {
		t.Error("pending before anything was mounted")
	}
	put(first)
	s.read()
	if !s.needsReload() || testutil.ToFloat64(s.pending) == 0 || testutil.ToFloat64(s.failures) != 0 {
		t.Errorf("valid content: %v, pending since %s", s.invalid, s.pendingSince)
	}
	s.activate()
	put(with(first, "tls.key", second))
	s.read()
	if s.needsReload() || testutil.ToFloat64(s.pending) == 0 || testutil.ToFloat64(s.failures) != 1 {
		t.Errorf("invalid content: %v, %v failures", s.invalid, testutil.ToFloat64(s.failures))
	}
	put(first)
	if !s.needsReload() {
		t.Errorf("valid content again: %v, is not reloaded, though memcached may have started meanwhile", s.invalid)
	}
	put(second)
	if list := s.certificates(); len(list) != 2 || !list[0].Leaf.Equal(s.wanted.tls.Leaf) ||
		!list[1].Leaf.Equal(s.active.tls.Leaf) {
		t.Errorf("the agent would send %v", list)
	}
	s.activate()
	if testutil.ToFloat64(s.pending) != 0 || len(s.certificates()) != 1 {
		t.Errorf("active content is pending for %v s", testutil.ToFloat64(s.pending))
	}
}

// TestUsers: the agent tries the logins that memcached may still accept.
func TestUsers(t *testing.T) {
	t.Parallel()
	s := newSecrets(contract.Options{Auth: true}).auth
	put := mounted(t, s)
	if got := s.logins(); !slices.Equal(got, []string{""}) {
		t.Errorf("logins %q", got)
	}
	put(credentials.Data{"authfile": []byte("a:first\nb:x\n")})
	s.activate()
	put(credentials.Data{"authfile": []byte("a:second\n")})
	if got := s.logins(); !slices.Equal(got, []string{"a:second", "a:first", "b:x"}) {
		t.Errorf("logins %q", got)
	}
	if got := testutil.ToFloat64(s.users); got != 2 {
		t.Errorf("%v users", got)
	}
}

// TestOneVersion: keys of two versions of a Secret are never mixed, however often the kubelet switches.
func TestOneVersion(t *testing.T) {
	t.Parallel()
	ours := newCA(t)
	versions := []credentials.Data{issue(t, ours), issue(t, ours)}
	s := newSecrets(contract.Options{TLS: credentials.CheckCA}).tls
	mounted(t, s)(versions[0])
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 400 {
			project(t, s.path, versions[i%2])
		}
	}()
	for {
		s.read()
		if s.invalid != nil {
			t.Fatal(s.invalid)
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

// TestProxyMetrics: the metrics of a proxy are those in its answers, which memcached 1.6.45 gave, but for odd names and
// values, which once ended the agent.
func TestProxyMetrics(t *testing.T) {
	t.Parallel()
	responses := map[string]string{
		"stats proxy": "STAT active_req_limit 0\r\nSTAT buffer_memory_limit 67108864\r\nSTAT buffer_memory_used 16384\r\n" +
			"STAT cmd_mg 1\r\nSTAT cmd_get 10\r\nSTAT cmd_ 7\r\nSTAT cmd_\xff 1\r\nSTAT cmd_x y\r\nEND\r\n",
		"stats proxybe": "STAT bad_10.96.0.7:11211 4\r\nSTAT bad_[fd00::7]:11211 1\r\nEND\r\n",
	}
	conn := memcached.NewConn(harness.NewAnswering(func(request string) string { return responses[request] }))
	registry := prometheus.NewRegistry()
	registry.MustRegister(proxyMetrics{&client{conn: conn}, slog.New(slog.DiscardHandler)})
	const want = `
# HELP memcached_proxy_buffer_bytes Memory of answers that clients have not read yet.
# TYPE memcached_proxy_buffer_bytes gauge
memcached_proxy_buffer_bytes 16384
# HELP memcached_proxy_buffer_limit_bytes Limit of that memory; beyond it, reads are misses.
# TYPE memcached_proxy_buffer_limit_bytes gauge
memcached_proxy_buffer_limit_bytes 6.7108864e+07
# HELP memcached_proxy_requests_total Requests of clients, by command.
# TYPE memcached_proxy_requests_total counter
memcached_proxy_requests_total{command="get"} 10
memcached_proxy_requests_total{command="mg"} 1
# HELP memcached_proxy_server_unreachable_threads Threads of the proxy that cannot reach a server; absent if all can.
# TYPE memcached_proxy_server_unreachable_threads gauge
memcached_proxy_server_unreachable_threads{server="10.96.0.7:11211"} 4
memcached_proxy_server_unreachable_threads{server="[fd00::7]:11211"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
