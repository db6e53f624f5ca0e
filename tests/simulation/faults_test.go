package simulation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fault is what happens to one request of the operator.
type fault struct {
	name string
	// onReads says that the fault can also happen to a request that writes nothing.
	onReads bool
	// status is the API server's answer; 0 for none.
	status int
	reason metav1.StatusReason
	// lost says that the request has its effect, and the answer gets lost.
	lost bool
	// crash ends the operator. Another process takes over; with upgrade, one of the next release.
	crash, upgrade bool
	// late are the kinds that the informer cache of the process that takes over has not updated for lateStates, and does
	// not update for another lateStates.
	late []string
}

const lateStates = 16

// faults are tried at every request of every scenario.
var faults = []fault{
	{name: "fails before", onReads: true},
	{name: "answer lost", lost: true},
	{name: "conflict", status: http.StatusConflict, reason: metav1.StatusReasonConflict},
	{name: "timeout", onReads: true, status: http.StatusGatewayTimeout, reason: metav1.StatusReasonTimeout},
	{name: "too many requests", onReads: true, status: http.StatusTooManyRequests,
		reason: metav1.StatusReasonTooManyRequests},
	{name: "forbidden", onReads: true, status: http.StatusForbidden, reason: metav1.StatusReasonForbidden},
	{name: "invalid", status: http.StatusUnprocessableEntity, reason: metav1.StatusReasonInvalid},
	{name: "not found", onReads: true, status: http.StatusNotFound, reason: metav1.StatusReasonNotFound},
	{name: "crash before", crash: true},
	{name: "crash after", crash: true, lost: true},
	{name: "late Memcached", crash: true, lost: true, late: []string{"Memcached"}},
	{name: "late workloads", crash: true, lost: true, late: workloads},
	{name: "late others", crash: true, lost: true, late: others},
	{name: "upgrade before", crash: true, upgrade: true},
	{name: "upgrade after", crash: true, upgrade: true, lost: true},
}

// errNetwork is what the operator gets where an answer is lost, and errCrashed once it has crashed.
var (
	errNetwork = errors.New("the connection was reset (by the test)")
	errCrashed = errors.New("the operator has crashed (by the test)")
)

// connection is the operator's connection to the API server. It records the requests, and lets a fault happen to one.
type connection struct {
	next     http.RoundTripper
	refusing http.RoundTripper // next, while a policy refuses all children

	mu         sync.Mutex
	requests   []string     // since the last call of arm
	reconcile  int          // the number of the present reconcile
	sent       map[int]bool // the reconciles in which the operator sent children, since the last call of arm
	at         int          // the request that gets the fault
	fault      *fault       // nil for none
	crashed    bool
	hit        bool // the fault has happened in this reconcile
	refused    bool // a policy refuses all children, since the last reconcile began
	wasRefused bool // the policy has refused a child
}

// arm lets a fault happen to the request with this number, counted from now.
func (c *connection) arm(at int, f *fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests, c.sent, c.at, c.fault = nil, map[int]bool{}, at, f
}

// RoundTrip implements http.RoundTripper.
func (c *connection) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.crashed {
		return nil, errCrashed
	}
	c.requests = append(c.requests, describe(r))
	isChild := isChildWrite(r)
	if isChild {
		c.sent[c.reconcile] = true
	}
	if c.refused {
		response, err := c.refusing.RoundTrip(r)
		c.wasRefused = c.wasRefused || isChild && err == nil && response.StatusCode == http.StatusUnprocessableEntity
		return response, err
	}
	if c.fault == nil || len(c.requests)-1 != c.at {
		return c.next.RoundTrip(r)
	}
	c.crashed, c.hit = c.fault.crash, true
	if c.fault.status != 0 {
		return answer(r, *c.fault)
	}
	if c.fault.lost {
		response, err := c.next.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		_ = response.Body.Close()
	}
	if c.crashed {
		return nil, errCrashed
	}
	return nil, errNetwork
}

// answer is the API server's answer with an error.
func answer(r *http.Request, f fault) (*http.Response, error) {
	status := metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Message: f.name + " (by the test)", Reason: f.reason, Code: int32(f.status), Details: &metav1.StatusDetails{}}
	body, err := json.Marshal(status)
	return &http.Response{Status: http.StatusText(f.status), StatusCode: f.status, Proto: "HTTP/1.1", ProtoMajor: 1,
		ProtoMinor: 1, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Request: r}, err
}

// isChildWrite reports whether a request creates or changes a child, as policies see it: also in a dry run.
func isChildWrite(r *http.Request) bool {
	return (r.Method == http.MethodPost || r.Method == http.MethodPatch || r.Method == http.MethodPut) &&
		slices.ContainsFunc(childResources, func(resource string) bool {
			return strings.Contains(r.URL.Path, "/"+resource+"/") || strings.HasSuffix(r.URL.Path, "/"+resource)
		})
}

// describe names a request without its namespace, such as "PATCH pods/cache-0".
func describe(r *http.Request) string {
	path := r.URL.Path
	if _, rest, ok := strings.Cut(path, "/namespaces/"); ok {
		if _, path, ok = strings.Cut(rest, "/"); !ok {
			path = "namespaces/" // and the name of the test's
		}
	}
	return fmt.Sprintf("%s%s %s", r.Method, map[bool]string{true: " (dry run)"}[r.URL.Query().Get("dryRun") != ""], path)
}

// refuses reports whether the API server seems to refuse what the operator asks for.
func (f fault) refuses() bool { return f.status == http.StatusUnprocessableEntity }

// tries reports whether the fault can happen to a request, as describe names it.
func (f fault) tries(request string) bool {
	return f.onReads || !strings.HasPrefix(request, http.MethodGet) && !strings.Contains(request, "(dry run)")
}
