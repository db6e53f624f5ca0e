package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

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

// askAgents asks the agents of pods for their reports, many at once, and adds the reports, or why there is none.
func (r *MemcachedReconciler) askAgents(ctx context.Context, mc *v1alpha1.Memcached, pods []*corev1.Pod,
	reports map[string]steps.Report) {
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(maxRequests)
	for _, pod := range pods {
		group.Go(func() error {
			report := steps.Report{Err: errors.New("the pod has no address")}
			if pod.Status.PodIP != "" {
				report.Report, report.Err = r.AskAgent(ctx, reportAddress(mc, pod))
			}
			mu.Lock()
			defer mu.Unlock()
			reports[pod.Name] = report
			return nil
		})
	}
	_ = group.Wait()
}

// agentClient opens a connection for each request, because the agent closes it. Another process in the pod could listen
// in place of the agent: redirects are not followed, and the size of an answer is limited.
var agentClient = &http.Client{Timeout: agentTimeout,
	Transport:     &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: maxAnswer},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// askAgent asks an agent for its report.
func askAgent(ctx context.Context, address string) (report contract.Report, err error) {
	body, err := requestAgent(ctx, http.MethodGet, address, contract.ReportPath)
	if err == nil {
		err = json.Unmarshal(body, &report)
	}
	return report, err
}

// stopServer lets a server stop that the kubelet is about to stop.
func stopServer(ctx context.Context, address, token string) error {
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
