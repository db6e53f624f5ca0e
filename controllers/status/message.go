package status

import (
	"cmp"
	"fmt"

	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
)

// diagnose returns the reason and the message why mc is not ready.
func diagnose(in Input, before history, progress string) conditionState {
	why := conditionState{status: true, reason: v1alpha1.ReasonRollingOut, message: progress}
	switch cause := cmp.Or(in.cause(), unreachable(in.Proxies.Pods)); {
	case in.Problem != nil:
		why.reason, why.message = in.Problem.Reason, in.Problem.Message
	case in.HeldBack != "":
		why.reason, why.message = v1alpha1.ReasonPaused, in.HeldBack+"; "+progress
	case in.Waiting != "":
		why.message = progress + "; " + in.Waiting
	case in.Changing:
		if in.Resizing && !in.Servers.hasOutdatedPods() {
			why.reason = v1alpha1.ReasonResizing
		}
	case cause != "":
		why.reason, why.message = v1alpha1.ReasonProgressingWithRetry, progress+"; "+cause
	case !in.Servers.hasOutdatedPods() &&
		(in.Work.Resizing || before.reason(v1alpha1.ConditionReconciling) == v1alpha1.ReasonResizing):
		why.reason = v1alpha1.ReasonResizing
	}
	return why
}

// progressMessage says how many servers are ready, and what else a rollout waits for.
func progressMessage(mc *v1alpha1.Memcached, in Input) string {
	size, ready, w := names.Size(mc), in.Servers.Ready, in.Servers.State
	text := fmt.Sprintf("%d of %d servers ready", min(ready, size), size)
	switch {
	case in.Changing && !in.Resizing && ready > 0:
		text = fmt.Sprintf("0 of %d servers updated, %d ready", size, min(ready, size))
	case in.Servers.hasOutdatedPods():
		updated := max(0, min(w.Updated, size-w.Outdated)) // a spare server is updated too
		text = fmt.Sprintf("%d of %d servers updated, %d ready", updated, size, min(ready, size))
	}
	if w != nil && ready >= size && w.Ready >= size && w.Available < size && mc.Spec.Rollout.MinReadySeconds > 0 {
		text += fmt.Sprintf(", waiting until each has been ready for %d s", mc.Spec.Rollout.MinReadySeconds)
	}
	if existing := int32(len(in.Servers.Active)); existing > size && w != nil && w.Outdated == 0 {
		text += fmt.Sprintf(", %d more to remove", existing-size)
	}
	if in.Work.ToFlush > 0 {
		text += fmt.Sprintf(", %d to drop their items", in.Work.ToFlush)
	}
	switch {
	case !in.proxiesComplete(mc):
		text += fmt.Sprintf("; %d of %d proxies ready", min(in.Proxies.Ready, mc.Spec.Proxy.Size), mc.Spec.Proxy.Size)
	case in.Work.Progress.Text != "":
		text += "; " + in.Work.Progress.Text
	case in.Work.NotLoaded != "":
		text += fmt.Sprintf("; proxy %s has not loaded the list of servers yet", in.Work.NotLoaded)
	}
	return text
}
