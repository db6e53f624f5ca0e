package steps

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
)

// warm annotates a server as warm since it became ready.
func (s *server) warm() *server { return s.annotated(v1alpha1.WarmAnnotation, warmSince(&s.Pod)) }

// warmsUpFor says that an operator saw this time before now that a server has to warm up.
func (s *server) warmsUpFor(d time.Duration) *server {
	return s.annotated(v1alpha1.WarmAnnotation, warmSince(&s.Pod)+" "+now.Add(-d).Format(time.RFC3339))
}

// TestWarmUp: a new server is annotated as warm once it holds its share of the items of the others.
func TestWarmUp(t *testing.T) {
	t.Parallel()
	const holds = "server cache-2 holds %d %% of the items of the others, warm with 80 %%"
	for name, tt := range map[string]struct {
		items  []int64 // of the new one and of the others; negative if an agent does not answer
		isWarm bool
		says   string
	}{
		"all are empty":       {[]int64{0, 0, 0}, true, ""},
		"empty":               {[]int64{0, 10, 10}, false, fmt.Sprintf(holds, 0)},
		"colder":              {[]int64{79, 90, 110}, false, fmt.Sprintf(holds, 79)},
		"one does not answer": {[]int64{80, 100, -1}, true, ""},
		"warmer":              {[]int64{1 << 40, 1 << 30, 1 << 40}, true, ""},
		"none answers": {[]int64{80, -1, -1}, false,
			"server cache-2 cannot be compared: its agent or those of the others do not answer"},
		"it does not answer": {[]int64{-1, 0, 0}, false,
			"server cache-2 cannot be compared: its agent or those of the others do not answer"},
	} {
		// An operator whose clock was ahead began to wait: it begins now.
		v := viewOf(outdated(), outdated(), updated().readyFor(time.Minute).warmsUpFor(-time.Hour))
		v.Memcached.Spec.Rollout.WarmUp = &v1alpha1.WarmUpSpec{Percent: 80, TimeoutSeconds: 600}
		for i, pod := range []string{"cache-2", "cache-1", "cache-0"} {
			r := Report{Report: contract.Report{Items: tt.items[i]}}
			if tt.items[i] < 0 {
				r.Err = errors.New("silent")
			}
			v.Reports[pod] = r
		}
		s, busy := replace(counted(v))
		since := warmSince(v.Servers[2])
		want := since + " " + now.Format(time.RFC3339) // the warm-up has begun
		if tt.isWarm {
			want = since
		}
		if len(s.Annotate) != 1 || s.Annotate[0].Key != v1alpha1.WarmAnnotation || s.Annotate[0].Value != want ||
			s.Progress.Text != tt.says || !busy || s.IsIrreversible() {
			t.Errorf("%s: got the step %+v, want %+v", name, s, tt)
		}
	}
}
