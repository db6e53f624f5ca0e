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
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/example/memcached-operator/agent"
	"github.com/example/memcached-operator/agent/mover"
	"github.com/example/memcached-operator/api/v1alpha1"
	"github.com/example/memcached-operator/controllers/desired"
	"github.com/example/memcached-operator/controllers/names"
	"github.com/example/memcached-operator/controllers/rollout"
	"github.com/example/memcached-operator/controllers/status"
)

const (
	// proxyRetry is the delay before proxies are asked again, and silentRetry the one if one of them did not answer, which
	// costs a worker proxyTimeout.
	proxyRetry   = 500 * time.Millisecond
	silentRetry  = 10 * time.Second
	proxyTimeout = 500 * time.Millisecond
	// maxAnswer limits the header and the body of an answer, in bytes.
	maxAnswer = 4 << 10
)

// The servers behind proxies change in steps. What the proxies are told is in their ConfigMap, and what each has
// reported in an annotation of its pod, so that any operator process can go on.

// proxyServers returns the servers that the proxies are told, and the proxies.
func (o observation) proxyServers() (servers mover.Servers, proxies rollout.Proxies) {
	if config, ok := o.ownChild(proxyConfigKey(o.mc)).(*corev1.ConfigMap); ok {
		return mover.Parse(config.Data), rollout.NewProxies(o.proxies, desired.Digest(config.Data))
	}
	return servers, proxies
}

// nextProxyServers returns the next step of the servers that the proxies use, and the number of servers that must run
// until the proxies use no more than the spec says; 0 once they do.
func (o observation) nextProxyServers(ctx context.Context) (next mover.Servers, minServers int32, err error) {
	if o.mc.Spec.Proxy == nil {
		return next, 0, nil
	}
	replicas := int32(0)
	if set := o.workload(); set != nil {
		replicas = status.ReadState(set).Wanted
	}
	stored, proxies := o.proxyServers()
	current := stored
	current.Before, current.After = o.withAddresses(stored.Before, replicas), o.withAddresses(stored.After, replicas)
	installed, ready := status.Installed(o.mc), o.readyServers()
	wanted := status.ProxyServers(o.mc, current.After, o.service, func(name string) bool {
		return ready[name] || installed && len(current.After) == 0
	})
	warm := installed && desired.CanMove(o.mc)
	for i := len(wanted); i < len(current.After); i++ { // nothing can be moved from a server that is down
		warm = warm && ready[names.Server(o.mc, int32(i))]
	}
	size := int(names.Size(o.mc))
	next = proxies.Next(current, wanted, size, warm)
	isLast := next.Equal(mover.Servers{After: wanted})
	if installed && (!next.Equal(current) || isLast && int(replicas) > size) {
		// The informer cache may not show a proxy that has just been created.
		var pods corev1.PodList
		if err := o.set.APIReader.List(ctx, &pods, client.InNamespace(o.mc.Namespace),
			client.MatchingLabels(names.Proxies.Selector(o.mc))); err != nil {
			return next, 0, fmt.Errorf("list proxies: %w", err)
		}
		o.proxies = slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool { return !isPodOf(&pod, names.Proxy(o.mc)) })
		_, proxies = o.proxyServers()
		next = proxies.Next(current, wanted, size, warm)
		isLast = next.Equal(mover.Servers{After: wanted})
	}
	if installed && !o.mc.Spec.Paused && !(isLast && next.Equal(stored) && proxies.NotLoaded() == "") {
		minServers = replicas
	}
	return next, minServers, nil
}

// readyServers returns which servers are ready, by name.
func (o observation) readyServers() map[string]bool {
	ready := map[string]bool{}
	for i := range o.servers {
		ready[o.servers[i].Name] = status.IsTrue(&o.servers[i], corev1.PodReady)
	}
	return ready
}

// withAddresses replaces the addresses of servers whose Services were recreated, and removes those that are not ours:
// somebody else may have changed the list.
func (o observation) withAddresses(servers []string, replicas int32) (list []string) {
	for i, server := range servers[:min(len(servers), int(max(replicas, names.Size(o.mc))))] {
		if address := status.ServerAddress(o.mc, int32(i), o.service); address != "" {
			server = address
		}
		list = append(list, server)
	}
	return list
}

// askProxies asks proxies for their reports, stores what they confirm, and says how far a change of the servers is, and
// how long until proxies must be asked again.
func (r *MemcachedReconciler) askProxies(ctx context.Context, o observation,
	pods []*corev1.Pod) (change status.ChangeProgress, wait time.Duration, err error) {
	if len(pods) == 0 {
		return change, 0, nil
	}
	wait = proxyRetry
	servers, proxies := o.proxyServers()
	list, port := servers.List(), strconv.Itoa(int(names.ReportPort(o.mc)))
	reports, errs := make([]agent.Report, len(pods)), make([]error, len(pods))
	var group sync.WaitGroup
	for i, pod := range pods {
		group.Go(func() { reports[i], errs[i] = r.AskProxy(ctx, net.JoinHostPort(pod.Status.PodIP, port)) })
	}
	group.Wait()
	for i, pod := range pods {
		report, confirmed := reports[i], rollout.Loaded
		if report.Done == list {
			confirmed = rollout.Moved
		}
		switch {
		case errs[i] != nil:
			wait = silentRetry
			log.FromContext(ctx).Info("a proxy does not answer", "pod", pod.Name, "error", errs[i].Error())
			change.Text = fmt.Sprintf("proxy %s does not answer the operator on port %s", pod.Name, port)
		case pod.Name == servers.Mover:
			work := "moving items"
			if servers.Phase == mover.Purge {
				work = "deleting items of earlier changes"
			}
			change.Percent = min(max(report.Percent, 0), 100)
			change.Text = cmp.Or(change.Text, fmt.Sprintf("%s, %d %%", work, change.Percent))
		}
		value := proxies.Annotation(confirmed)
		if errs[i] == nil && report.List == list && pod.Annotations[v1alpha1.ProxyConfigAnnotation] != value {
			err = errors.Join(err, r.annotate(ctx, pod, v1alpha1.ProxyConfigAnnotation, value))
		}
	}
	return change, wait, err
}

// proxyClient opens a connection for each request, because the agent closes it. Another process in the pod could listen
// in place of the agent: redirects are not followed, and the size of an answer is limited.
var proxyClient = &http.Client{Timeout: proxyTimeout,
	Transport:     &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: maxAnswer},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// askProxy asks the agent of a proxy for its report.
func askProxy(ctx context.Context, address string) (report agent.Report, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+agent.ReportPath, nil)
	if err != nil {
		return report, err
	}
	response, err := proxyClient.Do(request)
	if err != nil {
		return report, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return report, fmt.Errorf("%s answers %s", address, response.Status)
	}
	err = json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(&report)
	return report, err
}
