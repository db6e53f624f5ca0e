package simulation

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/internal/testing/harness"
	"github.com/example/memcached-operator/internal/testing/simulator"
	"github.com/example/memcached-operator/tests/cluster"
)

// memcachedCommand runs a real memcached as a process of this machine.
var memcachedCommand = sync.OnceValues(func() ([]string, error) {
	c, err := cluster.New("node")
	if err != nil {
		return nil, err
	}
	return c.MemcachedCommand(context.Background())
})

// startMemcached lets a real memcached start with the arguments of each server and proxy, answer and stop; each list of
// arguments once, and only with CLUSTER=node. It omits --enable-largepages, because not every machine has large pages.
func (r *specRun) startMemcached(w *world) {
	w.Helper()
	if os.Getenv("CLUSTER") != "node" {
		return
	}
	for _, obj := range w.now()["Pod"] {
		pod := obj.(*corev1.Pod)
		args, config := simulator.MemcachedOf(pod).Args, w.proxyConfig()
		key, isNew := strings.Join(args, "\n"), false
		if pod.Labels[simulator.ComponentLabel] == simulator.ProxyComponent {
			key += config["proxy.lua"]
		}
		r.count(func() {
			if _, seen := r.started[key]; !seen {
				isNew, r.started[key] = true, false
			}
		})
		if isNew && !slices.Contains(args, "--enable-largepages") && w.runMemcached(args, config) {
			r.count(func() { r.started[key] = true })
		}
	}
}

// proxyConfig returns the files of proxies that have no server yet.
func (w *world) proxyConfig() map[string]string {
	for _, obj := range w.now()["ConfigMap"] {
		config := obj.(*corev1.ConfigMap).DeepCopy()
		config.Data["servers"] += "none 127.0.0.1:1\n" // nothing listens there
		return config.Data
	}
	return nil
}

// runMemcached runs memcached with the arguments of a container, with its files in a temporary folder and on a free
// port. It returns false if memcached needs more open files than this machine allows.
func (w *world) runMemcached(args []string, proxy map[string]string) bool {
	w.Helper()
	dir := w.TempDir()
	files := map[string][]byte{"auth/authfile": []byte("user:password\n")}
	for name, content := range w.certificate() {
		files["tls/"+name] = content
	}
	for name, content := range proxy {
		files["proxy/"+name] = []byte(content)
	}
	for name, content := range files {
		w.Must(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		w.Must(os.WriteFile(filepath.Join(dir, name), bytes.ReplaceAll(content, []byte(filesIn), []byte(dir)), 0o600))
	}
	address, err := harness.FreeAddress()
	w.Must(err)
	_, port, err := net.SplitHostPort(address)
	w.Must(err)
	n := loopbacks.Add(1)
	host := fmt.Sprintf("127.1.%d.%d", n/250, 1+n%250) // no other process binds ports of this address
	address = net.JoinHostPort(host, port)
	command, err := memcachedCommand()
	w.Must(err)
	command = append(command[:len(command):len(command)], "-l", host)
	if os.Getuid() == 0 {
		command = append(command, "-u", "root")
	}
	for _, arg := range args {
		command = append(command, strings.ReplaceAll(arg, filesIn, dir))
	}
	connections := 0
	for i, arg := range command {
		switch arg {
		case "-p":
			command[i+1] = port
		case "-c":
			connections, err = strconv.Atoi(command[i+1])
			w.Must(err)
		}
	}

	ctx, cancel := context.WithTimeout(w.Ctx, harness.Patience)
	defer cancel()
	cmd, output := exec.CommandContext(ctx, command[0], command[1:]...), &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = output, output
	// With few connections, memcached has no descriptor to spare for what a shell leaves open.
	for fd := 3; fd < 256; fd++ {
		syscall.CloseOnExec(fd)
	}
	w.Must(cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	answered := harness.Poll(ctx, func(context.Context) error {
		select {
		case err := <-ended:
			ended <- err
			cancel()
			return fmt.Errorf("memcached has ended: %w", err)
		default:
			return w.askVersion(address, args)
		}
	})
	_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	err = <-ended
	var limit syscall.Rlimit
	w.Must(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	const noResources = 71 // EX_OSERR
	if answered != nil && cmd.ProcessState.ExitCode() == noResources && uint64(connections) > limit.Max {
		return false
	}
	if err := errors.Join(answered, err); err != nil {
		w.Errorf("memcached %q: %v\n%s", args, err, output)
	}
	return true
}

// loopbacks counts addresses of this machine that are in use.
var loopbacks atomic.Int32

// filesIn is the folder in containers with all files of memcached.
var filesIn = filepath.Dir(contract.TLSPath)

// askVersion asks a memcached with these arguments for its version.
func (w *world) askVersion(address string, args []string) error {
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if slices.Contains(args, "--enable-ssl") {
		own, err := ca.Issue("client")
		if err != nil {
			return err
		}
		conn = tls.Client(conn, ca.Trust("cache", own))
	}
	text := textproto.NewConn(conn)
	if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--auth-file=") }) {
		if err := ask(text, "set user 0 0 13\r\nuser password", "STORED"); err != nil {
			return err
		}
	}
	return ask(text, "version", "VERSION ")
}

// ask sends a request, and returns an error unless the answer begins as wanted.
func ask(conn *textproto.Conn, request, want string) error {
	if err := conn.PrintfLine("%s", request); err != nil {
		return err
	}
	answer, err := conn.ReadLine()
	if err == nil && !strings.HasPrefix(answer, want) {
		err = fmt.Errorf("the answer to %q is %q", request, answer)
	}
	return err
}
