package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// TestMemory: the memory of real servers with TLS and passwords changes without a restart.
func TestMemory(t *testing.T) {
	needRealPods(t)
	t.Parallel()
	const host = "cache.example.com"
	var ca testCA
	var before map[string]string
	clients := func(w world) (list []memcachedClient) {
		pods := w.servers("cache")
		for i := range pods {
			list = append(list, memcachedClient{address: net.JoinHostPort(pods[i].Status.PodIP, "11211"),
				tls: ca.Trust(host, ca.issue("client")), login: "shop " + password})
		}
		return list
	}
	// mustHave fails unless each server has this memory, and none was replaced or has another number of items.
	mustHave := func(w world, megabytes int64) {
		w.Helper()
		w.mustNotReplace(before, w.uids("cache"))
		for _, c := range clients(w) {
			conn, err := c.dial()
			w.must(err)
			memory, err := stat(conn, "limit_maxbytes")
			w.must(errors.Join(err, conn.Close()))
			if memory != megabytes<<20 {
				w.Errorf("a server has %d MiB of memory, want %d MiB", memory>>20, megabytes)
			}
		}
		pods := w.servers("cache")
		for i := range pods {
			var sum int32
			for _, s := range append(pods[i].Status.InitContainerStatuses, pods[i].Status.ContainerStatuses...) {
				sum += s.RestartCount
			}
			limit := pods[i].Spec.Containers[0].Resources.Limits.Memory().Value()
			if least := megabytes << 20; limit < least || limit > 3*least+100<<20 || sum > 0 {
				w.Errorf("%s has a limit of %d bytes and %d restarts", pods[i].Name, limit, sum)
			}
		}
	}
	change := func(w world, memory string) traffic {
		w.Helper()
		return w.load(func() {
			w.merge("cache", fmt.Sprintf(`{"memory":%q}`, memory))
			w.awaitReady("cache")
		}, clients(w)...)
	}
	testEnv.Test(t, features.New("memory").
		Setup(step(func(w world) {
			ca = w.newCA()
			ca.certificate("certificate", host)
			w.passwords("passwords", "shop:"+password)
			w.createSpec("cache", `{size: 2, workload: StatefulSet, memory: 64Mi, threads: 1, maxConnections: 64, metrics: {},
				tls: {secretName: certificate, clientAuth: Require}, auth: {secretName: passwords},
				pod: {resources: {requests: {cpu: 1m}}}}`)
			w.awaitReady("cache")
			before = w.uids("cache")
			for _, c := range clients(w) {
				w.fill(c)
			}
		})).
		Assess("grows and loses nothing", step(func(w world) {
			if l := change(w, "128Mi"); l.misses > 0 {
				w.Errorf("%d misses", l.misses)
			}
			mustHave(w, 128)
		})).
		Assess("shrinks, and keeps what fits", step(func(w world) {
			if l := change(w, "64Mi"); l.misses > 0 {
				w.Errorf("%d misses, although all items fit", l.misses)
			}
			mustHave(w, 64)
		})).
		Assess("stays as it is on a node without room, and says so", step(func(w world) {
			w.merge("cache", `{"memory":"1024Gi"}`)
			w.awaitCondition("cache", v1alpha1.ConditionReconciling, v1alpha1.ReasonRollingOut, "idn't have enough")
			mustHave(w, 64)
			if l := change(w, "96Mi"); l.misses > 0 {
				w.Errorf("%d misses", l.misses)
			}
			mustHave(w, 96)
		})).
		Assess("drops all items when asked, and loses no connection", step(func(w world) {
			var open []*textproto.Conn
			for _, c := range clients(w) {
				conn, err := c.dial()
				w.must(err)
				w.Cleanup(func() { _ = conn.Close() })
				open = append(open, conn)
				if answer, err := ask(conn, "set flushed 0 0 1\r\nx"); err != nil || answer != "STORED" {
					w.Fatalf("got %q, %v", answer, err)
				}
			}
			w.flush("cache")
			w.eventually("the items are dropped", func() error {
				for _, conn := range open {
					answer, err := ask(conn, "mg flushed")
					w.must(err)
					if answer != "EN" {
						return fmt.Errorf("got %q", answer)
					}
				}
				return nil
			})
			w.awaitReady("cache")
			mustHave(w, 96)
		})).
		Assess("lasts when memcached is restarted, in the same pod or in a new one", step(func(w world) {
			w.must(testCluster.KillContainer(w.ctx, w.ns, "cache-0", "memcached"))
			w.eventually("memcached has its memory again", func() error {
				pod, err := load[corev1.Pod](w, "cache-0")
				if err != nil || len(pod.Status.ContainerStatuses) == 0 || !pod.Status.ContainerStatuses[0].Ready ||
					string(pod.UID) == before["cache-0"] && pod.Status.ContainerStatuses[0].RestartCount == 0 {
					return fmt.Errorf("memcached was not restarted (%w)", err)
				}
				conn, err := clients(w)[0].dial()
				if err != nil {
					return err
				}
				memory, err := stat(conn, "limit_maxbytes")
				if memory != 96<<20 {
					err = fmt.Errorf("memcached has %d bytes", memory)
				}
				return errors.Join(err, conn.Close())
			})
			w.awaitReady("cache")
		})).Feature())
}

// TestWarmUp: a rollout waits until clients have filled the new server, and so does a flush.
func TestWarmUp(t *testing.T) {
	needRealPods(t)
	t.Parallel()
	var before map[string]string
	testEnv.Test(t, features.New("a rollout with warmUp").
		Setup(step(func(w world) {
			w.createSpec("cache", `{size: 2, workload: StatefulSet, metrics: {}, networkPolicy: {}, rollout: {warmUp: {}}, `+
				smallServer+`}`)
			w.awaitReady("cache")
			w.eachServer("cache", func(address string) { w.fill(memcachedClient{address: address}) })
			before = w.uids("cache")
		})).
		Assess("replaces the next server once the new one has its share", step(func(w world) {
			w.merge("cache", `{"maxConnections":50}`)
			w.awaitCondition("cache", v1alpha1.ConditionReconciling, v1alpha1.ReasonRollingOut,
				"server cache-1 holds 0 % of the items of the others, warm with 80 %")
			if now := w.uids("cache"); now["cache-0"] != before["cache-0"] || now["cache-1"] == before["cache-1"] {
				w.Errorf("got the servers %v after %v, want cache-1 replaced", now, before)
			}
			w.eachServer("cache", func(address string) { w.fill(memcachedClient{address: address}) })
			w.awaitReady("cache")
			w.mustReplaceAll(before, "cache")
		})).
		Assess("drops the items of the next server once the one before has its share", step(func(w world) {
			before = w.uids("cache")
			full := w.items("cache")
			w.flush("cache")
			w.awaitCondition("cache", v1alpha1.ConditionReconciling, v1alpha1.ReasonRollingOut,
				"server cache-0 holds 0 % of the items of the others, warm with 80 %")
			if now := w.items("cache"); now["cache-0"] > 0 || now["cache-1"] != full["cache-1"] {
				w.Errorf("got the items %v after %v, want those of cache-0 dropped", now, full)
			}
			w.eachServer("cache", func(address string) { w.fill(memcachedClient{address: address}) })
			w.awaitReady("cache")
			if now := w.items("cache"); now["cache-0"] == 0 || now["cache-1"] > 0 {
				w.Errorf("got the items %v after %v, want those of cache-1 dropped", now, full)
			}
			w.mustNotReplace(before, w.uids("cache"))
		})).Feature())
}

// flush asks for a flush of all servers.
func (w world) flush(name string) {
	w.Helper()
	w.mustKubectl("annotate", "memcached", name, "--overwrite",
		v1alpha1.FlushedAtAnnotation+"="+time.Now().Format(time.RFC3339Nano))
}
