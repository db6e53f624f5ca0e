package controllers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/example/memcached-operator/agent"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/rollout"
	"github.com/example/memcached-operator/controllers/status"
)

const (
	// warmUpRetry is the delay before servers are asked again for the number of their items.
	warmUpRetry = 5 * time.Second
	// refreshRetry is how long a kubelet may take to refresh the volumes of a pod before it is asked again.
	refreshRetry = 5 * time.Second
	// maxPeers is the number of servers with which new ones are compared.
	maxPeers = 16
	// pollInterval is the time between two polls, and unreachableInterval that while a proxy does not reach a server.
	pollInterval        = 10 * time.Second
	unreachableInterval = time.Second
	// reachDelay is how long a server may be ready before proxies must reach it: their reports are seconds old.
	reachDelay = 10 * time.Second
	// maxRequests is the number of agents of a Memcached that are asked at the same time.
	maxRequests = 64
	// agentTimeout is how long an agent may take to answer.
	agentTimeout = 500 * time.Millisecond
	// maxAnswer limits the header and the body of an answer, in bytes.
	maxAnswer = 4 << 10
)

// ask makes those steps that depend on the reports of agents. It says how far they are, and how long until agents must
// be asked again.
func (r *MemcachedReconciler) ask(ctx context.Context, o observation,
	a actions) (change status.ChangeProgress, wait time.Duration, err error) {
	change, wait, err = r.askProxies(ctx, o, a.ask)
	warmUp, warmUpWait, warmUpErr := r.warmUp(ctx, o, a.rollout.Warming, a.rollout.Peers, v1alpha1.WarmAnnotation,
		rollout.WarmSince)
	memory, memoryWait, memoryErr := r.changeMemory(ctx, o, a.memory)
	flush, flushWait, flushErr := r.flush(ctx, o, a.flush, a.cannotFlush)
	stopWait := r.stopServers(ctx, o.mc, a.stop)
	return cmp.Or(change, warmUp, memory, flush), soonest(wait, warmUpWait, memoryWait, flushWait, stopWait),
		errors.Join(err, warmUpErr, memoryErr, flushErr)
}

// askAgents asks the agents of pods for their reports, many at once. For each pod, it returns a report or an error.
func (r *MemcachedReconciler) askAgents(ctx context.Context, mc *v1alpha1.Memcached,
	pods []*corev1.Pod) ([]agent.Report, []error) {
	reports, errs := make([]agent.Report, len(pods)), make([]error, len(pods))
	port := strconv.Itoa(int(names.ReportPort(mc)))
	var group errgroup.Group
	group.SetLimit(maxRequests)
	for i, pod := range pods {
		if pod.Status.PodIP == "" {
			errs[i] = errors.New("the pod has no address")
			continue
		}
		group.Go(func() error {
			reports[i], errs[i] = r.AskAgent(ctx, net.JoinHostPort(pod.Status.PodIP, port))
			return nil
		})
	}
	_ = group.Wait()
	return reports, errs
}

// poll asks agents for what no watch event says: whether a proxy reaches all servers, and whether the kubelet waits
// until a server may stop. Annotations of the pods record it. poll returns how long until the next poll.
func (r *MemcachedReconciler) poll(ctx context.Context, o observation, st *state,
	now time.Time) (wait time.Duration, err error) {
	var pods []*corev1.Pod
	for i := range o.servers {
		pod := &o.servers[i]
		if status.HasDrain(pod) && status.RunningSince(pod) != "" && !rollout.IsDraining(pod) {
			pods = append(pods, pod)
		}
	}
	servers := len(pods)
	wait = pollInterval
	for i := range o.proxies {
		if pod := &o.proxies[i]; o.mc.Spec.Proxy != nil && status.IsTrue(pod, corev1.PodReady) {
			pods = append(pods, pod)
			if pod.Annotations[v1alpha1.UnreachableAnnotation] != "" {
				wait = unreachableInterval
			}
		}
	}
	if left := st.polled.Add(wait).Sub(now); len(pods) == 0 || left > 0 {
		return max(left, 0), nil
	}
	st.polled = now
	reports, errs := r.askAgents(ctx, o.mc, pods)
	for i, pod := range pods {
		key, value := v1alpha1.UnreachableAnnotation, o.unreachable(reports[i].Unreachable, now)
		if i < servers {
			key, value = v1alpha1.DrainingAnnotation, status.RunningSince(pod)
		}
		if errs[i] == nil && (i >= servers || reports[i].Draining) && pod.Annotations[key] != value {
			err, wait = errors.Join(err, r.annotate(ctx, pod, key, value)), proxyRetry
		}
	}
	return wait, err
}

// unreachable returns a server that a proxy does not reach, of those that it reports; empty for none. The status of a
// server says itself that it is not ready.
func (o observation) unreachable(reported []string, now time.Time) (server string) {
	for i := range o.servers {
		pod := &o.servers[i]
		since, ready := status.ReadySince(pod)
		if ready && now.Sub(since) >= reachDelay && pod.DeletionTimestamp.IsZero() && slices.Contains(reported, pod.Name) &&
			(server == "" || pod.Name < server) {
			server = pod.Name
		}
	}
	return server
}

// warmUp asks servers how many items they hold, and annotates the cold ones that have their share, with this key and
// the value that warm returns. It says how far one of the others is, and how long until servers must be asked again.
func (r *MemcachedReconciler) warmUp(ctx context.Context, o observation, cold, peers []*corev1.Pod, key string,
	warm func(*corev1.Pod) string) (change status.ChangeProgress, wait time.Duration, err error) {
	if len(cold) == 0 {
		return change, 0, nil
	}
	reports, errs := r.askAgents(ctx, o.mc, slices.Concat(cold, peers[:min(maxPeers, len(peers))]))
	var items []int64
	for i := len(cold); i < len(reports); i++ {
		if errs[i] == nil {
			items = append(items, reports[i].Items)
		}
	}
	wait = warmUpRetry
	for i, pod := range cold {
		percent, ok := rollout.Share(reports[i].Items, items)
		switch {
		case errs[i] != nil || !ok:
			change.Text = fmt.Sprintf("server %s cannot be compared: its agent or those of the others do not answer", pod.Name)
			wait = silentRetry
		case percent >= int(o.mc.Spec.Rollout.WarmUp.Percent):
			err = errors.Join(err, r.annotate(ctx, pod, key, warm(pod)))
			wait = min(wait, proxyRetry)
		default:
			change = status.ChangeProgress{Percent: percent, Text: fmt.Sprintf(
				"server %s holds %d %% of the items of the others, warm with %d %%", pod.Name, percent,
				o.mc.Spec.Rollout.WarmUp.Percent)}
		}
	}
	return change, wait, err
}

// flush makes the next step of servers that must drop their items, one after the other. It says what the step is, and
// how long until the next one. cannot is why the flush cannot begin; empty for nothing.
func (r *MemcachedReconciler) flush(ctx context.Context, o observation, flush rollout.Flush,
	cannot string) (change status.ChangeProgress, wait time.Duration, err error) {
	const remedy = "; or remove the annotation " + v1alpha1.FlushedAtAnnotation
	wait = proxyRetry
	reports, errs := r.askAgents(ctx, o.mc, flush.Asked)
	for i, pod := range flush.Asked {
		switch report := reports[i]; {
		case errs[i] != nil:
			change.Text, wait = fmt.Sprintf("server %s: its agent does not answer the operator", pod.Name)+remedy, silentRetry
		case report.Flushed == pod.Annotations[v1alpha1.FlushAnnotation]:
			value := rollout.FlushAnnotation(pod, rollout.Flushed)
			err = errors.Join(err, r.annotate(ctx, pod, v1alpha1.FlushAnnotation, value))
		case report.FlushProblem != "":
			change.Text = fmt.Sprintf("server %s: %s", pod.Name, reported(pod, report.FlushProblem)) + remedy
			wait = silentRetry
		default:
			change.Text = fmt.Sprintf("server %s: memcached drops its items", pod.Name)
			err = errors.Join(err, r.refresh(ctx, pod))
		}
	}
	switch {
	case len(flush.Asked) > 0:
		return change, wait, err
	case cannot != "":
		change.Text = cannot + remedy
		return change, 0, nil
	case len(flush.Left) == 0:
		if len(flush.Stopping) > 0 {
			change.Text = fmt.Sprintf("server %s is about to stop with its items", flush.Stopping[0].Name)
		}
		return change, 0, nil
	}
	if warming := flush.Warming(o.mc.Spec.Rollout.WarmUp, r.Now()); len(warming) > 0 {
		return r.warmUp(ctx, o, warming, flush.Left, v1alpha1.FlushAnnotation,
			func(pod *corev1.Pod) string { return rollout.FlushAnnotation(pod, rollout.Warm) })
	}
	// The informer cache may not show yet that a server was asked, or that items begin to move.
	servers, err := o.currentPods(ctx, names.Servers)
	if err == nil && o.mc.Spec.Proxy != nil {
		err = o.isCurrent(ctx)
	}
	live := rollout.ReadFlush(servers, flush.Time)
	if err != nil || len(live.Asked)+len(live.Warming(o.mc.Spec.Rollout.WarmUp, r.Now())) > 0 || len(live.Left) == 0 {
		return change, proxyRetry, err
	}
	return change, proxyRetry, r.annotate(ctx, live.Left[0], v1alpha1.FlushAnnotation, flush.Ask(r.Now()))
}

// reported returns what an agent reports, unless its pod has a Secret: memcached is of the user's image, and could put
// the content into its answer.
func reported(pod *corev1.Pod, report string) string {
	if pod.Annotations[v1alpha1.SecretsAnnotation] != "" {
		return "its agent could not change memcached; the log of the agent says why"
	}
	return report
}

// refresh makes the kubelet refresh the volumes of a pod once more if the last change of an annotation is some seconds
// old: a kubelet that is busy with the pod may miss the change.
func (r *MemcachedReconciler) refresh(ctx context.Context, pod *corev1.Pod) error {
	last, err := time.Parse(time.RFC3339, pod.Annotations[v1alpha1.RefreshedAnnotation])
	if now := r.Now(); err != nil || now.Sub(last).Abs() > refreshRetry {
		return r.annotate(ctx, pod, v1alpha1.RefreshedAnnotation, now.UTC().Format(time.RFC3339))
	}
	return nil
}

// changeMemory makes the next step of a server towards the memory of its template. It says what the step is, and how
// long until the next one.
func (r *MemcachedReconciler) changeMemory(ctx context.Context, o observation,
	step rollout.MemoryStep) (change status.ChangeProgress, wait time.Duration, err error) {
	if step.Pod == nil {
		return change, 0, nil
	}
	pod := step.Pod
	progress := func(text string) (status.ChangeProgress, time.Duration, error) {
		return status.ChangeProgress{Text: "server " + pod.Name + ": " + text}, silentRetry, nil
	}
	if step.Confirm > 0 {
		reports, errs := r.askAgents(ctx, o.mc, []*corev1.Pod{pod})
		switch report := reports[0]; {
		case errs[0] != nil:
			return progress("its agent does not answer the operator")
		case report.Problem != "":
			return progress(reported(pod, report.Problem))
		case report.Applied != pod.Annotations[v1alpha1.MemoryAnnotation] || report.Memory>>20 != step.Confirm:
			change.Text = fmt.Sprintf("server %s: memcached has %d MiB, and gets %d MiB", pod.Name, report.Memory>>20,
				step.Confirm)
			return change, proxyRetry, r.refresh(ctx, pod)
		}
	}
	if step.Check != nil {
		err = r.resize(ctx, pod, *step.Check, client.DryRunAll)
	}
	switch { // a step that follows from an outdated pod is a conflict
	case err != nil:
	case step.Resize != nil:
		err = r.resize(ctx, pod, *step.Resize)
	case step.Annotation != "":
		after := r.annotated(pod, v1alpha1.MemoryAnnotation, step.Annotation)
		after.Labels[appsv1.StatefulSetRevisionLabel] = step.Revision
		err = r.Client.Patch(ctx, after, client.MergeFromWithOptions(pod, client.MergeFromWithOptimisticLock{}),
			client.FieldOwner(names.Operator))
	default:
		return progress(step.Waiting)
	}
	switch {
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err): // for example, the node has no room
		return progress(err.Error())
	case err != nil && (step.Resize != nil || step.Check != nil || !apierrors.IsNotFound(err)):
		return change, 0, fmt.Errorf("change the memory of server %s: %w", pod.Name, err)
	}
	return change, proxyRetry, nil
}

// resize changes the memory of the container of memcached.
func (r *MemcachedReconciler) resize(ctx context.Context, pod *corev1.Pod, m status.Memory,
	options ...client.SubResourcePatchOption) error {
	memory := func(bytes int64) map[string]any {
		return map[string]any{"memory": resource.NewQuantity(bytes, resource.BinarySI)}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": pod.ResourceVersion},
		"spec": map[string]any{"containers": []any{map[string]any{"name": names.Container,
			"resources": map[string]any{"limits": memory(m.Limit), "requests": memory(m.Request)}}}}})
	if err != nil {
		return err
	}
	options = append(options, client.FieldOwner(names.Operator))
	return r.Client.SubResource("resize").Patch(ctx, pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, patch),
		options...)
}

// stopServers lets servers stop. It returns how long until the request must be repeated: the kubelet may not wait yet,
// or the node may be unreachable.
func (r *MemcachedReconciler) stopServers(ctx context.Context, mc *v1alpha1.Memcached,
	pods []*corev1.Pod) (wait time.Duration) {
	port := strconv.Itoa(int(names.ReportPort(mc)))
	var group sync.WaitGroup
	errs := make([]error, len(pods))
	for i, pod := range pods {
		group.Go(func() {
			address, token := net.JoinHostPort(pod.Status.PodIP, port), pod.Annotations[v1alpha1.DrainAnnotation]
			if errs[i] = r.StopServer(ctx, address, token); errs[i] != nil {
				log.FromContext(ctx).V(1).Info("a server cannot be stopped yet", "pod", pod.Name, "cause", errs[i].Error())
			}
		})
	}
	group.Wait()
	switch {
	case len(pods) == 0:
		return 0
	case slices.ContainsFunc(errs, func(err error) bool { return !os.IsTimeout(err) }):
		return proxyRetry
	}
	return silentRetry
}

// agentClient opens a connection for each request, because the agent closes it. Another process in the pod could listen
// in place of the agent: redirects are not followed, and the size of an answer is limited.
var agentClient = &http.Client{Timeout: agentTimeout,
	Transport:     &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: maxAnswer},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// askAgent asks an agent for its report.
func askAgent(ctx context.Context, address string) (report agent.Report, err error) {
	body, err := requestAgent(ctx, http.MethodGet, address, agent.ReportPath)
	if err == nil {
		err = json.Unmarshal(body, &report)
	}
	return report, err
}

// stopServer lets a server stop that the kubelet is about to stop.
func stopServer(ctx context.Context, address, token string) error {
	_, err := requestAgent(ctx, http.MethodPost, address, agent.StopPath+token)
	return err
}

func requestAgent(ctx context.Context, method, address, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://"+address+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := agentClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", address, response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, maxAnswer))
}
