package proxy

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/util/cert"

	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/tests/cluster"
)

// interpreters run the programs of docs/how-to/clients by their extension.
var interpreters = map[string][]string{".py": {"/usr/bin/python3"}, ".rb": {"/usr/bin/ruby"}, ".php": php}

// TestDocumentedClients: the programs of docs/how-to/clients find their keys on servers with IPv6 addresses.
func TestDocumentedClients(t *testing.T) {
	t.Parallel()
	if !cluster.RealPods(os.Getenv("CLUSTER")) {
		t.Skip("kwok has no memcached")
	}
	root, err := clientsRoot()
	require.NoError(t, err)
	command, err := memcached()
	require.NoError(t, err)
	dir, err := os.MkdirTemp(root, "documented-") //nolint:usetesting // programs see it below their root
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv6loopback}, nil)
	require.NoError(t, err)
	for name, text := range map[string][]byte{
		"tls.crt": certificate, "tls.key": key, "authfile": []byte("user:secret\n"),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	// servers starts two servers with these arguments, and returns their addresses, separated by a comma.
	servers := func(args ...string) string {
		var list []string
		for range 2 {
			port, err := harness.FreePort()
			require.NoError(t, err)
			launch(t, slices.Concat(command, args, []string{"-u", "root", "-l", "::1", "-p", strconv.Itoa(port)}))
			list = append(list, fmt.Sprintf("[::1]:%d", port))
		}
		return strings.Join(list, ",")
	}
	encrypted := []string{"-Z", "-o", fmt.Sprintf("ssl_chain_cert=%[1]s/tls.crt,ssl_key=%[1]s/tls.key", dir)}
	plain, secured := servers(), servers(append(encrypted, "-Y", filepath.Join(dir, "authfile"))...)
	noPassword := servers(encrypted...)

	programs, err := filepath.Glob("../../clients/*/main.[^m]*") // the one in main.mjs discovers the servers
	require.NoError(t, err)
	require.Len(t, programs, 8)
	for _, file := range programs {
		name, text := filepath.Base(filepath.Dir(file)), []byte(nil)
		ca := "/" + filepath.Base(dir) + "/tls.crt"
		c := &exec.Cmd{Dir: "/", SysProcAttr: &syscall.SysProcAttr{Chroot: root}}
		if args := interpreters[filepath.Ext(file)]; args != nil {
			text, err = os.ReadFile(file)
			require.NoError(t, err)
			c.Path, c.Args, c.Stdin = args[0], slices.Concat(args, []string{"-"}), bytes.NewReader(text)
			if args[0] == php[0] {
				c.Args = args // which reads its standard input without the dash
			}
		} else {
			c.Path, c.Dir, c.SysProcAttr, ca = filepath.Join(t.TempDir(), name), "", nil, filepath.Join(dir, "tls.crt")
			c.Args = []string{c.Path}
			_, err := harness.Command{}.Run(t.Context(), "go", "build", "-o", c.Path, "../../clients/"+name)
			require.NoError(t, err)
		}
		list := plain
		if name == "dalli-tls" { // it cannot log in
			list = noPassword
		} else if strings.HasSuffix(name, "-tls") {
			list = secured
		}
		c.Env = []string{"MEMCACHED_SERVERS=" + list, "MEMCACHED_CA=" + ca, "MEMCACHED_NAME=localhost",
			"MEMCACHED_USER=user", "MEMCACHED_PASSWORD=secret"}
		out, err := os.Create(filepath.Join(t.TempDir(), name))
		require.NoError(t, err)
		t.Cleanup(func() { _ = out.Close() })
		printed := func() string {
			text, err := os.ReadFile(out.Name())
			require.NoError(t, err)
			return string(text)
		}
		c.Stdout, c.Stderr = out, out
		require.NoError(t, c.Start())
		if strings.HasSuffix(name, "-tls") {
			require.NoError(t, c.Wait(), "%s: %s", name, printed())
			continue
		}
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
		harness.Eventually(t, "find the keys of "+name, harness.Patience, func() error {
			if !strings.Contains(printed(), "\n100 of 100 keys found\n") {
				return fmt.Errorf("%s printed %q", name, printed())
			}
			return nil
		})
	}
}
