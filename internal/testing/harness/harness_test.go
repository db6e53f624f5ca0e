package harness

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestPollReturnsLastErrorAndCause(t *testing.T) {
	last, cause := errors.New("last"), errors.New("cause")
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, cause)
	defer cancel()
	err := Poll(ctx, func(context.Context) error { return last })
	if !errors.Is(err, last) || !errors.Is(err, cause) {
		t.Errorf("Poll returns %v, want both errors", err)
	}
}

func TestRun(t *testing.T) {
	command := Command{Dir: t.TempDir(), Env: []string{"HARNESS=of the environment"}}
	out, err := command.Run(t.Context(), "sh", "-c", "pwd; echo $HARNESS; echo aside >&2")
	if want := command.Dir + "\nof the environment\n"; err != nil || out != want {
		t.Errorf("the output is %q, want %q (%v)", out, want, err)
	}
	_, err = command.Run(t.Context(), "sh", "-c", "echo out; echo aside >&2; exit 3")
	if err == nil || !strings.Contains(err.Error(), "aside\nout") || !strings.Contains(err.Error(), "status 3") {
		t.Errorf("the error is %v, want one with all output", err)
	}
}

func TestSum(t *testing.T) {
	const metrics = "# TYPE a counter\na{b=\"c\"} 1\na{b=\"d\"} 2.5\naa 4\nb 8\n"
	for series, want := range map[string]float64{`a\{.*\}`: 3.5, `a\{b="c"\}`: 1, `b|aa`: 12, `c`: 0} {
		if got := Sum(metrics, series); got != want {
			t.Errorf("%s: got %v, want %v", series, got, want)
		}
	}
}
