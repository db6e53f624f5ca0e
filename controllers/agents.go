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
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/example/memcached-operator/agent/contract"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/steps"
)

const (
	// maxRequests is the number of agents of a Memcached that are asked at the same time.
	maxRequests = 64
	// agentTimeout is how long an agent may take to answer.
	agentTimeout = 500 * time.Millisecond
	// maxAnswer limits the header and the body of an answer, in bytes.
	maxAnswer = 4 << 10
)

// reportAddress is the address of a pod's agent.
func reportAddress(mc *v1alpha1.Memcached, pod *corev1.Pod) string {
	return net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(names.ReportPort(mc))))
}

// decide returns the next step, for which it asks agents for their reports, and the view with these reports.
func (r *MemcachedReconciler) decide(ctx context.Context, v steps.View, st *state) (steps.Step, steps.View) {
	interval := steps.PollInterval(v)
	v.Reports = map[string]steps.Report{}
	if v.Poll = interval > 0 && !v.Now.Before(st.polled.Add(interval)); v.Poll {
		st.polled = v.Now
	}
	s := steps.Next(v)
	for len(s.Ask) > 0 {
		reports := forEach(s.Ask, func(pod *corev1.Pod) steps.Report { return r.askAgent(ctx, v.Memcached, pod) })
		for i, pod := range s.Ask {
			v.Reports[pod.Name] = reports[i]
		}
		s = steps.Next(v)
	}
	if interval > 0 {
		s.Wait = steps.Soonest(s.Wait, cmp.Or(max(st.polled.Add(interval).Sub(v.Now), 0), steps.Soon))
	}
	return s, v
}

// askAgent asks the agent of a pod for its report.
func (r *MemcachedReconciler) askAgent(ctx context.Context, mc *v1alpha1.Memcached, pod *corev1.Pod) steps.Report {
	if pod.Status.PodIP == "" {
		return steps.Report{Err: errors.New("the pod has no address")}
	}
	report, err := r.AskAgent(ctx, reportAddress(mc, pod))
	return steps.Report{Report: report, Err: err}
}

// stopServers lets servers stop. It returns the delay before the next reconcile, which is longer if no agent answers in
// time: the kubelet may not wait yet, or the node may be unreachable.
func (r *MemcachedReconciler) stopServers(ctx context.Context, mc *v1alpha1.Memcached,
	pods []*corev1.Pod) (wait time.Duration) {
	errs := forEach(pods, func(pod *corev1.Pod) error {
		err := r.StopServer(ctx, reportAddress(mc, pod), pod.Annotations[v1alpha1.DrainAnnotation])
		if err != nil {
			log.FromContext(ctx).V(1).Info("a server cannot be stopped yet", "pod", pod.Name, "cause", err.Error())
		}
		return err
	})
	switch {
	case len(pods) == 0:
		return 0
	case slices.ContainsFunc(errs, func(err error) bool { return !os.IsTimeout(err) }):
		return steps.Soon
	}
	return steps.Later
}

// forEach calls a function for each pod, many at once, and returns the results in the order of the pods.
func forEach[T any](pods []*corev1.Pod, do func(*corev1.Pod) T) []T {
	results := make([]T, len(pods))
	workqueue.ParallelizeUntil(context.Background(), maxRequests, len(pods), func(i int) { results[i] = do(pods[i]) })
	return results
}

// agentClient opens a connection for each request, because the agent closes it. Another process in the pod could listen
// in place of the agent: redirects are not followed, and the size of an answer is limited.
var agentClient = &http.Client{Timeout: agentTimeout,
	Transport:     &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: maxAnswer},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// AskAgent asks an agent for its report, over HTTP.
func AskAgent(ctx context.Context, address string) (report contract.Report, err error) {
	body, err := requestAgent(ctx, http.MethodGet, address, contract.ReportPath)
	if err == nil {
		err = json.Unmarshal(body, &report)
	}
	return report, err
}

// StopServer lets a server stop that the kubelet is about to stop, over HTTP.
func StopServer(ctx context.Context, address, token string) error {
	_, err := requestAgent(ctx, http.MethodPost, address, contract.StopPath+token)
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
