package clients

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/example/memcached-operator/api/v1alpha1"
)

// discovering are the commands of the programs that discover the servers. They poll every ten seconds.
var discovering = map[string][]string{
	"thanos":   {"thanos"},
	"memcache": {"node", "/clients/memcache/main.mjs"},
}

// keys is the number of keys that each of them reads in a round.
const keys = 1000

// round is what a program reports of a round.
type round struct {
	at                     time.Time
	Found, Servers, Errors int
}

// TestDiscovery: clients that discover the servers follow each change of the size without a restart and without an
// error, and miss no more keys than a consistent hash must move.
func TestDiscovery(t *testing.T) {
	const tolerance = 0.1 // of the keys: points of a hash ring are not quite even
	w := setUp(t)
	w.create("sessions", v1alpha1.MemcachedSpec{Size: ptr.To[int32](3), Workload: v1alpha1.WorkloadStatefulSet,
		Discovery: &v1alpha1.DiscoverySpec{RemovalDelaySeconds: ptr.To[int32](30)}})
	w.servers("sessions")
	for program, command := range discovering {
		w.start(program, command, map[string]string{"MEMCACHED_DISCOVERY": "sessions-discovery." + w.ns + ".svc:11211"})
	}
	w.followed(3)
	before := 3
	for _, size := range []int{5, 2} {
		mc := &v1alpha1.Memcached{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "sessions"}}
		w.must(w.Patch(w.ctx, mc, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"size":%d}}`,
			size))))
		published := w.published("sessions", size)
		w.followed(size)
		w.servers("sessions")
		for program := range discovering {
			rounds := w.rounds(program)
			first := 0
			for rounds[first].Servers != size || rounds[first].at.Before(published.Add(-time.Second)) {
				first++
			}
			least := keys
			for _, r := range rounds[first-1 : min(first+5, len(rounds))] {
				least = min(least, r.Found)
			}
			missed, theory := 1-float64(least)/keys, 1-float64(min(before, size))/float64(max(before, size))
			t.Logf("%s from %d to %d servers: used the new list after %.0f s, missed %.0f %% of the keys, in theory %.0f %%, "+
				"%d errors", program, before, size, rounds[first].at.Sub(published).Seconds(), 100*missed, 100*theory,
				rounds[len(rounds)-1].Errors)
			if missed > theory+tolerance || rounds[len(rounds)-1].Errors > 0 {
				t.Errorf("%s: %+v", program, rounds[first-1:])
			}
		}
		before = size
	}
}

// followed waits until each client uses this number of servers, and finds all keys.
func (w world) followed(size int) {
	w.Helper()
	for program := range discovering {
		w.eventually("wait until "+program+" finds all keys", func() error {
			rounds := w.rounds(program)
			if len(rounds) > 0 && rounds[len(rounds)-1].Servers == size && rounds[len(rounds)-1].Found == keys {
				return nil
			}
			return fmt.Errorf("%s: %.2000s", program, w.log(program))
		})
	}
}

// published waits until the list has this number of servers, and returns when it had.
func (w world) published(name string, size int) time.Time {
	w.Helper()
	w.eventually("wait until the list is published", func() error {
		config := &corev1.ConfigMap{}
		err := w.Get(w.ctx, client.ObjectKey{Namespace: w.ns, Name: name + "-discovery"}, config)
		if got := strings.Count(config.Data["servers"], ":"); err != nil || got != size {
			return fmt.Errorf("%d servers: %w", got, err)
		}
		return nil
	})
	return time.Now()
}

// rounds returns what a program has reported so far.
func (w world) rounds(program string) (list []round) {
	w.Helper()
	out, err := w.pods.GetLogs(program, &corev1.PodLogOptions{Timestamps: true}).DoRaw(w.ctx)
	if err != nil { // the pod has not started yet
		return nil
	}
	for line := range strings.Lines(string(out)) {
		at, text, _ := strings.Cut(line, " ")
		var r round
		if r.at, err = time.Parse(time.RFC3339Nano, at); err == nil && json.Unmarshal([]byte(text), &r) == nil {
			list = append(list, r)
		}
	}
	return list
}
