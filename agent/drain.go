package agent

import (
	"net/http"
	"sync"
	"time"
)

// Paths of a drain, on the port of the Report. A token follows, which only the kubelet and the operator know: anybody
// else could stop a server with its items.
const (
	// DrainPath is requested by the kubelet before it stops a server. The answer comes once the server may stop.
	DrainPath = "/drain/"
	// StopPath is requested by the operator once no proxy uses the server. It fails while the kubelet does not wait.
	StopPath = "/stop/"
)

// stopNotice is how long a server still accepts connections after the kubelet announced its end, so that clients and
// Services notice.
const stopNotice = 5 * time.Second

// drain keeps a server until the operator lets it stop.
type drain struct {
	mu      sync.Mutex
	waiting int           // requests of the kubelet
	stopped chan struct{} // closed once they may be answered; nil while none waits
}

// wait answers the kubelet once the server may stop.
func (d *drain) wait(w http.ResponseWriter, r *http.Request) {
	stopped := d.begin()
	defer d.end()
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{})
	_ = control.SetWriteDeadline(time.Time{})
	notice := time.NewTimer(stopNotice)
	defer notice.Stop()
	select {
	case <-stopped:
	case <-r.Context().Done():
		return
	}
	select {
	case <-notice.C:
	case <-r.Context().Done():
	}
}

func (d *drain) begin() chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting++
	if d.stopped == nil {
		d.stopped = make(chan struct{})
	}
	return d.stopped
}

func (d *drain) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting--
	if d.waiting == 0 {
		d.stopped = nil
	}
}

// waits reports whether the kubelet waits.
func (d *drain) waits() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waiting > 0
}

// stop lets the server stop. The operator repeats the request if the kubelet does not wait yet.
func (d *drain) stop(w http.ResponseWriter, _ *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped == nil {
		http.Error(w, "the kubelet does not stop the server", http.StatusConflict)
		return
	}
	select {
	case <-d.stopped:
	default:
		close(d.stopped)
	}
}
